#pragma once

#include <functional>
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

/// What print_graph shows.
struct PrintOptions {
  /// The user's name of an operator; its target where there is none.
  std::function<std::string(const Operator&)> name;
  /// Appended to an operator's line, such as its annotation; may be empty.
  std::function<std::string(const Operator&)> note;
  /// Whether an operator is shown; all are where there is none.
  std::function<bool(const Operator&)> keep;
  bool fold = true;  ///< Show equal neighbouring modules once.
};

/// Listing of a graph for people: what goes in and out, parameters, ties, then every operator in
/// the tree of modules that called it, equal layers folded.
std::string print_graph(const Graph& graph, const PrintOptions& options = {});

/// An argument as Python would print it: "x", "fc.weight", "[2, -1]", "torch.float32".
std::string print_argument(const Graph& graph, const Argument& argument);

/// What a caller sees of a value: its name in the user's module, or in the graph.
const std::string& display_name(const Value& value);

}  // namespace nnscaler
