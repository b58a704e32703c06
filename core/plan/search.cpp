#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/plan/plan.h"
#include "core/plan/problem.h"
#include "core/plan/redistribute.h"

namespace nnscaler {

namespace {

std::string arg_key(const Graph& graph, const ArgValue& value);

std::string tensor_key(const Graph& graph, ValueId id) {
  if (!id.valid()) return "-";
  const Value& value = graph.value(id);
  std::string key =
      fmt::format("{}{}:", dtype_short_name(value.dtype), value.requires_grad ? "g" : "");
  for (const Extent& extent : value.shape) {
    key += std::to_string(extent.value);
    key += extent.is_symbolic() ? "s," : ",";
  }
  return key;
}

struct ArgKey {
  const Graph& graph;
  std::string operator()(std::monostate) const { return "N"; }
  std::string operator()(ValueId id) const { return tensor_key(graph, id); }
  std::string operator()(const TensorList& list) const {
    std::string key = "[";
    for (const ValueId id : list) key += tensor_key(graph, id) + ";";
    return key;
  }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return fmt::format("{:a}", value); }
  std::string operator()(bool value) const { return value ? "T" : "F"; }
  std::string operator()(const std::string& value) const { return "'" + value; }
  std::string operator()(const std::complex<double>& value) const {
    return fmt::format("{:a},{:a}j", value.real(), value.imag());
  }
  std::string operator()(const SymInt& value) const {
    return value.symbol.valid() ? "s" + std::to_string(value.symbol.index)
                                : std::to_string(value.value);
  }
  std::string operator()(const std::vector<SymInt>& values) const {
    std::string key = "(";
    for (const SymInt& value : values) key += (*this)(value) + ",";
    return key;
  }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    std::string key = "(";
    for (const auto& value : values) key += (*this)(static_cast<T>(value)) + ",";
    return key;
  }
  std::string operator()(DType value) const { return dtype_short_name(value); }
  template <typename T>
  std::string operator()(const T&) const {
    return "?";  // devices, layouts, memory formats: no bearing on partition or cost
  }
};

std::string arg_key(const Graph& graph, const ArgValue& value) {
  return std::visit(ArgKey{graph}, value);
}

bool in_recompute(const Prepared& prepared, size_t op) {
  return prepared.recompute_group[op] >= 0 ||
         prepared.graph.in_recompute_region(prepared.graph.operators[op]);
}

bool any_requires_grad(const Graph& graph, const Operator& op) {
  const auto needs = [&](ValueId id) { return id.valid() && graph.value(id).requires_grad; };
  const std::vector<ValueId> inputs = op.tensor_inputs();
  return std::any_of(inputs.begin(), inputs.end(), needs) ||
         std::any_of(op.outputs.begin(), op.outputs.end(), needs);
}

DType arithmetic_type(const Graph& graph, const Operator& op) {
  for (const ValueId id : op.tensor_inputs()) {
    if (is_differentiable(graph.value(id).dtype)) return graph.value(id).dtype;
  }
  for (const ValueId id : op.outputs) {
    if (id.valid() && is_differentiable(graph.value(id).dtype)) return graph.value(id).dtype;
  }
  return DType::kFloat32;
}

int64_t optimizer_bytes(const std::string& optimizer, const Value& value, int64_t bytes) {
  const int64_t elements = bytes / std::max<int64_t>(1, dtype_bytes(value.dtype));
  const int64_t state = std::max<int64_t>(dtype_bytes(value.dtype), 1);
  if (optimizer == "adamw" || optimizer == "adam") return 2 * elements * state;
  if (optimizer == "sgd-momentum") return elements * state;
  return 0;
}

constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Gradients travel in buckets of 25 MiB, so a parameter pays its share of one.
Cost reduction_ps(const PlanOptions& options, const std::vector<int>& axes, int64_t bytes) {
  int size = options.units;
  for (const int axis : axes) size *= options.mesh.axes[static_cast<size_t>(axis)].size;
  if (size == 1 || bytes == 0) return 0;
  Cost bucket = 0;
  if (options.units == 1) {
    bucket =
        collective_ps(options.cluster, options.mesh, axes, Collective::kAllReduce, kBucketBytes);
  } else {
    const int devices = options.mesh.num_devices();
    bucket =
        group_collective_ps(options.cluster, size, size == options.units * devices ? 1 : devices,
                            Collective::kAllReduce, kBucketBytes);
  }
  const double share = static_cast<double>(bytes) / static_cast<double>(kBucketBytes);
  return static_cast<Cost>(std::ceil(static_cast<double>(bucket) * share));
}

/// The value whose memory each value uses: views share their base's.
std::vector<int> storage_roots(const Prepared& prepared) {
  std::vector<int> roots(prepared.graph.values.size());
  for (size_t v = 0; v < roots.size(); ++v) {
    roots[v] = static_cast<int>(v);
    const Value& value = prepared.graph.values[v];
    if (!value.producer.valid()) continue;
    const auto producer = static_cast<size_t>(value.producer.index);
    const std::vector<ValueId> inputs = prepared.graph.operators[producer].tensor_inputs();
    const BoundRule& rule = prepared.rules[producer];
    if ((rule.view || rule.fused) && !inputs.empty())
      roots[v] = roots[static_cast<size_t>(inputs[0].index)];
  }
  return roots;
}

bool contains(const std::vector<int>& list, size_t value) {
  return std::find(list.begin(), list.end(), static_cast<int>(value)) != list.end();
}

std::vector<int> partial_gradient_axes(const Layout& layout) {
  std::vector<int> axes;
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].gradient.is_partial()) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

}  // namespace

std::string describe(const Prepared& prepared, OpId id) {
  const Operator& op = prepared.graph.op(id);
  const std::string& path = prepared.graph.module_path(op);
  std::string text = prepared.rules[static_cast<size_t>(id.index)].signature;
  if (!path.empty()) text += " of " + path;
  if (const SourceLine* source = prepared.graph.source_of(op)) {
    text += fmt::format(" ({}:{})", source->file.substr(source->file.rfind('/') + 1), source->line);
  }
  return text;
}

