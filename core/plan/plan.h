#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/cost/cluster.h"
#include "core/graph/graph.h"
#include "core/ops/rule.h"
#include "core/plan/choice.h"
#include "core/plan/constraints.h"
#include "core/plan/solve.h"
#include "core/plan/step.h"

namespace nnscaler {

/// What a search takes for granted; all of it is written into the plan.
struct PlanOptions {
  Mesh mesh;
  Cluster cluster;
  std::string cluster_name;  ///< As the user gave it.
  std::vector<Constraint> constraints;
  std::string constraints_path;
  std::string recompute_modules;    ///< Comma list, as in constraints.
  std::string optimizer = "adamw";  ///< "adamw", "adam", "sgd", "sgd-momentum" or "none".
  int64_t memory_bytes = 0;         ///< A device's budget; 0 is 0.8 of the device's memory.
  int units = 1;                    ///< Copies of the plan (data parallel).
  int microbatches = 1;             ///< Forward and backward passes a step.
  bool inference = false;           ///< No backward, no gradients, no optimizer.
  /// Partitions given by a policy: operator index -> one text a mesh axis ("replicate", "k", …), or
  /// only "auto" for one that the search decides.
  std::map<int, std::vector<std::string>> forced;
  bool others_replicate = false;  ///< Operators that `forced` leaves out are replicated.
};

/// Bytes of one rank, by what they are for.
struct MemoryUse {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buffers = 0;
  int64_t activations = 0;  ///< Kept for backward, each once, of all microbatches in flight (one).
  int64_t transient =
      0;  ///< Largest working set of one operator or recompute region on top of that.
  int64_t total() const {
    return parameters + gradients + optimizer + buffers + activations + transient;
  }
};

/// A parameter's, buffer's or shared copy's layout.
struct ValuePlan {
  int value = -1;  ///< In Graph::values.
  Layout layout;
};

/// A redistribution that the plan contains.
struct PlannedRedistribution {
  static constexpr int kSharedCopy = -1;   ///< the copy that several readers share
  static constexpr int kModelOutput = -2;  ///< the model's output, which leaves whole
  int value = -1;
  int reader = kSharedCopy;  ///< Operator index, kSharedCopy or kModelOutput.
  int operand = -1;          ///< Which of the reader's tensor inputs.
  Layout from, to;
  Steps forward, backward;
  Cost forward_ps = 0, backward_ps = 0;
  int64_t forward_bytes = 0, backward_bytes = 0;  ///< Sent by one rank.
};

struct GradientReduction {
  int value = -1;
  std::vector<int> axes;  ///< Mesh axes over which the gradient is partial.
  int64_t bytes = 0;      ///< Of the local gradient.
  int64_t sent_bytes = 0;
  Cost ps = 0;  ///< Units included.
};

/// A partition for every operator and a layout for every value, with what they cost.
struct Plan {
  PlanOptions options;
  std::string archive;  ///< Path, as given.
  std::string archive_digest;
  std::vector<Choice> choices;     ///< One for each operator of the prepared graph.
  std::vector<ValuePlan> values;   ///< Parameters that rest, and copies shared by several readers.
  std::vector<int> constraint_of;  ///< Index of the rule that held for each operator, -1 for none.
  std::vector<Cost> operator_ps;   ///< Time of each operator, forward and backward, a microbatch.
  std::vector<PlannedRedistribution> redistributions;
  std::vector<GradientReduction> reductions;
  MemoryUse memory;
  int64_t budget_bytes = 0;

  Cost cost = 0;  ///< Of a step, in picoseconds.
  Cost lower_bound = 0;
  Cost compute_ps = 0, communication_ps = 0, gradient_ps = 0;  ///< They add up to `cost`.
  std::string method;                                          ///< How the bound was proven.
  std::string objective;                                       ///< What was minimised, in words.
  int core_nodes = 0, num_products = 0, num_distinct_products = 0;
  double search_seconds = 0;  ///< Not written to plan.json: it must not depend on the machine.
  std::vector<std::string> warnings;

  double gap() const {
    return cost == 0 ? 0 : static_cast<double>(cost - lower_bound) / static_cast<double>(cost);
  }
};

/// The graph made ready for planning: tied parameters become one value, simple in-place operators
/// functional, operators that depend on no parameter and no input are marked.
/// Deterministic, so that a plan can be applied to the same archive later.
struct Prepared {
  Graph graph;
  std::vector<BoundRule> rules;  ///< One for each operator.
  std::vector<bool> pinned;      ///< Must be replicated: it takes part in in-place writes.
  std::vector<bool> constant;  ///< Depends on no parameter and no input: every rank does all of it.
  std::vector<int> recompute_group;  ///< Of `recompute_modules`; -1 none.
  std::vector<bool>
      tied;  ///< By value: another name of a parameter or buffer that comes before it.
};
Prepared prepare(Graph graph, const std::string& recompute_modules = "");

/// Searches the best plan. Raises InputError for constraints or forced partitions that can't hold,
/// InfeasibleError when no plan fits the memory, naming what needs how much and what would help.
Plan search(const Prepared& prepared, const PlanOptions& options);

/// The same choices and layouts with everything that follows from them computed anew: cost,
/// redistributions, memory.
Plan recompute(const Prepared& prepared, const Plan& plan);

/// Cost of the best plan with one operator held at each of its choices (min-marginals), all else
/// chosen anew.
struct Alternative {
  Choice choice;
  Cost cost = 0;
};
std::vector<Alternative> alternatives(const Prepared& prepared, const Plan& plan, OpId op);

/// The labelling problem of the search as JSON, for checking it with another solver.
std::string dump_problem(const Prepared& prepared, const PlanOptions& options);

/// The prepared operators as JSON, for policies written in Python: what each is called, where it
/// stands, its annotation, and which name of it "input,dim" means.
std::string operators_json(const Prepared& prepared);

/// plan.json. Deterministic; one line an operator. See docs/plan.md for the schema.
std::string to_json(const Plan& plan, const Prepared& prepared);

/// Reads plan.json back, for the archive's prepared graph. Raises InputError naming `file` and the
/// place: malformed, unknown version, made for another archive (digests), unknown operator or
/// partition.
Plan plan_from_json(const std::string& text, const std::string& file, const Prepared& prepared);

/// The `recompute_modules` of a plan.json, which prepare() needs before the plan can be read.
std::string recompute_modules_of(const std::string& text, const std::string& file);

/// Layout in which a value leaves its producer (inputs and constants: Replicate; parameters: at
/// rest).
Layout produced_layout(const Prepared& prepared, const Plan& plan, ValueId value);

/// "torch.nn.functional.linear of layers.0.mlp (model.py:14)"
std::string describe(const Prepared& prepared, OpId op);

}  // namespace nnscaler
