#include "core/ops/alias.h"

#include <algorithm>
#include <complex>
#include <initializer_list>
#include <map>
#include <numeric>

#include "core/ops/rule.h"
#include "core/ops/spelling.h"
#include "core/ops/table.h"

namespace nnscaler {

namespace {

size_t slot(int i) { return static_cast<size_t>(i); }

/// "aten.add_.Tensor" -> "aten.add.Tensor", if the table has it; "" for what is not in place or has
/// no twin.
std::string functional_twin(const std::string& target) {
  if (!is_in_place(target)) return "";
  const size_t dot = target.find('.', 5);
  std::string name = target.substr(5, dot - 5);
  if (name.starts_with("__i")) {
    name = "__" + name.substr(3);
  } else {
    name.pop_back();
  }
  if (name == "copy") return "";  // aten.copy has no gradient.
  const std::string twin = "aten." + name + target.substr(std::min(dot, target.size()));
  return find_target(twin) ? twin : "";
}

/// 0 truth values, 1 integers, 2 floating point, 3 complex.
int category(DType dtype) {
  if (dtype == DType::kBool) return 0;
  if (dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128)
    return 3;
  return is_differentiable(dtype) ? 2 : 1;
}

/// Whether the twin's result has the type of the tensor that is written: without it, operands are
/// promoted, and comparisons give truth values.
bool twin_keeps_type(const Graph& graph, const Operator& op) {
  const std::vector<ValueId> inputs = op.tensor_inputs();
  const Value& self = graph.value(inputs[0]);
  const std::string_view name = base_name(op.target);
  const auto is_any = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (is_any({"fill_", "zero_", "masked_fill_", "masked_scatter_", "index_put_", "index_fill_",
              "index_add_", "index_copy_", "scatter_", "scatter_add_", "scatter_reduce_"})) {
    return true;
  }
  const bool gives_truth = is_any({"eq_", "ne_", "lt_", "le_", "gt_", "ge_", "logical_and_",
                                   "logical_or_", "logical_xor_", "logical_not_"});
  if (gives_truth) return self.dtype == DType::kBool;
  for (const Argument& argument : op.args) {
    if (std::holds_alternative<double>(argument.value) && category(self.dtype) < 2) return false;
    if (std::holds_alternative<std::complex<double>>(argument.value) && category(self.dtype) < 3)
      return false;
    if (std::holds_alternative<int64_t>(argument.value) && self.dtype == DType::kBool) return false;
  }
  return std::all_of(inputs.begin() + 1, inputs.end(), [&](ValueId id) {
    const Value& other = graph.value(id);
    const bool weaker = other.shape.empty() && category(other.dtype) <= category(self.dtype);
    return other.is_symbol || other.dtype == self.dtype || weaker;
  });
}

/// Written where no gradient is recorded: the tensor keeps its history, and a twin would lose it.
bool hides_from_gradient(const Graph& graph, const Operator& op) {
  if (!graph.value(op.tensor_inputs()[0]).requires_grad) return false;
  for (int region = op.region; region >= 0; region = graph.regions[slot(region)].parent) {
    const Region& r = graph.regions[slot(region)];
    if (r.kind == RegionKind::kGradMode) return !r.enabled;
  }
  return false;
}

/// Whether the outputs may share memory with inputs.
bool may_alias(const Graph& graph, const Operator& op) {
  if (graph.leaf(op.target)) return true;  // It may return what it was given.
  const TableTarget* row = find_target(op.target);
  if (!row) return op.target.starts_with("aten.");
  if (row->entry->view) return true;
  // They copy only where they must.
  static constexpr std::string_view kSometimes[] = {
      "reshape", "flatten",       "ravel",    "contiguous", "to.",      "type_as",  "view_as",
      "dropout", "alpha_dropout", "feature_", "conj",       "resolve_", "positive", "pad"};
  const std::string_view name =
      std::string_view(op.target).substr(std::min<size_t>(5, op.target.size()));
  return std::ranges::any_of(kSometimes,
                             [&](std::string_view each) { return name.starts_with(each); });
}

/// Tensor inputs that an operator writes.
std::vector<ValueId> written_by(const Graph& graph, const Operator& op) {
  const bool has_statistics =
      op.target.starts_with("aten.batch_norm") || op.target.starts_with("aten.instance_norm");
  if (!is_in_place(op.target) && !has_statistics) return {};
  const std::vector<ValueId> inputs = op.tensor_inputs();
  if (!has_statistics) return inputs.empty() ? inputs : std::vector<ValueId>{inputs[0]};
  std::vector<ValueId> written;
  for (const int input : bind_rule(graph, op).mutated_inputs)
    written.push_back(inputs[slot(input)]);
  return written;
}

/// Sets of values that may share memory.
class Families {
 public:
  explicit Families(const Graph& graph) : parent_(graph.values.size()), same_(parent_.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    std::iota(same_.begin(), same_.end(), 0);
    for (const Operator& op : graph.operators) {
      const bool in_place = is_in_place(op.target);
      if (!in_place && !may_alias(graph, op)) continue;
      const std::vector<ValueId> inputs = op.tensor_inputs();
      const bool all = graph.leaf(op.target) || op.target.starts_with("aten.broadcast_tensors") ||
                       op.target.starts_with("aten.meshgrid");
      for (size_t k = 0; k < (all ? inputs.size() : std::min<size_t>(1, inputs.size())); ++k) {
        for (const ValueId output : op.outputs) {
          if (!output.valid() || graph.value(output).is_symbol) continue;
          join(output.index, inputs[k].index);
          const bool same = in_place && graph.value(output).shape == graph.value(inputs[k]).shape;
          if (same) same_[slot(output.index)] = same_[slot(inputs[k].index)];
        }
      }
    }
  }

