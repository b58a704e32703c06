#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/cost/cluster.h"
#include "core/cost/time.h"

namespace nnscaler {

namespace {

/// A group of ranks as the links see it.
struct Group {
  int64_t size = 1;
  int64_t nodes = 1;
  int64_t per_node = 1;  ///< Members in the node that has the fewest.
};

/// Ranks at a regular distance.
struct Run {
  int64_t size, stride;
};

/// The axes of a group, innermost first, as few runs as describe them.
std::vector<Run> runs_of(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<Run> runs;
  int64_t stride = 1;
  for (size_t axis = mesh.axes.size(); axis-- > 0;) {
    const int64_t size = mesh.axes[axis].size;
    if (std::find(axes.begin(), axes.end(), static_cast<int>(axis)) != axes.end() && size > 1) {
      if (!runs.empty() && runs.back().stride * runs.back().size == stride) {
        runs.back().size *= size;
      } else {
        runs.push_back({size, stride});
      }
    }
    stride *= size;
  }
  return runs;
}

/// Ranks of a group relative to its first, ascending.
std::vector<int64_t> offsets_of(const std::vector<Run>& runs) {
  std::vector<int64_t> offsets = {0};
  for (const Run& run : runs) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(run.size));
    for (int64_t c = 0; c < run.size; ++c) {
      for (const int64_t offset : offsets) next.push_back(offset + c * run.stride);
    }
    offsets = std::move(next);
  }
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

/// The group that starts at rank `first`.
Group place(const std::vector<int64_t>& offsets, int64_t first, int64_t devices_per_node) {
  Group group;
  group.size = static_cast<int64_t>(offsets.size());
  group.nodes = 0;
  group.per_node = group.size;
  int64_t node = -1, members = 0;
  for (const int64_t offset : offsets) {
    const int64_t here = (first + offset) / devices_per_node;
    if (here == node) {
      ++members;
      continue;
    }
    if (node >= 0) group.per_node = std::min(group.per_node, members);
    ++group.nodes;
    node = here;
    members = 1;
  }
  group.per_node = std::min(group.per_node, members);
  return group;
}

/// Time of a group where the algorithm is a ring (an exchange of pairs for all-to-all).
int64_t group_ps(const Cluster& cluster, const Group& group, Collective kind, int64_t bytes) {
  if (group.size <= 1) return 0;
  const double n = static_cast<double>(group.size);
  const double sent =
      static_cast<double>(collective_sent_bytes(static_cast<int>(group.size), kind, bytes));
  const auto ps = [](int64_t latency) { return static_cast<double>(latency); };
  const double rounds = kind == Collective::kAllReduce ? 2 : 1;
  double within_bps = cluster.within.bytes_per_second;
  if (cluster.within.peer_bytes_per_second > 0) {
    const int64_t peers = (group.nodes == 1 ? group.size : group.per_node) - 1;
    within_bps = std::min(within_bps, cluster.within.peer_bytes_per_second *
                                          static_cast<double>(std::max<int64_t>(peers, 1)));
  }
  double latency_ps = 0, transfer_s = 0;
  if (group.nodes == 1) {
    latency_ps = ps(cluster.within.base_ps) + rounds * (n - 1) * ps(cluster.within.latency_ps);
    transfer_s = sent / within_bps;
  } else {
    const double m = static_cast<double>(group.per_node);
    const double crossings =
        kind == Collective::kAllToAll ? n - m : static_cast<double>(group.nodes - 1);
    // A ring that visits node after node closes over a crossing too: with one member a node, every
    // hop is one.
    const double crossed = group.nodes == group.size ? n - 1 : crossings;
    const double base_ps = ps(std::max(cluster.within.base_ps, cluster.between.base_ps));
    latency_ps = base_ps + rounds * (crossed * ps(cluster.between.latency_ps) +
                                     (n - 1 - crossed) * ps(cluster.within.latency_ps));
    if (kind == Collective::kAllToAll) {
      // Both kinds of link work at once; each carries the peers behind it.
      transfer_s = std::max(sent * (m - 1) / (n - 1) / within_bps,
                            sent * (n - m) / (n - 1) / cluster.between.bytes_per_second);
    } else {
      // A node's members each bring their own network link, and rings run through all of them.
      double bps = m * cluster.between.bytes_per_second;
      if (group.per_node > 1) bps = std::min(bps, within_bps);
      transfer_s = sent / bps;
      if (kind == Collective::kAllReduce) {
        // Over many nodes two binary trees, chains within nodes, have fewer steps for more bytes.
        const double depth = std::ceil(std::log2(static_cast<double>(group.nodes)));
        const double tree_ps = base_ps + 2 * (depth * ps(cluster.between.latency_ps) +
                                              (m - 1) * ps(cluster.within.latency_ps));
        const double tree_s = 2 * static_cast<double>(bytes) / bps;
        if (tree_ps / 1e12 + tree_s < latency_ps / 1e12 + transfer_s) {
          latency_ps = tree_ps;
          transfer_s = tree_s;
        }
      }
    }
  }
  return std::min(to_ps(latency_ps / 1e12) + to_ps(transfer_s), kLongestPs);
}

/// Where nodes and runs fit each other every group looks alike, and no rank need be walked.
std::optional<Group> regular(const Run& run, int64_t devices_per_node) {
  const int64_t span = run.size * run.stride;
  if (devices_per_node % span == 0) return Group{run.size, 1, run.size};
  if (run.stride % devices_per_node == 0) return Group{run.size, run.size, 1};
  if (devices_per_node % run.stride == 0 && span % devices_per_node == 0) {
    return Group{run.size, span / devices_per_node, devices_per_node / run.stride};
  }
  return std::nullopt;
}

/// The slowest group among those that start at ranks below `num_devices`, at coordinate 0 of each
/// run.
int64_t slowest_ps(const Cluster& cluster, const std::vector<Run>& runs, int64_t num_devices,
                   Collective kind, int64_t bytes) {
  if (runs.empty()) return 0;
  const int64_t per_node = std::max(cluster.devices_per_node, 1);
  if (num_devices <= per_node) {
    int64_t size = 1;
    for (const Run& run : runs) size *= run.size;
    return group_ps(cluster, {size, 1, size}, kind, bytes);
  }
  if (runs.size() == 1) {
    if (const auto group = regular(runs[0], per_node)) {
      return group_ps(cluster, *group, kind, bytes);
    }
  }
  const std::vector<int64_t> offsets = offsets_of(runs);
  std::vector<bool> seen(static_cast<size_t>(per_node));  // only the place in its node matters
  int64_t slowest = 0;
  for (int64_t first = 0; first < num_devices; ++first) {
    const bool starts = std::all_of(runs.begin(), runs.end(), [first](const Run& run) {
      return first / run.stride % run.size == 0;
    });
    if (!starts || seen[static_cast<size_t>(first % per_node)]) continue;
    seen[static_cast<size_t>(first % per_node)] = true;
    slowest = std::max(slowest, group_ps(cluster, place(offsets, first, per_node), kind, bytes));
  }
  return slowest;
}

}  // namespace

