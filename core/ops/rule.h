#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/annotation.h"
#include "core/ops/layout.h"

namespace nnscaler {

/// The collectives, by the names of torch.distributed.
enum class Collective : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

/// A name of an annotation, bound to one operator's shapes.
struct BoundName {
  std::string name;
  int64_t extent = 0;  ///< Whole length.
  bool splittable = true;
  std::string why_not;   ///< Where not splittable: "marked ^", "its length is symbolic", …
  bool partial = false;  ///< Outputs without the name hold partial results when it is split.
  Reduction reduction = Reduction::kSum;  ///< … of this kind.
  bool rescale =
      false;  ///< Partial outputs must be divided by the number of parts (a mean over equal parts).
  std::string
      keyword;  ///< Splitting it calls `BoundRule::callee` with the axes under this keyword.
  std::vector<int> once;  ///< Inputs without the name that must enter once, as Partial (the bias of
                          ///< a linear split along k).
};

/// A tensor of an operator: for each of its dims the names that make it up, outermost first (none:
/// a fixed extent).
struct BoundOperand {
  std::vector<std::vector<int>> dims;  ///< Indices into BoundRule::names.
  std::vector<int>
      no_gradient_sum;  ///< Names for which its gradient is whole already, not partial (`: /m`).
};

/// Communication inside an operator that is split along `name`, a step.
struct InnerCollective {
  int name = 0;
  Collective kind = Collective::kAllReduce;
  int64_t bytes = 0;            ///< Of the whole tensor communicated, unsplit.
  std::vector<int> divided_by;  ///< Names whose split divides it.
  bool backward = false;
};

/// How an operator's result can be handed on when an operand is a partial sum.
///
/// `inputs` are linear together: if all of them are Partial (gradient Replicate), so is every
/// output; all other tensor inputs are then whole, with partial gradients. Add: {0, 1} together;
/// mul: {0} and {1}, each alone.
struct LinearIn {
  std::vector<int> inputs;
};

/// An operator's partition rule, bound to its shapes: everything the planner and the lowering need
/// to know of it.
struct BoundRule {
  std::string signature;   ///< The user's name of it: "torch.nn.functional.linear".
  std::string annotation;  ///< As bound, for messages; "" for an operator without a rule.
  bool known = true;       ///< False: no table entry and no annotation; replicated, with a warning.
  std::vector<BoundName> names;
  std::vector<BoundOperand> inputs;   ///< One for each of Operator::tensor_inputs().
  std::vector<BoundOperand> outputs;  ///< One for each of Operator::outputs.
  /// Where a constraint's "input,dim" points: for each annotated input (tensor or not, in the
  /// user's order of arguments) the names of each dim. Empty inner lists for a fixed extent.
  std::vector<std::vector<std::vector<int>>> user_inputs;
  std::vector<LinearIn> linear;

  std::string callee;  ///< Runtime function that stands in when a name with a keyword is split.
  std::vector<InnerCollective> inner;
  std::string size_argument;  ///< Argument that must follow the first output's local shape ("size",
                              ///< "shape").
  std::string divide_argument;  ///< Integer argument divided by the parts of `divide_name`
                                ///< ("groups", "num_heads").
  int divide_name = -1;
  bool random = false;   ///< Draws random numbers (in training).
  bool view = false;     ///< Outputs share memory with the first input; moves no bytes.
  bool mutates = false;  ///< Writes its first input in place.
  std::vector<int>
      mutated_inputs;  ///< Tensor inputs that it writes (batch_norm: the running statistics).

  double forward_flops = 0;        ///< Of the whole operator.
  double backward_flops = 0;       ///< With respect to all inputs that need a gradient.
  std::vector<int> saved_inputs;   ///< Tensor inputs that backward keeps.
  std::vector<int> saved_outputs;  ///< Outputs that backward keeps.
  bool fused = false;              ///< Costs nothing of its own (a no-op cast, a detach).
};

/// Binds the table's entry, or the user's annotation, to one operator. Never raises for an operator
/// that exported: what has no rule comes back with `known == false`, no names, and operands without
/// names. Raises InputError when a registered annotation does not fit the shapes, naming function,
/// annotation and shapes.
BoundRule bind_rule(const Graph& graph, const Operator& op);

/// Every signature under which a constraint may name this operator; the canonical one first
/// ("torch.matmul", "torch.Tensor.matmul", "_operator.matmul", "torch.mm", …).
std::vector<std::string> signatures_of(const Graph& graph, const Operator& op);

/// All signatures that the table knows, sorted: for messages about unknown names.
std::vector<std::string> known_signatures();

/// One line of the table, for `nnscaler operators` and the documentation.
struct TableRow {
  std::string family, target, signature, annotation;
};
std::vector<TableRow> operator_table();

}  // namespace nnscaler
