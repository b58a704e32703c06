#pragma once

// What the parts of the archive reader share. Not for other folders: they include archive.h.

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/json.h"
#include "core/graph/zip.h"

namespace nnscaler {

/// A graph being read, and what the archive calls its parts. Views point into the model's JSON.
struct Draft {
  Graph graph;

  struct Node {
    std::string_view name;    ///< Of the node.
    std::string_view output;  ///< Of its first output.
  };
  std::vector<Node> nodes;  ///< One an operator.

  /// A region's body that was put in the place of the node that called it.
  struct Body {
    std::string_view name;    ///< Of the calling node.
    std::string_view output;  ///< Its first output.
    int begin = 0, end = 0;   ///< Operators.
  };
  std::vector<Body> bodies;
  /// Nodes of assertions, which are left out, and how many operators come before each.
  std::vector<std::pair<std::string_view, int>> dropped;

  std::unordered_map<std::string_view, ValueId> by_fqn;  ///< Parameters, buffers, constants.
  /// Python source of each graph input that is a constant, "" for the others.
  std::vector<std::string> input_literals;
  std::vector<std::string> output_literals;
};

// In order of use.

/// models/model.json: values, operators, regions, stacks and traces.
void read_program(const JsonReader& json, Draft& draft);
/// extra/nnscaler.json: ties, recompute regions, leaf functions, the forward signature, …
void read_extra(const JsonReader& json, Draft& draft);
/// The forward signature from the model's JSON alone, where there is no extra/nnscaler.json.
void read_signature(const JsonReader& json, Draft& draft);
/// Gives every operator without a module stack the common prefix of its neighbours'.
void fill_stacks(Graph& graph);
/// Sets Value::requires_grad of what operators write, which archives always leave false.
void propagate_gradients(Graph& graph);
/// Drops operators without effect whose outputs nobody reads, then values and regions that nothing
/// uses; keeps ids dense.
void drop_dead(Graph& graph);

/// All of the above. `extra` may be nullptr.
Graph read_graph(const JsonReader& model, const JsonReader* extra);

/// Whether `op` writes its first argument: `add_`, `__iadd__`.
bool writes_in_place(const Operator& op);

}  // namespace nnscaler