int64_t collective_sent_bytes(int group_size, Collective kind, int64_t bytes) {
  if (group_size <= 1 || bytes <= 0) return 0;
  const int64_t to_others = bytes - bytes / group_size;
  switch (kind) {
    case Collective::kAllReduce:
      return to_others > std::numeric_limits<int64_t>::max() / 2
                 ? std::numeric_limits<int64_t>::max()
                 : 2 * to_others;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return to_others;
    case Collective::kAllToAll: {
      const int64_t own = bytes / group_size + (bytes % group_size != 0 ? 1 : 0);
      return own - own / group_size;
    }
    case Collective::kBroadcast:
      return bytes;
  }
  return 0;
}

int64_t collective_ps(const Cluster& cluster, const Mesh& mesh, const std::vector<int>& axes,
                      Collective kind, int64_t bytes) {
  int64_t num_devices = 1;
  for (const MeshAxis& axis : mesh.axes) num_devices *= axis.size;
  return slowest_ps(cluster, runs_of(mesh, axes), num_devices, kind, bytes);
}

int64_t group_collective_ps(const Cluster& cluster, int size, int stride, Collective kind,
                            int64_t bytes) {
  if (size <= 1) return 0;
  return slowest_ps(cluster, {{size, stride}}, int64_t{size} * stride, kind, bytes);
}

}  // namespace nnscaler