ProblemBuilder::ProblemBuilder(const Prepared& prepared, const PlanOptions& options)
    : prepared_(prepared),
      graph_(prepared.graph),
      options_(options),
      redistributor_(options.cluster, options.mesh) {
  std::vector<int> sizes;
  for (const MeshAxis& axis : options.mesh.axes) sizes.push_back(axis.size);
  matches_ = match_constraints(graph_, prepared.rules, options.constraints, sizes);
  build();
}

Layout ProblemBuilder::whole() const { return Layout(options_.mesh.axes.size()); }

bool ProblemBuilder::allowed(const Choice& choice, const ConstraintMatch& match) const {
  if (match.constraint < 0) return true;
  for (size_t axis = 0; axis < choice.size(); ++axis) {
    if (options_.mesh.axes[axis].size == 1) continue;
    if (choice[axis].kind == ChoiceKind::kSplit) {
      if (!match.allowed_names[static_cast<size_t>(choice[axis].index)]) return false;
    } else if (!match.replica_allowed) {
      return false;
    }
  }
  return true;
}

Choice ProblemBuilder::forced_choice(size_t index, const std::vector<std::string>& texts) const {
  const BoundRule& rule = prepared_.rules[index];
  const OpId id{static_cast<int>(index)};
  const std::vector<Choice> all = all_choices(rule, options_.mesh, true);
  const auto fail = [&](const std::string& what) -> Choice {
    std::vector<std::string> names;
    for (const BoundName& name : rule.names) {
      if (name.splittable) names.push_back(fmt::format("{} ({})", name.name, name.extent));
    }
    throw InputError(
        fmt::format("{}: {}; its annotation is \"{}\" and on the mesh {} it may be replicated{}",
                    describe(prepared_, id), what, rule.annotation, options_.mesh.to_string(),
                    names.empty() ? std::string(" only") : " or split along " + join(names, ", ")));
  };
  if (texts.size() != options_.mesh.axes.size()) {
    return fail(fmt::format("{} partitions are given for {} mesh axes", texts.size(),
                            options_.mesh.axes.size()));
  }
  Choice choice;
  for (size_t axis = 0; axis < texts.size(); ++axis) {
    const std::optional<AxisChoice> parsed = parse_choice(texts[axis], rule);
    if (!parsed) return fail(fmt::format("\"{}\" names no partition of it", texts[axis]));
    choice.push_back(options_.mesh.axes[axis].size == 1 ? AxisChoice{} : *parsed);
    if (parsed->kind != ChoiceKind::kSplit) continue;
    const BoundName& name = rule.names[static_cast<size_t>(parsed->index)];
    if (!name.splittable)
      return fail(fmt::format("{} may not be split: {}", name.name, name.why_not));
    if (options_.mesh.axes[axis].size > 1 && prepared_.pinned[index]) {
      return fail("it takes part in an in-place write and is replicated");
    }
  }
  if (std::find(all.begin(), all.end(), choice) == all.end()) {
    for (size_t axis = 0; axis < texts.size(); ++axis) {
      if (choice[axis].kind != ChoiceKind::kSplit) continue;
      const BoundName& name = rule.names[static_cast<size_t>(choice[axis].index)];
      int64_t parts = 1;
      for (const int a : axes_splitting(choice, choice[axis].index)) {
        parts *= options_.mesh.axes[static_cast<size_t>(a)].size;
      }
      if (name.extent % parts != 0) {
        return fail(fmt::format("{} has length {}, which {} parts don't share evenly", name.name,
                                name.extent, parts));
      }
    }
    return fail(fmt::format("\"{}\" is not a partition of it", join(texts, ", ")));
  }
  return choice;
}

int ProblemBuilder::port(std::vector<Layout> layouts) {
  std::vector<int> ids;
  ids.reserve(layouts.size());
  for (Layout& layout : layouts) {
    const auto [it, added] =
        layout_ids_.emplace(std::move(layout), static_cast<int>(layouts_.size()));
    if (added) layouts_.push_back(it->first);
    ids.push_back(it->second);
  }
  const auto [it, added] = port_ids_.emplace(std::move(ids), static_cast<int>(ports_.size()));
  if (added) ports_.push_back(it->first);
  return it->second;
}

int ProblemBuilder::shape_class(ValueId id) {
  const Value& value = graph_.value(id);
  const auto [it, added] =
      shape_classes_.emplace(tensor_key(graph_, id), static_cast<int>(shape_values_.size()));
  if (added) shape_values_.push_back(&value);
  return it->second;
}

Cost ProblemBuilder::move_cost(int shape, int from, int to, bool twice) {
  if (from == to) return 0;
  const auto key = std::tuple(shape, from, to, twice);
  const auto it = move_costs_.find(key);
  if (it != move_costs_.end()) return it->second;
  const Value& value = *shape_values_[static_cast<size_t>(shape)];
  const Layout& a = layouts_[static_cast<size_t>(from)];
  const Layout& b = layouts_[static_cast<size_t>(to)];
  Cost cost = redistributor_.path(value, Redistributor::values(a), Redistributor::values(b)).cost;
  if (twice) cost *= 2;
  if (value.requires_grad && !options_.inference) {
    cost +=
        redistributor_.path(value, Redistributor::gradients(b), Redistributor::gradients(a)).cost;
  }
  return move_costs_[key] = cost * options_.microbatches;
}

int ProblemBuilder::edge_matrix(int shape, int from_port, int to_port, bool twice) {
  const auto key = std::tuple(shape, from_port, to_port, twice);
  const auto it = edge_matrices_.find(key);
  if (it != edge_matrices_.end()) return it->second;
  const std::vector<int>& from = ports_[static_cast<size_t>(from_port)];
  const std::vector<int>& to = ports_[static_cast<size_t>(to_port)];
  CostMatrix matrix{static_cast<int>(from.size()), static_cast<int>(to.size()), {}};
  matrix.data.reserve(from.size() * to.size());
  // Labels share few layouts: each pair is looked up once.
  std::unordered_map<int64_t, Cost> seen;
  for (const int a : from) {
    for (const int b : to) {
      const int64_t pair = (static_cast<int64_t>(a) << 32) | b;
      const auto found = seen.find(pair);
      const Cost cost =
          found != seen.end() ? found->second : (seen[pair] = move_cost(shape, a, b, twice));
      matrix.data.push_back(cost);
    }
  }
  return edge_matrices_[key] = problem.pool->intern(std::move(matrix));
}

