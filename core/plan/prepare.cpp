#include <algorithm>
#include <unordered_map>

#include "core/ops/alias.h"
#include "core/plan/plan.h"

namespace nnscaler {

namespace {

void replace_uses(Graph& graph, const std::unordered_map<int, ValueId>& replacement) {
  const auto replaced = [&](ValueId& id) {
    const auto it = replacement.find(id.index);
    if (it != replacement.end()) id = it->second;
  };
  for (Operator& op : graph.operators) {
    for (Argument& argument : op.args) {
      if (auto* id = std::get_if<ValueId>(&argument.value)) replaced(*id);
      if (auto* list = std::get_if<TensorList>(&argument.value)) {
        for (ValueId& id : *list) replaced(id);
      }
    }
  }
  for (ValueId& id : graph.outputs) replaced(id);
}

/// All names of a tied tensor read the first one's value.
std::vector<bool> merge_ties(Graph& graph) {
  std::vector<bool> tied(graph.values.size(), false);
  std::unordered_map<std::string, int> by_name;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer) {
      by_name.emplace(value.fqn, static_cast<int>(i));
    }
  }
  std::unordered_map<int, ValueId> replacement;
  for (const std::vector<std::string>& names : graph.ties) {
    ValueId first;
    for (const std::string& name : names) {
      const auto it = by_name.find(name);
      if (it == by_name.end()) continue;
      if (first.valid()) {
        replacement[it->second] = first;
        tied[static_cast<size_t>(it->second)] = true;
      } else {
        first = ValueId{it->second};
      }
    }
  }
  replace_uses(graph, replacement);
  return tied;
}

/// Operators that depend on no parameter, no input and nothing random: rotary tables, default
/// masks.
std::vector<bool> find_constant(const Graph& graph, const std::vector<BoundRule>& rules,
                                const std::vector<bool>& pinned) {
  std::vector<bool> constant(graph.operators.size(), false);
  std::vector<bool> written(graph.values.size(), false);
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const std::vector<ValueId> inputs = graph.operators[i].tensor_inputs();
    for (const int input : rules[i].mutated_inputs) {
      written[static_cast<size_t>(inputs[static_cast<size_t>(input)].index)] = true;
    }
  }
  const auto is_constant = [&](ValueId id) {
    const Value& value = graph.value(id);
    if (written[static_cast<size_t>(id.index)] || value.is_symbol) return false;
    if (value.kind == ValueKind::kIntermediate)
      return value.producer.valid() && constant[static_cast<size_t>(value.producer.index)];
    return value.kind == ValueKind::kBuffer || value.kind == ValueKind::kConstant;
  };
  const auto symbolic = [](const Argument& argument) {
    if (std::holds_alternative<SymInt>(argument.value)) return true;
    const auto* list = std::get_if<std::vector<SymInt>>(&argument.value);
    return list && std::any_of(list->begin(), list->end(),
                               [](const SymInt& s) { return s.symbol.valid(); });
  };
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    const std::vector<ValueId> inputs = op.tensor_inputs();
    const bool is_symbol = std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId id) {
      return id.valid() && graph.value(id).is_symbol;
    });
    constant[i] = !pinned[i] && !rules[i].random && rules[i].known && !rules[i].mutates &&
                  !op.training_only && !is_symbol && op.target.rfind("aten.", 0) == 0 &&
                  std::all_of(inputs.begin(), inputs.end(), is_constant) &&
                  std::none_of(op.args.begin(), op.args.end(), symbolic);
  }
  return constant;
}

}  // namespace

Prepared prepare(Graph graph, const std::string& recompute_modules) {
  Prepared prepared;
  prepared.graph = std::move(graph);
  prepared.tied = merge_ties(prepared.graph);
  prepared.pinned = resolve_aliases(prepared.graph);
  prepared.rules.reserve(prepared.graph.operators.size());
  for (const Operator& op : prepared.graph.operators)
    prepared.rules.push_back(bind_rule(prepared.graph, op));
  prepared.constant = find_constant(prepared.graph, prepared.rules, prepared.pinned);
  prepared.recompute_group = match_recompute(prepared.graph, recompute_modules);
  return prepared;
}

}  // namespace nnscaler
