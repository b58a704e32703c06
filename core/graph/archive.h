#pragma once

#include <string>

#include "core/graph/graph.h"

namespace nnscaler {

/// Reads a torch.export archive (`.pt2`, a zip) without PyTorch.
///
/// Schema major 8; another major is an error, a newer minor a warning in Graph::warnings. Bodies of
/// `wrap_with_set_grad_enabled` and `wrap_with_autocast` are inlined and become regions.
/// `extra/nnscaler.json`, written by `nnscaler.export`, brings ties, recompute regions, leaf
/// functions and the forward signature; without it the archive is read as far as it goes.
/// Assertions on metadata and dead operators without effect are dropped.
///
/// Raises InputError naming the file, and the JSON's place, for anything malformed.
Graph read_archive(const std::string& path);

/// Raw bytes of one tensor of the archive (constants and, where present, weights), contiguous.
std::string read_tensor(const std::string& path, const std::string& fqn);

/// The same reader on bytes in memory; for fuzzing. `name` stands in messages.
Graph read_archive_bytes(const std::string& bytes, const std::string& name);

/// Listing of a graph for people (`nnscaler inspect`).
std::string print_graph(const Graph& graph);

}  // namespace nnscaler