Cost ProblemBuilder::operator_cost(size_t index, const Choice& choice) {
  const Operator& op = graph_.operators[index];
  const BoundRule& rule = prepared_.rules[index];
  const bool backward = !options_.inference && any_requires_grad(graph_, op) &&
                        std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId id) {
                          return id.valid() && graph_.value(id).requires_grad;
                        });
  Cost forward_ps = 0;
  Cost backward_ps = 0;
  if (!rule.view && !rule.fused) {
    int64_t bytes = 0;
    const std::vector<ValueId> inputs = op.tensor_inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Value& value = graph_.value(inputs[i]);
      if (!value.is_symbol) {
        bytes +=
            local_bytes(value, input_layout(rule, choice, i, value.requires_grad), options_.mesh);
      }
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (!op.outputs[i].valid()) continue;
      const Value& value = graph_.value(op.outputs[i]);
      if (!value.is_symbol) {
        bytes +=
            local_bytes(value, output_layout(rule, choice, i, value.requires_grad), options_.mesh);
      }
    }
    const double parts = num_parts(choice, options_.mesh);
    const DType type = arithmetic_type(graph_, op);
    forward_ps = compute_ps(options_.cluster, rule.forward_flops / parts, bytes, type);
    if (backward)
      backward_ps = compute_ps(options_.cluster, rule.backward_flops / parts, 2 * bytes, type);
  }
  for (const InnerCollective& inner : rule.inner) {
    const std::vector<int> axes = axes_splitting(choice, inner.name);
    if (axes.empty()) continue;
    int64_t bytes = inner.bytes;
    for (const int name : inner.divided_by) {
      for (const int axis : axes_splitting(choice, name))
        bytes /= options_.mesh.axes[static_cast<size_t>(axis)].size;
    }
    (inner.backward ? backward_ps : forward_ps) +=
        collective_ps(options_.cluster, options_.mesh, axes, inner.kind, bytes);
  }
  if (!backward) backward_ps = 0;
  if (backward && in_recompute(prepared_, index)) forward_ps *= 2;
  return (forward_ps + backward_ps) * options_.microbatches;
}

int ProblemBuilder::operator_class(size_t index) {
  const Operator& op = graph_.operators[index];
  const BoundRule& rule = prepared_.rules[index];
  const ConstraintMatch& match = matches_[index];
  auto forced = options_.forced.find(static_cast<int>(index));
  const bool free =
      forced != options_.forced.end() && forced->second == std::vector<std::string>{"auto"};
  const bool only_replicated = prepared_.pinned[index] || prepared_.constant[index] ||
                               (options_.others_replicate && forced == options_.forced.end());
  std::string key = op.target;
  for (const Argument& argument : op.args)
    key += "|" + argument.name + "=" + arg_key(graph_, argument.value);
  key += "->";
  for (const ValueId id : op.outputs) key += tensor_key(graph_, id) + ";";
  key += fmt::format("#{}{}{}c{}", only_replicated ? 1 : 0, prepared_.constant[index] ? 1 : 0,
                     in_recompute(prepared_, index) ? 1 : 0, match.constraint);
  if (graph_.leaf(op.target)) key += rule.annotation;
  if (free) forced = options_.forced.end();
  if (forced != options_.forced.end()) key += "!" + join(forced->second, ",");
  const auto found = class_ids_.find(key);
  if (found != class_ids_.end()) return found->second;

  OperatorClass entry;
  if (forced != options_.forced.end()) {
    entry.choices = {forced_choice(index, forced->second)};
  } else if (only_replicated) {
    entry.choices = {Choice(options_.mesh.axes.size())};
  } else {
    entry.choices =
        all_choices(rule, options_.mesh, any_requires_grad(graph_, op) && !options_.inference);
  }
  // What is replicated because it can't be otherwise is no matter of rules, unless a rule speaks of
  // it.
  std::erase_if(entry.choices, [&](const Choice& choice) { return !allowed(choice, match); });
  if (entry.choices.empty()) {
    const Constraint& constraint = options_.constraints[static_cast<size_t>(match.constraint)];
    const std::string what =
        fmt::format("{}: the rule {} leaves {}", constraint.where, constraint.text,
                    describe(prepared_, OpId{static_cast<int>(index)}));
    if (prepared_.pinned[index]) {
      throw InputError(fmt::format(
          "{} no choice: it touches memory that is written in place, and stays whole on every "
          "device; allow replication, or write the model without the write in place",
          what));
    }
    std::vector<std::string> extents;
    for (size_t i = 0; i < rule.names.size(); ++i) {
      if (match.allowed_names[i])
        extents.push_back(
            fmt::format("{} has length {}", rule.names[i].name, rule.names[i].extent));
    }
    throw InputError(fmt::format(
        "{} no partition on the mesh {}{}; allow replication or another dimension", what,
        options_.mesh.to_string(), extents.empty() ? "" : ": " + join(extents, ", ")));
  }
  CostMatrix costs{1, static_cast<int>(entry.choices.size()), {}};
  for (const Choice& choice : entry.choices) costs.data.push_back(operator_cost(index, choice));
  entry.costs = problem.pool->intern(std::move(costs));
  const std::vector<ValueId> inputs = op.tensor_inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Layout> layouts;
    for (const Choice& choice : entry.choices) {
      layouts.push_back(input_layout(rule, choice, i,
                                     graph_.value(inputs[i]).requires_grad && !options_.inference));
    }
    entry.input_ports.push_back(port(std::move(layouts)));
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    std::vector<Layout> layouts;
    const bool grad =
        op.outputs[i].valid() && graph_.value(op.outputs[i]).requires_grad && !options_.inference;
    for (const Choice& choice : entry.choices)
      layouts.push_back(output_layout(rule, choice, i, grad));
    entry.output_ports.push_back(port(std::move(layouts)));
  }
  const int id = static_cast<int>(classes.size());
  classes.push_back(std::move(entry));
  class_ids_.emplace(std::move(key), id);
  return id;
}

