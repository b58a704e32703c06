#include "core/lower/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"

namespace nnscaler {

namespace {

/// What a person calls the place of an operator, the same for every repetition of a layer: "fc2",
/// "Attention".
std::string place(const Graph& graph, const Operator& op) {
  const ModuleStack& stack = graph.stack_of(op);
  if (stack.empty()) return "the model";
  const std::string& path = stack.back().path;
  const std::string last = path.substr(path.rfind('.') + 1);
  const bool is_number = !last.empty() && last.find_first_not_of("0123456789") == std::string::npos;
  return last.empty() || is_number ? stack.back().short_class() : last;
}

/// "linear in fc2"
std::string call_name(const Prepared& prepared, OpId id) {
  const std::string& signature = prepared.rules[static_cast<size_t>(id.index)].signature;
  const std::string where = place(prepared.graph, prepared.graph.op(id));
  return fmt::format("{} in {}", signature.substr(signature.rfind('.') + 1), where);
}

class Lowering {
 public:
  Lowering(const Prepared& prepared, const Plan& plan)
      : prepared_(prepared), plan_(plan), mesh_(plan.options.mesh), program_() {
    program_.mesh = mesh_;
    program_.graph = prepared.graph;
    program_.runtime_ngpus = mesh_.num_devices() * plan.options.units;
  }

  Program run() {
    number_values();
    place_redistributions();
    mark_recomputation();
    make_local();
    describe_calls();
    lay_out_rest();
    return std::move(program_);
  }

 private:
  const Graph& whole() const { return prepared_.graph; }
  Graph& graph() { return program_.graph; }
  bool grad(const Value& value) const { return value.requires_grad && !plan_.options.inference; }

  std::string axes_text(const std::vector<int>& axes) const {
    std::vector<std::string> names;
    for (const int axis : axes) names.push_back(mesh_.axes[static_cast<size_t>(axis)].name);
    return join(names, " and ");
  }

  void number_values() {
    for (size_t v = 0; v < whole().values.size(); ++v) {
      produced_.push_back(Layout(mesh_.axes.size()));
    }
    for (const ValuePlan& entry : plan_.values) {
      if (whole().value(ValueId{entry.value}).kind == ValueKind::kParameter) {
        produced_[static_cast<size_t>(entry.value)] = entry.layout;
      }
    }
    for (size_t i = 0; i < whole().operators.size(); ++i) {
      const Operator& op = whole().operators[i];
      for (size_t k = 0; k < op.outputs.size(); ++k) {
        if (!op.outputs[k].valid() || whole().value(op.outputs[k]).is_symbol) continue;
        produced_[static_cast<size_t>(op.outputs[k].index)] = output_layout(
            prepared_.rules[i], plan_.choices[i], k, grad(whole().value(op.outputs[k])));
      }
    }
  }

  std::string reason(const PlannedRedistribution& move) const {
    const Value& value = whole().value(ValueId{move.value});
    std::string subject =
        value.fqn.empty() ? "the value" : value.fqn.substr(value.fqn.rfind('.') + 1);
    if (value.kind == ValueKind::kInput) subject = value.name;
    const auto list_axes = [&](const auto& condition) {
      std::vector<int> axes;
      for (size_t axis = 0; axis < move.from.size(); ++axis) {
        if (condition(move.from[axis], move.to[axis])) axes.push_back(static_cast<int>(axis));
      }
      return axes;
    };
    const std::vector<int> summed = list_axes([](const AxisLayout& from, const AxisLayout& to) {
      return from.value.is_partial() && !to.value.is_partial();
    });
    const std::vector<int> gathered = list_axes([](const AxisLayout& from, const AxisLayout& to) {
      return from.value.is_shard() && to.value != from.value;
    });
    const std::vector<int> cut = list_axes([](const AxisLayout& from, const AxisLayout& to) {
      return from.value.is_replicate() && to.value.is_shard();
    });
    const std::vector<int> once = list_axes([](const AxisLayout& from, const AxisLayout& to) {
      return !from.value.is_partial() && to.value.is_partial();
    });
    const std::vector<int> backward = list_axes([](const AxisLayout& from, const AxisLayout& to) {
      return to.gradient.is_partial() && !from.gradient.is_partial();
    });
    std::string reader = "its readers";
    if (move.reader == PlannedRedistribution::kModelOutput) reader = "the caller";
    if (move.reader >= 0) reader = call_name(prepared_, OpId{move.reader});
    const char* plural = move.reader == PlannedRedistribution::kSharedCopy ? "take" : "takes";
    std::vector<std::string> parts;
    if (!summed.empty()) {
      const std::string maker =
          value.producer.valid() ? call_name(prepared_, value.producer) : subject;
      parts.push_back(fmt::format("{} leaves partial results over {}", maker, axes_text(summed)));
    }
    if (!gathered.empty())
      parts.push_back(
          fmt::format("{} {} other parts of it over {}", reader, plural, axes_text(gathered)));
    if (!cut.empty())
      parts.push_back(fmt::format("{} {} a part of it over {}", reader, plural, axes_text(cut)));
    if (!once.empty())
      parts.push_back(fmt::format("{} {} it once over {}", reader, plural, axes_text(once)));
    if (!backward.empty() && grad(value)) {
      parts.push_back(fmt::format("its gradient comes back partial over {}", axes_text(backward)));
    }
    if (parts.empty()) parts.push_back(fmt::format("{} {} it in another layout", reader, plural));
    return join(parts, "; ");
  }

