#include "core/lower/expose.h"

#include <algorithm>
#include <map>

#include "core/plan/redistribute.h"

namespace nnscaler {

std::vector<std::string> expose_results(Prepared& prepared, Plan& plan) {
  Graph& graph = prepared.graph;
  const Cluster cluster = load_cluster(plan.options.cluster_name);
  Redistributor redistributor(cluster, plan.options.mesh);
  std::erase_if(plan.redistributions, [](const PlannedRedistribution& move) {
    return move.reader == PlannedRedistribution::kModelOutput;
  });
  std::map<int, const Layout*> copies;
  for (const ValuePlan& entry : plan.values) copies[entry.value] = &entry.layout;
  graph.outputs.clear();
  graph.output = {};
  graph.output.kind = Tree::Kind::kList;
  std::vector<std::string> descriptions;
  const Layout whole(plan.options.mesh.axes.size());
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const std::vector<ValueId>& outputs = graph.operators[i].outputs;
    if (outputs.empty() || !outputs[0].valid() || graph.value(outputs[0]).is_symbol) continue;
    if (graph.operators[i].training_only) continue;
    const ValueId id = outputs[0];
    const Value& value = graph.value(id);
    const auto copy = copies.find(id.index);
    PlannedRedistribution move;
    move.value = id.index;
    move.reader = PlannedRedistribution::kModelOutput;
    move.from = copy != copies.end() ? *copy->second : produced_layout(prepared, plan, id);
    move.to = whole;
    if (move.from != move.to) {
      move.forward =
          redistributor
              .path(value, Redistributor::values(move.from), Redistributor::values(move.to))
              .steps;
      if (value.requires_grad && !plan.options.inference) {
        move.backward =
            redistributor
                .path(value, Redistributor::gradients(move.to), Redistributor::gradients(move.from))
                .steps;
      }
      plan.redistributions.push_back(std::move(move));
    }
    Tree leaf;
    leaf.leaf = static_cast<int>(graph.outputs.size());
    graph.output.children.push_back(leaf);
    graph.outputs.push_back(id);
    descriptions.push_back(describe(prepared, OpId{static_cast<int>(i)}));
  }
  return descriptions;
}

}  // namespace nnscaler