std::vector<Layout> ProblemBuilder::value_layouts(ValueId id, const std::vector<int>& ports) {
  const Value& value = graph_.value(id);
  const size_t num_axes = options_.mesh.axes.size();
  std::vector<std::set<AxisLayout>> wanted(num_axes);
  for (auto& set : wanted) {
    set.insert(AxisLayout{});
    if (value.requires_grad && !options_.inference) {
      set.insert(AxisLayout{Placement::replicate(), Placement::partial()});
    }
  }
  for (const int p : ports) {
    for (const int layout : ports_[static_cast<size_t>(p)]) {
      for (size_t axis = 0; axis < num_axes; ++axis)
        wanted[axis].insert(layouts_[static_cast<size_t>(layout)][axis]);
    }
  }
  const bool at_rest = value.kind == ValueKind::kParameter;
  std::vector<Layout> result = {{}};
  for (size_t axis = 0; axis < num_axes; ++axis) {
    std::vector<Layout> longer;
    for (const Layout& layout : result) {
      for (const AxisLayout& added : wanted[axis]) {
        if (at_rest && added.value.is_partial()) continue;
        if (options_.mesh.axes[axis].size == 1 && added != AxisLayout{}) continue;
        Layout next = layout;
        next.push_back(added);
        if (added.value.is_shard()) {
          int64_t parts = 1;
          for (size_t a = 0; a <= axis; ++a) {
            if (next[a].value == added.value) parts *= options_.mesh.axes[a].size;
          }
          const Extent& extent = value.shape[static_cast<size_t>(added.value.dim())];
          if (extent.is_symbolic() || extent.value % parts != 0) continue;
        }
        longer.push_back(std::move(next));
      }
    }
    result = std::move(longer);
  }
  return result;
}

void ProblemBuilder::build() {
  const size_t num_ops = graph_.operators.size();
  class_of.reserve(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    class_of.push_back(operator_class(i));
    problem.node_costs.push_back(classes[static_cast<size_t>(class_of.back())].costs);
  }
  struct Use {
    int op;
    int operand;
  };
  std::vector<std::vector<Use>> uses(graph_.values.size());
  for (size_t i = 0; i < num_ops; ++i) {
    const std::vector<ValueId> inputs = graph_.operators[i].tensor_inputs();
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (!graph_.value(inputs[k]).is_symbol) {
        uses[static_cast<size_t>(inputs[k].index)].push_back(
            {static_cast<int>(i), static_cast<int>(k)});
      }
    }
  }
  std::vector<int> output_uses(graph_.values.size(), 0);
  for (const ValueId id : graph_.outputs) {
    if (id.valid() && !graph_.value(id).is_symbol) ++output_uses[static_cast<size_t>(id.index)];
  }
  const int whole_port = port({whole()});
  const auto add_vector = [&](int node, const CostMatrix& costs, bool column) {
    CostMatrix vector{1, column ? costs.rows : costs.cols, costs.data};
    int& total = problem.node_costs[static_cast<size_t>(node)];
    total = problem.pool->add(total, problem.pool->intern(std::move(vector)));
  };
  value_nodes.assign(graph_.values.size(), -1);
  value_ports.assign(graph_.values.size(), -1);
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const ValueId id{static_cast<int>(v)};
    const Value& value = graph_.value(id);
    const size_t num_uses = uses[v].size() + (output_uses[v] > 0 ? 1 : 0);
    if (value.is_symbol || prepared_.tied[v] ||
        (num_uses == 0 && value.kind != ValueKind::kParameter))
      continue;
    // Constants are whole on every rank; cutting a part of one is a view.
    if (value.producer.valid() && prepared_.constant[static_cast<size_t>(value.producer.index)])
      continue;
    const int shape = shape_class(id);
    const bool produced = value.kind == ValueKind::kIntermediate && value.producer.valid();
    const int producer_port =
        produced ? classes[static_cast<size_t>(class_of[static_cast<size_t>(value.producer.index)])]
                       .output_ports[static_cast<size_t>(value.output_index)]
                 : whole_port;
    if (produced && num_uses == 1) {
      // One reader: the edge carries the redistribution.
      if (uses[v].empty()) {
        const int matrix = edge_matrix(shape, producer_port, whole_port, false);
        add_vector(value.producer.index, (*problem.pool)[matrix], true);
      } else {
        const Use use = uses[v][0];
        const int reader_port = classes[static_cast<size_t>(class_of[static_cast<size_t>(use.op)])]
                                    .input_ports[static_cast<size_t>(use.operand)];
        problem.edges.push_back(
            {value.producer.index, use.op,
             edge_matrix(shape, producer_port, reader_port,
                         in_recompute(prepared_, static_cast<size_t>(use.op)))});
      }
      continue;
    }
    // A node for the layout that readers share, or in which a parameter rests.
    std::vector<int> ports = {producer_port};
    for (const Use& use : uses[v]) {
      ports.push_back(classes[static_cast<size_t>(class_of[static_cast<size_t>(use.op)])]
                          .input_ports[static_cast<size_t>(use.operand)]);
    }
    // What is written in place is read where it lies: no copy stands between.
    const bool in_place =
        (produced && prepared_.pinned[static_cast<size_t>(value.producer.index)]) ||
        std::any_of(uses[v].begin(), uses[v].end(),
                    [&](const Use& use) { return prepared_.pinned[static_cast<size_t>(use.op)]; });
    const bool choosable =
        !in_place &&
        (produced || value.kind == ValueKind::kParameter ||
         (value.kind == ValueKind::kInput && value.requires_grad && !options_.inference));
    std::vector<Layout> layouts =
        choosable ? value_layouts(id, ports) : std::vector<Layout>{whole()};
    CostMatrix costs{1, static_cast<int>(layouts.size()), std::vector<Cost>(layouts.size(), 0)};
    if (value.kind == ValueKind::kParameter && value.requires_grad && !options_.inference &&
        num_uses > 0) {
      for (size_t i = 0; i < layouts.size(); ++i) {
        costs.data[i] = reduction_ps(options_, partial_gradient_axes(layouts[i]),
                                     local_bytes(value, layouts[i], options_.mesh));
      }
    }
    const int node = static_cast<int>(problem.node_costs.size());
    problem.node_costs.push_back(problem.pool->intern(std::move(costs)));
    const int value_port = port(std::move(layouts));
    value_nodes[v] = node;
    value_ports[v] = value_port;
    if (produced) {
      problem.edges.push_back(
          {value.producer.index, node, edge_matrix(shape, producer_port, value_port, false)});
    } else if (value.kind != ValueKind::kParameter) {
      add_vector(node, (*problem.pool)[edge_matrix(shape, whole_port, value_port, false)], false);
    }
    for (const Use& use : uses[v]) {
      const int reader_port = classes[static_cast<size_t>(class_of[static_cast<size_t>(use.op)])]
                                  .input_ports[static_cast<size_t>(use.operand)];
      problem.edges.push_back({node, use.op,
                               edge_matrix(shape, value_port, reader_port,
                                           in_recompute(prepared_, static_cast<size_t>(use.op)))});
    }
    if (output_uses[v] > 0)
      add_vector(node, (*problem.pool)[edge_matrix(shape, value_port, whole_port, false)], true);
  }
}