  /// A redistribution operator; returns its output.
  ValueId redistribute(ValueId input, const PlannedRedistribution& move, int stack, int region,
                       int trace, int group) {
    const auto index = static_cast<int>(graph().values.size());
    Value output = whole().value(ValueId{move.value});
    output.name = fmt::format("{}_r{}", output.name, ++num_redistributions_);
    output.kind = ValueKind::kIntermediate;
    output.fqn.clear();
    output.output_index = 0;
    const std::vector<int64_t> shape = local_shape(output, move.to, mesh_);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (!output.shape[d].is_symbolic()) output.shape[d].value = shape[d];
    }
    graph().values.push_back(std::move(output));
    produced_.push_back(move.to);
    Operator op;
    op.target = "nnscaler.redistribute";
    op.args.push_back({"input", false, input});
    op.outputs = {ValueId{index}};
    op.stack = stack;
    op.region = region;
    op.trace = trace;
    program_.redistributions[static_cast<int>(operators_.size())] = {
        move.forward, move.backward,      move.from,          move.to,
        reason(move), move.forward_bytes, move.backward_bytes};
    source_.push_back(-1);
    group_.push_back(group);
    operators_.push_back(std::move(op));
    return ValueId{index};
  }

  static size_t common_prefix(const ModuleStack& a, const ModuleStack& b) {
    size_t length = 0;
    while (length < a.size() && length < b.size() && a[length] == b[length]) ++length;
    return length;
  }

  int common_region(int a, int b) const {
    std::set<int> ancestors = {-1};
    for (int region = a; region >= 0; region = whole().regions[static_cast<size_t>(region)].parent)
      ancestors.insert(region);
    while (!ancestors.count(b)) b = whole().regions[static_cast<size_t>(b)].parent;
    return b;
  }

  int stack_id(const ModuleStack& stack) {
    for (size_t i = 0; i < graph().stacks.size(); ++i) {
      if (graph().stacks[i] == stack) return static_cast<int>(i);
    }
    graph().stacks.push_back(stack);
    return static_cast<int>(graph().stacks.size()) - 1;
  }

  struct Copy {
    const PlannedRedistribution* move;
    int stack;
    int region;
    int group;
  };