  int root(int value) const {
    while (parent_[slot(value)] != value) value = parent_[slot(value)];
    return value;
  }
  /// Whether both are names of one tensor, as the result of an in-place operator and its operand.
  bool same(int a, int b) const { return same_[slot(a)] == same_[slot(b)]; }

 private:
  void join(int a, int b) {
    a = root(a), b = root(b);
    if (a != b) parent_[slot(std::max(a, b))] = std::min(a, b);
  }
  std::vector<int> parent_;
  std::vector<int> same_;
};

/// One place where an operator reads or makes a member of a family.
struct Touch {
  int op;
  int value;
  bool makes;
};

}  // namespace

AliasInfo analyse_aliases(const Graph& graph) {
  AliasInfo info;
  const auto num_ops = static_cast<int>(graph.operators.size());
  info.pinned.assign(slot(num_ops), false);
  std::vector<std::vector<ValueId>> writes;
  bool any = false;
  for (const Operator& op : graph.operators) {
    writes.push_back(written_by(graph, op));
    any = any || !writes.back().empty();
  }
  if (!any) return info;

  const Families families(graph);
  std::vector<bool> outside(graph.values.size(), false), leaves(graph.values.size(), false);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::kIntermediate)
      outside[slot(families.root(static_cast<int>(v)))] = true;
  }
  for (const ValueId id : graph.outputs) {
    if (id.valid()) leaves[slot(id.index)] = true;
  }
  std::map<int, std::vector<int>> writers;  // by family
  for (int i = 0; i < num_ops; ++i) {
    for (const ValueId id : writes[slot(i)]) {
      std::vector<int>& list = writers[families.root(id.index)];
      if (list.empty() || list.back() != i) list.push_back(i);
    }
  }
  std::map<int, std::vector<Touch>> touches;
  for (int i = 0; i < num_ops; ++i) {
    const auto touch = [&](ValueId id, bool makes) {
      const int root = families.root(id.index);
      if (writers.contains(root)) touches[root].push_back({i, id.index, makes});
    };
    for (const ValueId id : graph.operators[slot(i)].tensor_inputs()) touch(id, false);
    for (const ValueId id : graph.operators[slot(i)].outputs) {
      if (id.valid()) touch(id, true);
    }
  }

  for (const auto& [root, list] : writers) {
    const std::vector<Touch>& family = touches[root];
    const auto made_before = [&](int value, int op) {
      return graph.values[slot(value)].producer.index < op;
    };
    // A write is simple if no member that is older than it is used after it, but for what is
    // written: its readers then read the result.
    const bool simple = !outside[slot(root)] && std::ranges::all_of(list, [&](int writer) {
      const Operator& op = graph.operators[slot(writer)];
      if (functional_twin(op.target).empty() || op.outputs.size() != 1 || !op.outputs[0].valid() ||
          writes[slot(writer)].size() != 1 || !twin_keeps_type(graph, op) ||
          hides_from_gradient(graph, op)) {
        return false;
      }
      const int self = writes[slot(writer)][0].index;
      return std::ranges::none_of(family, [&](const Touch& other) {
        const bool old = !families.same(other.value, self) && made_before(other.value, writer);
        return old && ((other.op > writer && !other.makes) || leaves[slot(other.value)]);
      });
    });
    if (simple) {
      for (const int writer : list) info.simple.push_back(OpId{writer});
      continue;
    }
    // What exists before the last write is read in place; a copy of it would be out of date.
    const int last = list.back();
    for (const Touch& touch : family) {
      if (touch.op <= last || made_before(touch.value, last)) info.pinned[slot(touch.op)] = true;
    }
  }
  std::ranges::sort(info.simple);
  return info;
}

void functionalize_simple(Graph& graph, const AliasInfo& info) {
  std::vector<int> now(graph.values.size());
  std::iota(now.begin(), now.end(), 0);
  const auto current = [&](ValueId& id) {
    if (!id.valid()) return;
    while (now[slot(id.index)] != id.index) id.index = now[slot(id.index)];
  };
  auto next = info.simple.begin();
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    Operator& op = graph.operators[i];
    for (Argument& argument : op.args) {
      if (auto* id = std::get_if<ValueId>(&argument.value)) current(*id);
      if (auto* list = std::get_if<TensorList>(&argument.value)) {
        for (ValueId& id : *list) current(id);
      }
    }
    if (next == info.simple.end() || next->index != static_cast<int>(i)) continue;
    ++next;
    op.target = functional_twin(op.target);
    now[slot(op.tensor_inputs()[0].index)] = op.outputs[0].index;
  }
  for (ValueId& id : graph.outputs) current(id);
}

std::vector<bool> resolve_aliases(Graph& graph) {
  AliasInfo info = analyse_aliases(graph);
  functionalize_simple(graph, info);
  return std::move(info.pinned);
}

}  // namespace nnscaler