namespace {

/// Everything about a plan that follows from its choices and layouts.
class Accountant {
 public:
  Accountant(const Prepared& prepared, const PlanOptions& options, ProblemBuilder& builder,
             Plan& plan)
      : prepared_(prepared),
        graph_(prepared.graph),
        options_(options),
        builder_(builder),
        plan_(plan) {}

  void run() {
    for (const ValuePlan& value : plan_.values) layouts_[value.value] = &value.layout;
    operators();
    redistributions();
    reductions();
    memory();
  }

 private:
  bool grad(const Value& value) const { return value.requires_grad && !options_.inference; }

  void operators() {
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      plan_.operator_ps.push_back(builder_.operator_cost(i, plan_.choices[i]));
      plan_.compute_ps += plan_.operator_ps.back();
    }
  }

  void add(const Value& value, int index, int reader, int operand, const Layout& from,
           const Layout& to, bool twice) {
    if (from == to) return;
    PlannedRedistribution entry;
    entry.value = index;
    entry.reader = reader;
    entry.operand = operand;
    entry.from = from;
    entry.to = to;
    Redistributor& redistributor = builder_.redistributor();
    const Redistributor::Path& forward =
        redistributor.path(value, Redistributor::values(from), Redistributor::values(to));
    entry.forward = forward.steps;
    entry.forward_ps = forward.cost * (twice ? 2 : 1) * options_.microbatches;
    entry.forward_bytes = forward.sent_bytes * (twice ? 2 : 1) * options_.microbatches;
    if (grad(value)) {
      const Redistributor::Path& backward =
          redistributor.path(value, Redistributor::gradients(to), Redistributor::gradients(from));
      entry.backward = backward.steps;
      entry.backward_ps = backward.cost * options_.microbatches;
      entry.backward_bytes = backward.sent_bytes * options_.microbatches;
    }
    if (value.producer.valid() && prepared_.constant[static_cast<size_t>(value.producer.index)]) {
      entry.forward_ps = entry.backward_ps = 0;
    }
    plan_.communication_ps += entry.forward_ps + entry.backward_ps;
    if (!entry.forward.empty() || !entry.backward.empty())
      plan_.redistributions.push_back(std::move(entry));
  }

  const Layout& base_layout(ValueId id, const Layout& produced) const {
    const auto it = layouts_.find(id.index);
    return it == layouts_.end() ? produced : *it->second;
  }

