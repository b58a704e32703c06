#pragma once

#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/plan/choice.h"
#include "core/plan/constraints.h"
#include "core/plan/plan.h"
#include "core/plan/redistribute.h"
#include "core/plan/solve.h"

namespace nnscaler {

/// Operators that are alike: same target, arguments, shapes and rules. They share choices, costs
/// and layouts.
struct OperatorClass {
  std::vector<Choice> choices;
  int costs = 0;                 ///< Vector of the pool.
  std::vector<int> input_ports;  ///< One for each tensor input: the layout that each choice wants.
  std::vector<int> output_ports;
};

/// Turns a graph into a labelling problem (design: one node an operator; a node for a value where
/// it has several readers, for parameters, inputs and constants; elsewhere the edge carries the
/// cheapest redistribution).
class ProblemBuilder {
 public:
  ProblemBuilder(const Prepared& prepared, const PlanOptions& options);

  LabelProblem problem;  ///< Nodes: operators by index, then values.
  std::vector<OperatorClass> classes;
  std::vector<int> class_of;     ///< By operator.
  std::vector<int> value_nodes;  ///< By value; -1 for none.
  std::vector<int> value_ports;  ///< By value: the layouts of its node's labels.

  /// Bytes that each label of each node certainly takes, as vectors of the pool: parameters,
  /// gradients and optimizer states; activations kept for backward, each counted at the first
  /// operator that keeps it. Never more than MemoryUse::total() of a plan with these labels.
  std::vector<int> certain_bytes();

  const Layout& layout_of(int port, int label) const {
    return layouts_[static_cast<size_t>(
        ports_[static_cast<size_t>(port)][static_cast<size_t>(label)])];
  }
  const ConstraintMatch& match(size_t op) const { return matches_[op]; }
  Redistributor& redistributor() { return redistributor_; }
  /// Forward and backward of one operator under a choice, all microbatches, in picoseconds.
  Cost operator_cost(size_t index, const Choice& choice);

 private:
  void build();
  Layout whole() const;
  std::vector<int64_t> kept_bytes(size_t op, const std::vector<bool>& inputs,
                                  const std::vector<bool>& outputs);
  bool allowed(const Choice& choice, const ConstraintMatch& match) const;
  Choice forced_choice(size_t index, const std::vector<std::string>& texts) const;
  int operator_class(size_t index);
  /// A list of layouts, one a label, stored once.
  int port(std::vector<Layout> layouts);
  int shape_class(ValueId id);
  Cost move_cost(int shape, int from, int to, bool twice);
  int edge_matrix(int shape, int from_port, int to_port, bool twice);
  std::vector<Layout> value_layouts(ValueId id, const std::vector<int>& ports);

  const Prepared& prepared_;
  const Graph& graph_;
  const PlanOptions& options_;
  Redistributor redistributor_;
  std::vector<ConstraintMatch> matches_;
  std::unordered_map<std::string, int> class_ids_;
  std::map<Layout, int> layout_ids_;
  std::vector<Layout> layouts_;
  std::map<std::vector<int>, int> port_ids_;
  std::vector<std::vector<int>> ports_;
  std::unordered_map<std::string, int> shape_classes_;
  std::vector<const Value*> shape_values_;
  std::map<std::tuple<int, int, int, bool>, Cost> move_costs_;
  std::map<std::tuple<int, int, int, bool>, int> edge_matrices_;
};

}  // namespace nnscaler
