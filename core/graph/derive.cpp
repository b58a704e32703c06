// What an archive does not say and a graph needs: module stacks of operators without one, gradients
// of intermediates, and which operators are dead.

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/graph/read.h"

namespace nnscaler {

namespace {

/// "linear" of "aten.linear.default"; "" for what is not an ATen operator.
std::string_view aten_name(const Operator& op) {
  std::string_view name = op.target;
  if (!name.starts_with("aten.")) return "";
  name.remove_prefix(5);
  return name.substr(0, name.find('.'));
}

using NameSet = std::set<std::string_view>;

// Outputs that may share memory with the first tensor argument.
const NameSet kViews = {"_reshape_alias",
                        "alias",
                        "as_strided",
                        "broadcast_to",
                        "chunk",
                        "contiguous",
                        "diagonal",
                        "expand",
                        "expand_as",
                        "flatten",
                        "hsplit",
                        "imag",
                        "linalg_diagonal",
                        "mH",
                        "mT",
                        "matrix_H",
                        "movedim",
                        "moveaxis",
                        "narrow",
                        "numpy_T",
                        "permute",
                        "positive",
                        "ravel",
                        "real",
                        "reshape",
                        "reshape_as",
                        "select",
                        "slice",
                        "split",
                        "split_with_sizes",
                        "squeeze",
                        "swapaxes",
                        "swapdims",
                        "t",
                        "tensor_split",
                        "to",
                        "transpose",
                        "type_as",
                        "unbind",
                        "unflatten",
                        "unfold",
                        "unsafe_chunk",
                        "unsafe_split",
                        "unsqueeze",
                        "view",
                        "view_as",
                        "view_as_complex",
                        "view_as_real",
                        "vsplit",
                        "dsplit"};

// Their outputs need no gradient, whatever goes in.
const NameSet kNotDifferentiable = {"detach",    "detach_",      "empty_like", "full_like",
                                    "heaviside", "histc",        "new_empty",  "new_empty_strided",
                                    "new_full",  "new_ones",     "new_zeros",  "ones_like",
                                    "rand_like", "randint_like", "randn_like", "zeros_like"};

// They draw random numbers: without them the next one would draw others.
const NameSet kRandom = {"alpha_dropout",
                         "bernoulli",
                         "binomial",
                         "dropout",
                         "feature_alpha_dropout",
                         "feature_dropout",
                         "gumbel_softmax",
                         "multinomial",
                         "native_dropout",
                         "normal",
                         "poisson",
                         "rand",
                         "rand_like",
                         "randint",
                         "randint_like",
                         "randn",
                         "randn_like",
                         "randperm",
                         "rrelu",
                         "rrelu_with_noise",
                         "scaled_dot_product_attention"};

// They write an argument that their name does not tell of: running statistics.
const NameSet kWritesStatistics = {
    "_native_batch_norm_legit",        "batch_norm",    "cudnn_batch_norm",
    "fused_moving_avg_obs_fake_quant", "instance_norm", "native_batch_norm"};

bool has_effect(const Graph& graph, const Operator& op) {
  if (const LeafFunction* leaf = graph.leaf(op.target)) return !leaf->autograd_function;
  const std::string_view name = aten_name(op);
  if (name.empty()) {
    // Arithmetic on sizes; anything else may do what it likes.
    static constexpr std::string_view kPure[] = {"_operator.", "math.", "torch.sym_", "prims."};
    return std::ranges::none_of(
        kPure, [&](std::string_view prefix) { return op.target.starts_with(prefix); });
  }
  return op.outputs.empty() || writes_in_place(op) || op.find("out") != nullptr ||
         kRandom.contains(name) || kWritesStatistics.contains(name);
}

bool grad_enabled(const Graph& graph, int region) {
  for (; region >= 0; region = graph.regions[static_cast<size_t>(region)].parent) {
    const Region& r = graph.regions[static_cast<size_t>(region)];
    if (r.kind == RegionKind::kGradMode) return r.enabled;
  }
  return true;
}

/// Sets of tensors that may share memory.
class Aliases {
 public:
  explicit Aliases(Graph& graph)
      : graph_(graph),
        parent_(graph.values.size()),
        next_(parent_.size()),
        marked_(parent_.size(), 0) {
    std::iota(parent_.begin(), parent_.end(), 0);
    std::iota(next_.begin(), next_.end(), 0);
  }