  void redistributions() {
    std::vector<bool> copied(graph_.values.size(), false);
    const auto copy = [&](ValueId id) {
      const Value& value = graph_.value(id);
      const Layout produced = produced_layout(prepared_, plan_, id);
      if (!copied[static_cast<size_t>(id.index)] && value.kind != ValueKind::kParameter) {
        add(value, id.index, PlannedRedistribution::kSharedCopy, -1, produced,
            base_layout(id, produced), false);
      }
      copied[static_cast<size_t>(id.index)] = true;
      return base_layout(id, produced);
    };
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      const std::vector<ValueId> inputs = graph_.operators[i].tensor_inputs();
      for (size_t k = 0; k < inputs.size(); ++k) {
        const Value& value = graph_.value(inputs[k]);
        if (value.is_symbol) continue;
        add(value, inputs[k].index, static_cast<int>(i), static_cast<int>(k), copy(inputs[k]),
            input_layout(prepared_.rules[i], plan_.choices[i], k, grad(value)),
            in_recompute(prepared_, i));
      }
    }
    std::set<int> seen;
    for (const ValueId id : graph_.outputs) {
      if (!id.valid() || graph_.value(id).is_symbol || !seen.insert(id.index).second) continue;
      add(graph_.value(id), id.index, PlannedRedistribution::kModelOutput, -1, copy(id),
          Layout(options_.mesh.axes.size()), false);
    }
  }

  void reductions() {
    const std::vector<std::vector<OpId>> readers = graph_.readers();
    for (const ValuePlan& entry : plan_.values) {
      const Value& value = graph_.value(ValueId{entry.value});
      if (value.kind != ValueKind::kParameter || !grad(value)) continue;
      if (readers[static_cast<size_t>(entry.value)].empty()) continue;
      GradientReduction reduction;
      reduction.value = entry.value;
      reduction.axes = partial_gradient_axes(entry.layout);
      reduction.bytes = local_bytes(value, entry.layout, options_.mesh);
      reduction.ps = reduction_ps(options_, reduction.axes, reduction.bytes);
      plan_.gradient_ps += reduction.ps;
      int size = options_.units;
      for (const int axis : reduction.axes)
        size *= options_.mesh.axes[static_cast<size_t>(axis)].size;
      if (size == 1) continue;
      reduction.sent_bytes = collective_sent_bytes(size, Collective::kAllReduce, reduction.bytes);
      plan_.reductions.push_back(reduction);
    }
  }

  void memory() {
    MemoryUse& use = plan_.memory;
    for (const ValuePlan& entry : plan_.values) {
      const Value& value = graph_.value(ValueId{entry.value});
      if (value.kind != ValueKind::kParameter) continue;
      const int64_t bytes = local_bytes(value, entry.layout, options_.mesh);
      use.parameters += bytes;
      if (!grad(value)) continue;
      use.gradients += bytes;
      use.optimizer += optimizer_bytes(options_.optimizer, value, bytes);
    }
    for (const Value& value : graph_.values) {
      if (value.kind == ValueKind::kBuffer || value.kind == ValueKind::kConstant)
        use.buffers += value.bytes();
    }
    const std::vector<int> storage = storage_roots(prepared_);
    std::set<std::tuple<int, Redistributor::Placements>> kept;
    std::map<int, int64_t> region_bytes;
    std::map<int, std::set<std::tuple<int, Redistributor::Placements>>> region_kept;
    int64_t largest = 0;
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      const Operator& op = graph_.operators[i];
      const BoundRule& rule = prepared_.rules[i];
      const std::vector<ValueId> inputs = op.tensor_inputs();
      int64_t working = 0;
      const bool differentiated =
          std::any_of(op.outputs.begin(), op.outputs.end(),
                      [&](ValueId id) { return id.valid() && grad(graph_.value(id)); });
      const int group = recompute_key(i);
      const auto keep = [&](ValueId id, const Layout& layout) {
        const Value& value = graph_.value(id);
        const int root = storage[static_cast<size_t>(id.index)];
        const Value& base = graph_.values[static_cast<size_t>(root)];
        const bool own = base.kind == ValueKind::kIntermediate && base.producer.valid();
        // A redistributed copy of a parameter is ours too.
        const bool copy = !own && layout != base_layout(id, produced_layout(prepared_, plan_, id));
        if (base.kind == ValueKind::kInput && !copy) {
          if (kept.insert({root, Redistributor::values(layout)}).second) {
            plan_.memory.activations += local_bytes(value, layout, options_.mesh);
          }
          return;
        }
        if (!own && !copy) return;
        const auto key = std::tuple(root, Redistributor::values(layout));
        const bool outside =
            group >= 0 && (!base.producer.valid() ||
                           recompute_key(static_cast<size_t>(base.producer.index)) != group);
        if (group < 0 || outside) {
          if (kept.insert(key).second)
            plan_.memory.activations += local_bytes(value, layout, options_.mesh);
        } else if (region_kept[group].insert(key).second) {
          region_bytes[group] += local_bytes(value, layout, options_.mesh);
        }
      };
      for (size_t k = 0; k < inputs.size(); ++k) {
        const Value& value = graph_.value(inputs[k]);
        if (value.is_symbol) continue;
        const Layout layout = input_layout(rule, plan_.choices[i], k, grad(value));
        if (!rule.view && !rule.fused) working += local_bytes(value, layout, options_.mesh);
        if (differentiated && std::find(rule.saved_inputs.begin(), rule.saved_inputs.end(),
                                        static_cast<int>(k)) != rule.saved_inputs.end()) {
          keep(inputs[k], layout);
        }
      }
      for (size_t k = 0; k < op.outputs.size(); ++k) {
        if (!op.outputs[k].valid() || graph_.value(op.outputs[k]).is_symbol) continue;
        const Value& value = graph_.value(op.outputs[k]);
        const Layout layout = output_layout(rule, plan_.choices[i], k, grad(value));
        if (!rule.view && !rule.fused) working += local_bytes(value, layout, options_.mesh);
        if (differentiated && std::find(rule.saved_outputs.begin(), rule.saved_outputs.end(),
                                        static_cast<int>(k)) != rule.saved_outputs.end()) {
          keep(op.outputs[k], layout);
        }
      }
      largest = std::max(largest, working);
    }
    for (const auto& [group, bytes] : region_bytes) largest = std::max(largest, bytes);
    use.transient = largest;
  }

  /// Identifies the recompute group or region of an operator; -1 for none.
  int recompute_key(size_t op) const {
    if (prepared_.recompute_group[op] >= 0) return prepared_.recompute_group[op];
    for (int region = graph_.operators[op].region; region >= 0;
         region = graph_.regions[static_cast<size_t>(region)].parent) {
      if (graph_.regions[static_cast<size_t>(region)].kind == RegionKind::kRecompute)
        return 1'000'000 + region;
    }
    return -1;
  }

  const Prepared& prepared_;
  const Graph& graph_;
  const PlanOptions& options_;
  ProblemBuilder& builder_;
  Plan& plan_;
  std::map<int, const Layout*> layouts_;
};

void refuse_memory(const Plan& plan) {
  const MemoryUse& use = plan.memory;
  throw InfeasibleError(fmt::format(
      "no plan fits: the least found needs {} a device (parameters {}, gradients {}, optimizer "
      "state {}, buffers {}, "
      "activations {}, working set {}) and the budget is {}, {} less; use more devices, "
      "recompute_modules, an optimizer "
      "with less state, or a smaller batch",
      format_bytes(use.total()), format_bytes(use.parameters), format_bytes(use.gradients),
      format_bytes(use.optimizer), format_bytes(use.buffers), format_bytes(use.activations),
      format_bytes(use.transient), format_bytes(plan.budget_bytes),
      format_bytes(use.total() - plan.budget_bytes)));
}

}  // namespace

Layout produced_layout(const Prepared& prepared, const Plan& plan, ValueId id) {
  const Value& value = prepared.graph.value(id);
  if (value.kind == ValueKind::kIntermediate && value.producer.valid()) {
    const auto producer = static_cast<size_t>(value.producer.index);
    return output_layout(prepared.rules[producer], plan.choices[producer],
                         static_cast<size_t>(value.output_index),
                         value.requires_grad && !plan.options.inference);
  }
  if (value.kind == ValueKind::kParameter) {
    for (const ValuePlan& entry : plan.values) {
      if (entry.value == id.index) return entry.layout;
    }
  }
  return Layout(plan.options.mesh.axes.size());
}