  void place_redistributions() {
    const size_t num_ops = whole().operators.size();
    const std::vector<std::vector<OpId>> readers = whole().readers();
    std::vector<std::vector<Copy>> before(num_ops + 1);
    std::map<std::pair<int, int>, const PlannedRedistribution*> own;
    std::map<int, const PlannedRedistribution*> leaving;
    ModuleStack root;
    for (const Operator& op : whole().operators) {
      if (!whole().stack_of(op).empty()) {
        root = {whole().stack_of(op).front()};
        break;
      }
    }
    std::set<int> is_output;
    for (const ValueId id : whole().outputs) {
      if (id.valid()) is_output.insert(id.index);
    }
    for (const PlannedRedistribution& move : plan_.redistributions) {
      if (move.reader >= 0) {
        own[{move.reader, move.operand}] = &move;
        continue;
      }
      if (move.reader == PlannedRedistribution::kModelOutput) {
        leaving[move.value] = &move;
        continue;
      }
      const std::vector<OpId>& users = readers[static_cast<size_t>(move.value)];
      const int producer = whole().value(ValueId{move.value}).producer.index;
      if (users.empty()) {
        before[static_cast<size_t>(producer + 1)].push_back({&move, stack_id(root), -1, -1});
        continue;
      }
      const int first = users.front().index;
      const ModuleStack& first_stack = whole().stack_of(whole().op(users.front()));
      size_t shared = first_stack.size();
      int region = whole().op(users.front()).region;
      int group = prepared_.recompute_group[static_cast<size_t>(first)];
      for (const OpId user : users) {
        if (prepared_.recompute_group[static_cast<size_t>(user.index)] != group) group = -1;
        shared = std::min(shared, common_prefix(first_stack, whole().stack_of(whole().op(user))));
        region = common_region(region, whole().op(user).region);
      }
      if (is_output.count(move.value)) {
        shared = std::min<size_t>(shared, 1);
        region = -1;
        group = -1;
      }
      // Stand before the run of calls, below the shared module, that the first reader is part of.
      int at = first;
      if (shared < first_stack.size()) {
        while (at - 1 > producer &&
               common_prefix(whole().stack_of(whole().operators[static_cast<size_t>(at - 1)]),
                             first_stack) > shared) {
          --at;
        }
        const bool inside =
            at - 1 == producer && producer >= 0 &&
            common_prefix(whole().stack_of(whole().operators[static_cast<size_t>(producer)]),
                          first_stack) > shared;
        if (inside) {  // made in the same run: stay with the first reader
          before[static_cast<size_t>(first)].push_back(
              {&move, whole().op(users.front()).stack, region, group});
          continue;
        }
      }
      const ModuleStack stack(first_stack.begin(),
                              first_stack.begin() + static_cast<std::ptrdiff_t>(shared));
      before[static_cast<size_t>(at)].push_back({&move, stack_id(stack), region, group});
    }
    std::map<int, ValueId> copies;  // value -> what its readers start from
    const auto base = [&](ValueId id) {
      const auto it = copies.find(id.index);
      return it == copies.end() ? id : it->second;
    };
    for (size_t i = 0; i <= num_ops; ++i) {
      for (const Copy& copy : before[i]) {
        const int trace = i < num_ops ? whole().operators[i].trace : -1;
        copies[copy.move->value] = redistribute(ValueId{copy.move->value}, *copy.move, copy.stack,
                                                copy.region, trace, copy.group);
      }
      if (i == num_ops) break;
      Operator op = whole().operators[i];
      size_t operand = 0;
      const auto replaced = [&](ValueId& id) {
        if (!id.valid()) return;
        const size_t k = operand++;
        const Value& value = whole().value(id);
        if (value.is_symbol) return;
        const auto it = own.find({static_cast<int>(i), static_cast<int>(k)});
        ValueId read = base(id);
        if (it != own.end())
          read = redistribute(read, *it->second, op.stack, op.region, op.trace,
                              prepared_.recompute_group[i]);
        verify(i, k, value, read);
        id = read;
      };
      for (Argument& argument : op.args) {
        if (auto* id = std::get_if<ValueId>(&argument.value)) replaced(*id);
        if (auto* list = std::get_if<TensorList>(&argument.value)) {
          for (ValueId& id : *list) replaced(id);
        }
      }
      source_.push_back(static_cast<int>(i));
      group_.push_back(prepared_.recompute_group[i]);
      operators_.push_back(std::move(op));
    }
    std::map<int, ValueId> left;
    for (ValueId& id : graph().outputs) {
      if (!id.valid() || whole().value(id).is_symbol) continue;
      const auto done = left.find(id.index);
      if (done != left.end()) {
        id = done->second;
        continue;
      }
      const int index = id.index;
      ValueId read = base(id);
      if (const auto it = leaving.find(index); it != leaving.end()) {
        read = redistribute(read, *it->second, stack_id(root), -1, -1, -1);
      }
      left[index] = read;
      id = read;
    }
    graph().operators = operators_;
    for (Value& value : graph().values) value.producer = OpId{};
    for (size_t i = 0; i < graph().operators.size(); ++i) {
      const std::vector<ValueId>& outputs = graph().operators[i].outputs;
      for (const ValueId id : outputs) {
        if (id.valid()) graph().value(id).producer = OpId{static_cast<int>(i)};
      }
    }
  }