  void join(ValueId a, ValueId b) {
    const size_t i = root(a), j = root(b);
    if (i == j) return;
    parent_[i] = j;
    marked_[j] |= marked_[i];
    std::swap(next_[i], next_[j]);  // Two rings become one.
  }

  /// A gradient flows into the whole set from now on.
  void mark(ValueId id) {
    const size_t start = root(id);
    if (marked_[start]) return;
    marked_[start] = 1;
    size_t i = start;
    do {
      Value& value = graph_.values[i];
      if (is_differentiable(value.dtype) && value.kind != ValueKind::kParameter) {
        value.requires_grad = true;
      }
      i = next_[i];
    } while (i != start);
  }

 private:
  size_t root(ValueId id) {
    size_t i = static_cast<size_t>(id.index);
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

  Graph& graph_;
  std::vector<size_t> parent_, next_;
  std::vector<char> marked_;
};

}  // namespace

bool writes_in_place(const Operator& op) {
  const std::string_view name = aten_name(op);
  if (!name.ends_with('_')) return false;
  return !name.ends_with("__") || name.starts_with("__i");
}

void fill_stacks(Graph& graph) {
  std::vector<Operator>& ops = graph.operators;
  if (graph.stacks.empty()) graph.stacks.push_back({{"", 0, graph.module_class}});
  std::map<std::pair<int, size_t>, int> prefixes;  // By stack and length.
  int previous = -1;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].stack >= 0) {
      previous = ops[i].stack;
      continue;
    }
    size_t end = i;
    while (end < ops.size() && ops[end].stack < 0) ++end;
    const int next = end < ops.size() ? ops[end].stack : -1;
    const int known = previous >= 0 ? previous : std::max(next, 0);
    const ModuleStack& a = graph.stacks[static_cast<size_t>(known)];
    const ModuleStack& b = next >= 0 ? graph.stacks[static_cast<size_t>(next)] : a;
    // At either end of the graph only the root is common.
    const size_t limit = previous >= 0 && next >= 0 ? std::min(a.size(), b.size()) : 1;
    size_t length = 0;
    while (length < limit && a[length] == b[length]) ++length;
    const auto [it, fresh] = prefixes.emplace(std::pair(known, length), known);
    if (fresh && length < a.size()) {
      const ModuleStack prefix(a.begin(), a.begin() + static_cast<ptrdiff_t>(length));
      const auto same = std::ranges::find(graph.stacks, prefix);
      it->second = static_cast<int>(same - graph.stacks.begin());
      if (same == graph.stacks.end()) graph.stacks.push_back(prefix);
    }
    const int stack = it->second;
    for (; i < end; ++i) ops[i].stack = stack;
    --i;
  }
}

void propagate_gradients(Graph& graph) {
  Aliases aliases(graph);
  const auto needs = [&](ValueId id) { return graph.value(id).requires_grad; };
  for (const Operator& op : graph.operators) {
    const std::vector<ValueId> inputs = op.tensor_inputs();
    const std::string_view name = aten_name(op);
    const bool flows = grad_enabled(graph, op.region) && std::ranges::any_of(inputs, needs) &&
                       !kNotDifferentiable.contains(name);
    for (const ValueId output : op.outputs) {
      if (!output.valid()) continue;
      Value& value = graph.value(output);
      value.requires_grad = flows && !value.is_symbol && is_differentiable(value.dtype);
    }
    if (inputs.empty() || op.args.empty() || name == "detach_") continue;
    const auto join = [&](ValueId output, ValueId input) {
      // A cast makes a copy.
      if (output.valid() && graph.value(output).dtype == graph.value(input).dtype) {
        aliases.join(output, input);
      }
    };
    if (kViews.contains(name)) {
      for (const ValueId output : op.outputs) join(output, inputs[0]);
    } else if (writes_in_place(op)) {
      const auto* list = std::get_if<TensorList>(&op.args[0].value);
      const size_t num_written = std::min(inputs.size(), list ? list->size() : 1);
      for (size_t i = 0; i < num_written; ++i) {
        if (i < op.outputs.size() && op.outputs[i].valid()) {
          graph.value(op.outputs[i]).requires_grad |= needs(inputs[i]);
          join(op.outputs[i], inputs[i]);
        }
        if (flows) aliases.mark(inputs[i]);
      }
    }
  }
}