Plan plan_from_labels(const Prepared& prepared, const PlanOptions& options, ProblemBuilder& builder,
                      const Solution& solution) {
  Plan plan;
  plan.options = options;
  plan.budget_bytes =
      options.memory_bytes > 0
          ? options.memory_bytes
          : static_cast<int64_t>(static_cast<double>(options.cluster.device.memory_bytes) * 0.8);
  for (size_t i = 0; i < prepared.graph.operators.size(); ++i) {
    const OperatorClass& entry = builder.classes[static_cast<size_t>(builder.class_of[i])];
    plan.choices.push_back(entry.choices[static_cast<size_t>(solution.labels[i])]);
    plan.constraint_of.push_back(builder.match(i).constraint);
  }
  for (size_t v = 0; v < prepared.graph.values.size(); ++v) {
    const int node = builder.value_nodes[v];
    if (node < 0) continue;
    const Layout& layout =
        builder.layout_of(builder.value_ports[v], solution.labels[static_cast<size_t>(node)]);
    plan.values.push_back({static_cast<int>(v), layout});
  }
  Accountant(prepared, options, builder, plan).run();
  plan.cost = plan.compute_ps + plan.communication_ps + plan.gradient_ps;
  return plan;
}

std::vector<int> ProblemBuilder::certain_bytes() {
  const std::vector<int> roots = storage_roots(prepared_);
  std::vector<int> result(problem.node_costs.size());
  std::vector<bool> kept(graph_.values.size(), false);
  for (size_t i = 0; i < graph_.operators.size(); ++i) {
    const Operator& op = graph_.operators[i];
    const BoundRule& rule = prepared_.rules[i];
    const std::vector<ValueId> inputs = op.tensor_inputs();
    std::vector<int64_t> bytes(classes[static_cast<size_t>(class_of[i])].choices.size(), 0);
    const bool differentiated = !options_.inference && !in_recompute(prepared_, i) &&
                                std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId id) {
                                  return id.valid() && graph_.value(id).requires_grad;
                                });
    // Whether this operator is the first to keep a value that an operator made.
    const auto first = [&](ValueId id) {
      if (!id.valid() || graph_.value(id).is_symbol) return false;
      const auto root = static_cast<size_t>(roots[static_cast<size_t>(id.index)]);
      const Value& base = graph_.values[root];
      if (kept[root] || base.kind != ValueKind::kIntermediate || !base.producer.valid())
        return false;
      kept[root] = true;
      return true;
    };
    if (differentiated) {
      std::vector<bool> of_inputs;
      std::vector<bool> of_outputs;
      for (size_t k = 0; k < inputs.size(); ++k)
        of_inputs.push_back(contains(rule.saved_inputs, k) && first(inputs[k]));
      for (size_t k = 0; k < op.outputs.size(); ++k) {
        of_outputs.push_back(contains(rule.saved_outputs, k) && first(op.outputs[k]));
      }
      bytes = kept_bytes(i, of_inputs, of_outputs);
    }
    result[i] = problem.pool->intern({1, static_cast<int>(bytes.size()), std::move(bytes)});
  }
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    if (value_nodes[v] < 0) continue;
    const Value& value = graph_.values[v];
    const auto node = static_cast<size_t>(value_nodes[v]);
    CostMatrix bytes{1, problem.num_labels(value_nodes[v]), {}};
    for (int label = 0; label < bytes.cols; ++label) {
      int64_t local = 0;
      if (value.kind == ValueKind::kParameter) {
        local = local_bytes(value, layout_of(value_ports[v], label), options_.mesh);
        if (value.requires_grad && !options_.inference)
          local += local + optimizer_bytes(options_.optimizer, value, local);
      }
      bytes.data.push_back(local);
    }
    result[node] = problem.pool->intern(std::move(bytes));
  }
  return result;
}

std::vector<int64_t> ProblemBuilder::kept_bytes(size_t index, const std::vector<bool>& of_inputs,
                                                const std::vector<bool>& of_outputs) {
  const Operator& op = graph_.operators[index];
  const BoundRule& rule = prepared_.rules[index];
  const std::vector<ValueId> inputs = op.tensor_inputs();
  std::vector<int64_t> result;
  for (const Choice& choice : classes[static_cast<size_t>(class_of[index])].choices) {
    int64_t bytes = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Value& value = graph_.value(inputs[k]);
      if (of_inputs[k])
        bytes +=
            local_bytes(value, input_layout(rule, choice, k, value.requires_grad), options_.mesh);
    }
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      if (!of_outputs[k]) continue;
      const Value& value = graph_.value(op.outputs[k]);
      bytes +=
          local_bytes(value, output_layout(rule, choice, k, value.requires_grad), options_.mesh);
    }
    result.push_back(bytes);
  }
  return result;
}

namespace {

/// Plans under a memory budget by a Lagrange multiplier on the bytes that every label certainly
/// takes: picoseconds a byte, raised until a plan fits, then bisected. The best bound of all
/// multipliers is the certificate.
class BudgetSearch {
 public:
  BudgetSearch(const Prepared& prepared, const PlanOptions& options, ProblemBuilder& builder)
      : prepared_(prepared), options_(options), builder_(builder), bytes_(builder.certain_bytes()) {
    for (const Value& value : prepared.graph.values) {
      if (value.kind == ValueKind::kBuffer || value.kind == ValueKind::kConstant)
        fixed_bytes_ += value.bytes();
    }
  }

  /// The cheapest plan found that fits, with its bound; the one of least memory when none does.
  Plan run(Plan first, Cost bound) {
    least_ = first;
    bound_ = bound;
    const int64_t budget = first.budget_bytes;
    // From a multiplier that changes nothing to one that outweighs all time.
    double low = 0;
    double high =
        std::max(1.0, static_cast<double>(first.cost) /
                          static_cast<double>(std::max<int64_t>(1, first.memory.total())));
    high /= 64;
    bool fits = false;
    for (int step = 0; step < 24 && !fits; ++step, high *= 2) {
      fits = attempt(high, budget);
      if (!fits) low = high;
    }
    if (!fits) return least_;
    for (int step = 0; step < 10; ++step) {
      const double middle = (low + high) / 2;
      (attempt(middle, budget) ? high : low) = middle;
    }
    best_->lower_bound = std::min(best_->cost, bound_);
    best_->method = "Lagrange multiplier on memory";
    return *best_;
  }

