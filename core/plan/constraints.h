#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/rule.h"

namespace nnscaler {

/// One entry of a constraints file.
struct Constraint {
  std::string name;                               ///< Signature, as the user wrote it.
  std::string parent_module;                      ///< "" matches every module.
  std::vector<std::pair<int, int>> allowed_dims;  ///< (input, dim) pairs.
  bool replica_allowed = true;
  std::string where;  ///< "constraints.yaml:14:3"
  std::string text;   ///< The rule as one line, for messages and explanations.
  std::string name_where, parent_where;
  std::vector<std::string> dims_where;  ///< Of each of allowed_dims.
};

/// Reads a constraints file (YAML; `text` is its content, `file` stands in messages).
///
/// All mistakes of the file are reported at once, one line each, joined by newlines: malformed
/// YAML, a missing or null `allowed_partition_dims`, an unknown key with the nearest one, a wrong
/// type, a malformed "input,dim", a malformed parent, a rule that leaves nothing, two rules with
/// the same name and parent. A pair may be a text ("1,0", "1, 0") or a list of two ([1, 0]).
std::vector<Constraint> parse_constraints(const std::string& text, const std::string& file);

/// What the constraints say about each operator.
struct ConstraintMatch {
  int constraint = -1;              ///< Index of the rule that holds, -1 for none.
  std::vector<bool> allowed_names;  ///< For each of BoundRule::names; meaningful with a constraint.
  bool replica_allowed = true;
};

/// How a parent pattern matches a chain of modules: as a contiguous run of whole components, either
/// of short class names (also one full class name) or of a qualified name; `*` is one component.
/// The nearest match counts, then the longer. `distance` counts the modules between the match's end
/// and the operator; "" matches everything, from outside the root.
struct ModuleMatch {
  bool matches = false;
  int distance = 0;
  int length = 0;
};
ModuleMatch match_module(const std::string& pattern, const ModuleStack& stack);

/// The names that constraints may use.
struct Signatures {
  std::vector<std::vector<std::string>> of_operators;  ///< For each operator, canonical first.
  std::vector<std::string> known;                      ///< All that the operator table has.
};

/// Applies rules to a graph; of several that match an operator, the one whose match ends closest
/// holds, then the longer one. A pair stands for the outermost splittable name at its place, and so
/// for every place with that name; it must fit at least one of the operators that its rule matches.
///
/// Raises InputError (all mistakes at once): a rule that matches nothing (nearest names), an input
/// or dimension that no matched operator has, a dimension that may not be split (with the
/// annotation and the reason), a rule that asks something of operators without a rule, an operator
/// that must be split and cannot be (no allowed dimension, or none that the axes divide evenly),
/// two different rules that hold equally. `axis_sizes` are the mesh's.
std::vector<ConstraintMatch> match_constraints(const Graph& graph,
                                               const std::vector<BoundRule>& rules,
                                               const std::vector<Constraint>& constraints,
                                               const std::vector<int>& axis_sizes);
std::vector<ConstraintMatch> match_constraints(const Graph& graph,
                                               const std::vector<BoundRule>& rules,
                                               const std::vector<Constraint>& constraints,
                                               const std::vector<int>& axis_sizes,
                                               const Signatures& signatures);

/// Operators to recompute for `recompute_modules`: a comma list of patterns as above ("ROOT" is the
/// whole model). The outermost match wins; each module instance (and call) is one group. Returns
/// the group of each operator, -1 for none; groups count in the order of operators. Raises
/// InputError naming a pattern that matches nothing, or only a container that is never called.
std::vector<int> match_recompute(const Graph& graph, const std::string& modules);

}  // namespace nnscaler