void drop_dead(Graph& graph) {
  const size_t num_ops = graph.operators.size(), num_values = graph.values.size();
  std::vector<char> read(num_values, 0), live(num_ops, 0);
  for (const ValueId id : graph.outputs) {
    if (id.valid()) read[static_cast<size_t>(id.index)] = 1;
  }
  for (size_t i = num_ops; i-- > 0;) {
    const Operator& op = graph.operators[i];
    const auto is_read = [&](ValueId id) {
      return id.valid() && read[static_cast<size_t>(id.index)];
    };
    live[i] = std::ranges::any_of(op.outputs, is_read) || has_effect(graph, op);
    if (!live[i]) continue;
    for (const ValueId id : op.reads()) read[static_cast<size_t>(id.index)] = 1;
  }

  std::vector<int32_t> op_ids(num_ops, -1), value_ids(num_values, -1);
  int32_t next = 0;
  for (size_t i = 0; i < num_ops; ++i) {
    if (live[i]) op_ids[i] = next++;
  }
  next = 0;
  for (size_t i = 0; i < num_values; ++i) {
    const OpId producer = graph.values[i].producer;
    if (producer.valid() && !live[static_cast<size_t>(producer.index)]) continue;
    value_ids[i] = next;
    if (static_cast<size_t>(next) != i) {
      graph.values[static_cast<size_t>(next)] = std::move(graph.values[i]);
    }
    Value& value = graph.values[static_cast<size_t>(next++)];
    if (producer.valid()) value.producer.index = op_ids[static_cast<size_t>(producer.index)];
  }
  graph.values.resize(static_cast<size_t>(next));

  // Regions: those of live operators and their ancestors, in order of first use.
  std::vector<int> region_ids(graph.regions.size(), -1);
  std::vector<Region> regions;
  const auto keep_region = [&](auto&& self, int region) -> int {
    if (region < 0) return -1;
    int& id = region_ids[static_cast<size_t>(region)];
    if (id < 0) {
      Region kept = graph.regions[static_cast<size_t>(region)];
      kept.parent = self(self, kept.parent);
      id = static_cast<int>(regions.size());
      regions.push_back(std::move(kept));
    }
    return id;
  };

  const auto rename = [&](ValueId& id) {
    if (id.valid()) id.index = value_ids[static_cast<size_t>(id.index)];
  };
  std::vector<Operator> ops;
  ops.reserve(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    if (!live[i]) continue;
    Operator& op = ops.emplace_back(std::move(graph.operators[i]));
    op.region = keep_region(keep_region, op.region);
    std::ranges::for_each(op.outputs, rename);
    for (Argument& argument : op.args) {
      if (auto* id = std::get_if<ValueId>(&argument.value)) rename(*id);
      if (auto* list = std::get_if<TensorList>(&argument.value)) {
        std::ranges::for_each(*list, rename);
      }
      if (auto* size = std::get_if<SymInt>(&argument.value)) rename(size->symbol);
      if (auto* sizes = std::get_if<std::vector<SymInt>>(&argument.value)) {
        for (SymInt& each : *sizes) rename(each.symbol);
      }
    }
  }
  for (Anchor& anchor : graph.anchors) {
    anchor.position = static_cast<int>(
        std::count(live.begin(), live.begin() + anchor.position, static_cast<char>(1)));
  }
  graph.operators = std::move(ops);
  graph.regions = std::move(regions);
  std::ranges::for_each(graph.inputs, rename);
  std::ranges::for_each(graph.outputs, rename);
}

}  // namespace nnscaler