 private:
  bool attempt(double multiplier, int64_t budget) {
    LabelProblem weighted = builder_.problem;
    for (size_t node = 0; node < weighted.node_costs.size(); ++node) {
      CostMatrix costs = (*weighted.pool)[weighted.node_costs[node]];
      const CostMatrix& bytes = (*weighted.pool)[bytes_[node]];
      for (size_t label = 0; label < costs.data.size(); ++label) {
        costs.data[label] += static_cast<Cost>(multiplier * static_cast<double>(bytes.data[label]));
      }
      weighted.node_costs[node] = weighted.pool->intern(std::move(costs));
    }
    const Solution solution = solve(weighted);
    const auto allowance =
        static_cast<Cost>(std::ceil(multiplier * static_cast<double>(budget - fixed_bytes_)));
    bound_ = std::max(bound_, solution.lower_bound - allowance);
    Plan plan = plan_from_labels(prepared_, options_, builder_, solution);
    if (plan.memory.total() < least_.memory.total()) least_ = plan;
    if (plan.memory.total() > budget) return false;
    if (!best_ || plan.cost < best_->cost) best_ = std::move(plan);
    return true;
  }

  const Prepared& prepared_;
  const PlanOptions& options_;
  ProblemBuilder& builder_;
  std::vector<int> bytes_;
  int64_t fixed_bytes_ = 0;
  Cost bound_ = 0;
  Plan least_;
  std::optional<Plan> best_;
};

}  // namespace

namespace {

/// One warning for all operators that have no partition rule.
void warn_of_unknown(const Prepared& prepared, Plan& plan) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (size_t i = 0; i < prepared.graph.operators.size(); ++i) {
    if (prepared.rules[i].known) continue;
    const Operator& op = prepared.graph.operators[i];
    std::string name = prepared.rules[i].signature;
    if (const SourceLine* source = prepared.graph.source_of(op)) {
      name +=
          fmt::format(" ({}:{})", source->file.substr(source->file.rfind('/') + 1), source->line);
    }
    if (seen.insert(name).second) names.push_back(name);
  }
  if (names.empty()) return;
  plan.warnings.push_back(
      fmt::format("{} without a partition rule, replicated: {}; to have one split, put it into a "
                  "function and register that with "
                  "nnscaler.register_op",
                  names.size() == 1 ? "an operator is" : "operators are", join(names, ", ")));
}

}  // namespace

Plan search(const Prepared& prepared, const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ProblemBuilder builder(prepared, options);
  const Solution solution = solve(builder.problem);
  Plan plan = plan_from_labels(prepared, options, builder, solution);
  check(
      plan.cost == solution.cost,
      fmt::format("the plan's parts add up to {}, the search found {}", plan.cost, solution.cost));
  plan.lower_bound = solution.lower_bound;
  plan.method = solution.method;
  if (plan.memory.total() > plan.budget_bytes) {
    plan = BudgetSearch(prepared, options, builder).run(std::move(plan), solution.lower_bound);
  }
  plan.core_nodes = solution.core_nodes;
  plan.num_products = solution.num_products;
  plan.num_distinct_products = solution.num_distinct_products;
  plan.objective =
      "sum of computation, redistributions and gradient reductions of one step; no overlap of "
      "computation and "
      "communication is assumed, gradients travel in buckets of 25 MiB";
  warn_of_unknown(prepared, plan);
  plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (plan.memory.total() > plan.budget_bytes) refuse_memory(plan);
  return plan;
}

Plan recompute(const Prepared& prepared, const Plan& plan) {
  ProblemBuilder builder(prepared, plan.options);
  Plan result;
  result.options = plan.options;
  result.budget_bytes = plan.budget_bytes;
  result.choices = plan.choices;
  result.values = plan.values;
  result.constraint_of = plan.constraint_of;
  Accountant(prepared, plan.options, builder, result).run();
  result.cost = result.compute_ps + result.communication_ps + result.gradient_ps;
  return result;
}

std::vector<Alternative> alternatives(const Prepared& prepared, const Plan& plan, OpId op) {
  ProblemBuilder builder(prepared, plan.options);
  const auto index = static_cast<size_t>(op.index);
  const OperatorClass& entry = builder.classes[static_cast<size_t>(builder.class_of[index])];
  const CostMatrix own = (*builder.problem.pool)[builder.problem.node_costs[index]];
  std::vector<Alternative> result;
  for (size_t label = 0; label < entry.choices.size(); ++label) {
    // All other labels cost more than any plan.
    CostMatrix held = own;
    for (size_t other = 0; other < held.data.size(); ++other) {
      if (other != label) held.data[other] += Cost{1} << 58;
    }
    builder.problem.node_costs[index] = builder.problem.pool->intern(std::move(held));
    result.push_back({entry.choices[label], solve(builder.problem).cost});
  }
  return result;
}

std::string dump_problem(const Prepared& prepared, const PlanOptions& options) {
  const ProblemBuilder builder(prepared, options);
  const LabelProblem& problem = builder.problem;
  std::string text = "{\"nodes\": [";
  const auto row = [&](int id) {
    return fmt::format("[{}]", fmt::join((*problem.pool)[id].data, ","));
  };
  for (size_t i = 0; i < problem.node_costs.size(); ++i) {
    text += (i ? ",\n" : "\n") + row(problem.node_costs[i]);
  }
  text += "\n], \"edges\": [";
  for (size_t i = 0; i < problem.edges.size(); ++i) {
    const LabelProblem::Edge& edge = problem.edges[i];
    text += fmt::format("{}[{}, {}, {}]", i ? ",\n" : "\n", edge.a, edge.b, edge.matrix);
  }
  text += "\n], \"matrices\": {";
  std::set<int> used;
  for (const LabelProblem::Edge& edge : problem.edges) used.insert(edge.matrix);
  bool first = true;
  for (const int id : used) {
    text += fmt::format("{}\"{}\": {}", first ? "\n" : ",\n", id, row(id));
    first = false;
  }
  return text + "\n}}\n";
}

}  // namespace nnscaler