  /// An operand must arrive as its operator's partition needs it; gradients must go where they can
  /// be used.
  void verify(size_t op, size_t operand, const Value& value, ValueId read) const {
    const Layout needed =
        input_layout(prepared_.rules[op], plan_.choices[op], operand, grad(value));
    const Layout& given = produced_[static_cast<size_t>(read.index)];
    if (needed != given) {
      throw InputError(fmt::format(
          "{}: operand {} ({}) arrives as {} and its partition needs {}; make the plan again",
          describe(prepared_, OpId{static_cast<int>(op)}), operand, value.name, to_string(given),
          to_string(needed)));
    }
  }

  /// Recompute groups become regions: below what encloses the whole group, above what lies within
  /// it.
  void mark_recomputation() {
    std::map<int, int> enclosing;
    for (size_t i = 0; i < graph().operators.size(); ++i) {
      const int region = graph().operators[i].region;
      if (group_[i] < 0) continue;
      const auto [it, added] = enclosing.emplace(group_[i], region);
      if (!added) it->second = common_region(it->second, region);
    }
    std::map<std::pair<int, int>, int>
        copies;  // (group, region of the graph) -> its copy within the group
    for (const auto& [group, region] : enclosing) {
      Region recompute;
      recompute.kind = RegionKind::kRecompute;
      recompute.parent = region;
      recompute.origin = "recompute_modules";
      copies[{group, region}] = static_cast<int>(graph().regions.size());
      graph().regions.push_back(recompute);
    }
    const auto copy = [&](const auto& self, int group, int region) -> int {
      const auto it = copies.find({group, region});
      if (it != copies.end()) return it->second;
      Region inner = graph().regions[static_cast<size_t>(region)];
      inner.parent = self(self, group, inner.parent);
      const auto index = static_cast<int>(graph().regions.size());
      graph().regions.push_back(std::move(inner));
      return copies[{group, region}] = index;
    };
    for (size_t i = 0; i < graph().operators.size(); ++i) {
      if (group_[i] >= 0)
        graph().operators[i].region = copy(copy, group_[i], graph().operators[i].region);
    }
  }

  void make_local() {
    for (size_t v = 0; v < whole().values.size(); ++v) {
      Value& value = graph().values[v];
      if (value.is_symbol) continue;
      const std::vector<int64_t> shape = local_shape(whole().values[v], produced_[v], mesh_);
      for (size_t d = 0; d < shape.size(); ++d) {
        if (!value.shape[d].is_symbolic()) value.shape[d].value = shape[d];
      }
    }
    for (size_t i = 0; i < graph().operators.size(); ++i) {
      if (source_[i] < 0) continue;
      Operator& op = graph().operators[i];
      const BoundRule& rule = prepared_.rules[static_cast<size_t>(source_[i])];
      const Choice& choice = plan_.choices[static_cast<size_t>(source_[i])];
      if (num_parts(choice, mesh_) == 1) continue;
      for (Argument& argument : op.args) {
        if (argument.name == rule.size_argument && !rule.size_argument.empty())
          local_size(op, argument);
        if (argument.name == rule.divide_argument && !rule.divide_argument.empty()) {
          int64_t parts = 1;
          for (const int axis : axes_splitting(choice, rule.divide_name)) {
            parts *= mesh_.axes[static_cast<size_t>(axis)].size;
          }
          if (auto* source = std::get_if<PySource>(&argument.value)) {  // of a leaf function
            source->text = fmt::format("{} // {}", source->text, parts);
          } else {
            auto* number = std::get_if<int64_t>(&argument.value);
            check(number != nullptr, "a divided argument that is no number");
            *number /= parts;
          }
        }
      }
    }
  }

