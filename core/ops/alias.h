#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace nnscaler {

/// What writes in place mean for a plan.
struct AliasInfo {
  /// Operators that must be replicated, their operands whole and not copied: they read or make a
  /// member of a family of tensors that share memory, one of which is written. By operator.
  std::vector<bool> pinned;
  /// In-place operators whose result can be a new tensor: nobody sees the old one afterwards.
  std::vector<OpId> simple;
};

/// Finds out who shares memory with whom and who writes it. An operator that writes a parameter,
/// buffer, constant or input is never simple; only the operators that touch that tensor are pinned.
AliasInfo analyse_aliases(const Graph& graph);

/// Rewrites the simple in-place operators: `aten.add_.Tensor` becomes `aten.add.Tensor`, and later
/// readers of its input read its output. What has no functional twin is left alone.
void functionalize_simple(Graph& graph, const AliasInfo& info);

/// Both: makes functional what can be, and says which operators of the new graph are pinned.
std::vector<bool> resolve_aliases(Graph& graph);

}  // namespace nnscaler
