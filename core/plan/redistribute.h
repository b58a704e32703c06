#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/cost/cluster.h"
#include "core/graph/graph.h"
#include "core/ops/layout.h"
#include "core/plan/solve.h"
#include "core/plan/step.h"

namespace nnscaler {

/// Cheapest redistributions between any two layouts of a value: shortest paths over the placements
/// of its axes, one step an edge.
///
/// A dim that several axes shard nests in mesh order, so only the innermost axis of a dim may leave
/// or enter it.
class Redistributor {
 public:
  Redistributor(const Cluster& cluster, const Mesh& mesh) : cluster_(cluster), mesh_(mesh) {}

  /// Steps that turn placements `from` into `to`, with their time and the bytes that one rank
  /// sends.
  struct Path {
    Steps steps;
    Cost cost = 0;
    int64_t sent_bytes = 0;
  };
  using Placements = std::vector<Placement>;
  const Path& path(const Value& value, const Placements& from, const Placements& to);

  /// Forward from `from` to `to`, and backward (of the gradient, the other way round) where the
  /// value needs one.
  Cost cost(const Value& value, const Layout& from, const Layout& to);

  static Placements values(const Layout& layout);
  static Placements gradients(const Layout& layout);

 private:
  /// What paths depend on: the shape and the bytes.
  struct Key {
    std::vector<int64_t> shape;
    int64_t bytes;
    auto operator<=>(const Key&) const = default;
  };
  struct Table {
    std::vector<int64_t> shape;
    int64_t bytes = 0;
    std::map<Placements, std::map<Placements, Path>> paths;  // by source
  };
  Table& table(const Value& value);
  /// All shortest paths from one placement (Dijkstra).
  std::map<Placements, Path> search(const Table& table, const Placements& from) const;

  const Cluster& cluster_;
  const Mesh& mesh_;
  std::map<Key, Table> tables_;
};

}  // namespace nnscaler
