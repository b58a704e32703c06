#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/layout.h"
#include "core/ops/rule.h"

namespace nnscaler {

/// α–β description of what connects devices, for one device and direction.
struct Link {
  std::string name;             ///< "NVLink4", "InfiniBand NDR"
  double bytes_per_second = 0;  ///< Achievable, per device per direction.
  double peer_bytes_per_second =
      0;                   ///< Where each pair of devices has its own link: of one; else 0.
  int64_t latency_ps = 0;  ///< α, once per step of a ring.
  int64_t base_ps = 0;     ///< Once a collective: launch and protocol.
  bool operator==(const Link&) const = default;
};

/// One kind of device. Every number has its source beside it in core/cost/devices/*.yaml.
struct Device {
  std::string name;               ///< "h100-80gb"
  std::string title;              ///< "NVIDIA H100 SXM 80 GB"
  std::map<DType, double> flops;  ///< Peak of dense matrix products, a second, by element type.
  double matmul_efficiency = 1;   ///< Share of the peak that large products reach.
  double bytes_per_second = 0;    ///< Of the device's memory, achievable.
  int64_t memory_bytes = 0;
  int64_t launch_ps = 0;  ///< Overhead of starting one operator.
};

/// Devices, how many stand in a node, and what links them.
struct Cluster {
  Device device;
  int devices_per_node = 1;
  Link within;         ///< Between devices of a node.
  Link between;        ///< Between nodes, per device.
  std::string source;  ///< Where it came from: a file, or "built-in h100-80gb".
};

/// A built-in device's name ("h100-80gb", also "H100" or what torch calls it) or a cluster file
/// (YAML; docs/cluster.md). A cluster file names a device, or describes one, and may override each
/// number. Raises InputError with file, line and column for anything wrong, all mistakes at once,
/// with the nearest names for an unknown device or key.
Cluster load_cluster(const std::string& name_or_path);

/// Reads a cluster file's text; `file` stands in messages.
Cluster parse_cluster(const std::string& text, const std::string& file);

/// Names of the built-in devices, sorted.
std::vector<std::string> device_names();

/// Time of one collective over `axes` of the mesh (jointly), in picoseconds; the slowest group's.
///
/// `bytes` is the whole logical tensor of the group: the gathered result, the tensor to be reduced,
/// what the group exchanges in all. Ring algorithms: all-reduce 2(n-1)/n, all-gather and
/// reduce-scatter (n-1)/n, all-to-all (n-1)/n of bytes/n over each link (Thakur et al., IJHPCA
/// 2005; Patarasuk and Yuan, JPDC 2009). Rank r of the mesh stands in node r / devices_per_node. A
/// group within one node uses `within`. One that spans nodes runs its rings through all its members
/// of a node, so m members bring m times the bandwidth of `between`, up to that of `within`; of its
/// steps those that cross nodes (one a node and round) take the latency of `between` (NCCL,
/// tuning.cc). Its all-reduce takes two binary trees where they are faster (Sanders, Speck and
/// Träff, Parallel Computing 2009). Its all-to-all takes the longer of what goes to the own node
/// and to the others.
int64_t collective_ps(const Cluster& cluster, const Mesh& mesh, const std::vector<int>& axes,
                      Collective kind, int64_t bytes);

/// Bytes that one rank sends in that collective, rounded up.
int64_t collective_sent_bytes(int group_size, Collective kind, int64_t bytes);

/// Time of a group of `size` ranks with the given stride between neighbours (for scale units).
int64_t group_collective_ps(const Cluster& cluster, int size, int stride, Collective kind,
                            int64_t bytes);

/// Time of one operator on local shapes, in picoseconds: launch + max(FLOPs / peak, bytes /
/// bandwidth) (roofline; Williams et al., CACM 2009). `dtype` is the type that the arithmetic is
/// done in; one that the device has no figure for costs what the next wider one does. This, and the
/// time of a collective, are at most 2^53 ps (2.5 hours), so that sums never overflow.
int64_t compute_ps(const Cluster& cluster, double flops, int64_t bytes, DType dtype);

}  // namespace nnscaler