  /// The sizes that an argument spells out follow the first output's local shape.
  void local_size(const Operator& op, Argument& argument) {
    auto* sizes = std::get_if<std::vector<SymInt>>(&argument.value);
    check(sizes != nullptr, "a size argument that is no list");
    const std::vector<Extent>& shape = graph().value(op.outputs[0]).shape;
    size_t first = 0;
    if (sizes->size() != shape.size()) {  // unflatten: sizes of some dims only
      const Argument* dim = op.find("dim");
      check(dim && std::holds_alternative<int64_t>(dim->value), "a size argument of another rank");
      int64_t start = std::get<int64_t>(dim->value);
      if (start < 0) start += static_cast<int64_t>(shape.size() - sizes->size() + 1);
      first = static_cast<size_t>(start);
    }
    for (size_t i = 0; i < sizes->size(); ++i) {
      const Extent& extent = shape[first + i];
      if (!extent.is_symbolic() && !(*sizes)[i].symbol.valid()) (*sizes)[i].value = extent.value;
    }
  }

  std::string python_axes(const std::vector<int>& axes) const {
    std::vector<std::string> names;
    for (const int axis : axes)
      names.push_back("\"" + mesh_.axes[static_cast<size_t>(axis)].name + "\"");
    return "(" + join(names, ", ") + (names.size() == 1 ? ",)" : ")");
  }

  void describe_calls() {
    program_.calls.resize(graph().operators.size());
    for (size_t i = 0; i < graph().operators.size(); ++i) {
      if (source_[i] < 0) continue;
      const BoundRule& rule = prepared_.rules[static_cast<size_t>(source_[i])];
      const Choice& choice = plan_.choices[static_cast<size_t>(source_[i])];
      CallInfo& call = program_.calls[i];
      std::map<std::string, std::set<int>> keywords;  // several names may share one
      std::vector<std::string> notes;
      for (size_t n = 0; n < rule.names.size(); ++n) {
        const std::vector<int> axes = axes_splitting(choice, static_cast<int>(n));
        if (axes.empty()) continue;
        const BoundName& name = rule.names[n];
        if (!name.keyword.empty()) {
          keywords[name.keyword].insert(axes.begin(), axes.end());
          notes.push_back(fmt::format("{} over {}", name.keyword, axes_text(axes)));
        }
        if (name.rescale) {
          for (const int axis : axes)
            call.divide_result *= mesh_.axes[static_cast<size_t>(axis)].size;
        }
      }
      if (!keywords.empty()) {
        call.callee = rule.callee;
        call.keywords.emplace_back("mesh", "MESH");
        for (const auto& [keyword, axes] : keywords) {
          call.keywords.emplace_back(keyword, python_axes({axes.begin(), axes.end()}));
        }
        call.note = "split: " + join(notes, ", ");
      }
      call.random = rule.random;
      for (size_t axis = 0; axis < choice.size(); ++axis) {
        if (choice[axis].kind == ChoiceKind::kSplit)
          call.random_axes.push_back(static_cast<int>(axis));
      }
      if (!call.random) call.random_axes.clear();
    }
  }

  void lay_out_rest() {
    for (size_t v = 0; v < whole().values.size(); ++v) {
      const Value& value = whole().values[v];
      if (value.kind != ValueKind::kParameter && value.kind != ValueKind::kBuffer &&
          value.kind != ValueKind::kConstant) {
        continue;
      }
      RestLayout rest;
      for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
        const AxisLayout& placed = produced_[v][axis];
        rest.shard_dim.push_back(placed.value.is_shard() ? placed.value.dim() : -1);
        if (placed.gradient.is_partial()) rest.reduce_axes.push_back(static_cast<int>(axis));
      }
      program_.rest[static_cast<int>(v)] = std::move(rest);
    }
  }

  const Prepared& prepared_;
  const Plan& plan_;
  const Mesh& mesh_;
  Program program_;
  std::vector<Layout> produced_;  // by value of the program
  std::vector<Operator> operators_;
  std::vector<int> source_;  // operator of the whole graph, -1 for a redistribution
  std::vector<int> group_;   // of recomputation, by operator of the program
  int num_redistributions_ = 0;
};

}  // namespace

Program lower(const Prepared& prepared, const Plan& plan) { return Lowering(prepared, plan).run(); }

}  // namespace nnscaler
