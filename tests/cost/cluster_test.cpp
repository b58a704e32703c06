#include "core/cost/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cost/embedded.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kAllToAll,
                                       Collective::kBroadcast};
constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all",
                                  "broadcast"};

std::string describe(const Link& link) {
  std::ostringstream text;
  text << link.name << ", " << link.bytes_per_second / 1e9 << " GB/s, ";
  if (link.peer_bytes_per_second > 0) {
    text << link.peer_bytes_per_second / 1e9 << " GB/s a peer, ";
  }
  text << format_ps(link.latency_ps) << " a step, " << format_ps(link.base_ps) << " a collective";
  return text.str();
}

std::string describe(const Cluster& cluster) {
  std::ostringstream text;
  const Device& device = cluster.device;
  text << device.name << ": " << device.title << ", from " << cluster.source << "\n";
  for (const auto& [dtype, flops] : device.flops) {
    text << dtype_name(dtype) << " " << flops / 1e12 << " TFLOPS\n";
  }
  text << "matmul efficiency " << device.matmul_efficiency << ", memory "
       << format_bytes(device.memory_bytes) << " at " << device.bytes_per_second / 1e9
       << " GB/s, launch " << format_ps(device.launch_ps) << "\n"
       << cluster.devices_per_node << " in a node: " << describe(cluster.within)
       << "\nnodes: " << describe(cluster.between) << "\n";
  return text.str();
}

TEST(Cluster, Files) {
  run_golden("cost/cluster/files.txt", [](const std::string& input) {
    return describe(parse_cluster(input, "cluster.yaml"));
  });
}

TEST(Cluster, Collectives) {
  run_golden("cost/cluster/collectives.txt", [](const std::string& input) {
    Cluster cluster;
    Mesh mesh;
    std::string output;
    for (const std::string& line : split(strip(input), '\n')) {
      std::istringstream words(line);
      std::string verb, what, bytes;
      words >> verb >> what;
      if (verb == "cluster") {
        cluster = load_cluster(what);
        continue;
      }
      if (verb == "mesh") {
        for (const std::string& axis : split(what, ',')) {
          const auto parts = split(axis, '=');
          mesh.axes.push_back({parts[0], std::stoi(parts[1])});
        }
        continue;
      }
      std::vector<int> axes;
      int size = 1;
      for (const std::string& name : split(what, ',')) {
        for (size_t i = 0; i < mesh.axes.size(); ++i) {
          if (mesh.axes[i].name != name) continue;
          axes.push_back(static_cast<int>(i));
          size *= mesh.axes[i].size;
        }
      }
      std::getline(words, bytes);
      const auto kind =
          kCollectives[std::find(std::begin(kNames), std::end(kNames), verb) - std::begin(kNames)];
      const int64_t num_bytes = parse_bytes(bytes, "bytes");
      output += line + ": " + format_ps(collective_ps(cluster, mesh, axes, kind, num_bytes)) +
                ", sends " + format_bytes(collective_sent_bytes(size, kind, num_bytes)) + "\n";
    }
    return output;
  });
}

TEST(Cluster, EveryBuiltInDeviceLoads) {
  ASSERT_GE(device_names().size(), 8u);
  EXPECT_TRUE(std::is_sorted(embedded_devices().begin(), embedded_devices().end()));
  for (const std::string& name : device_names()) {
    const Cluster cluster = load_cluster(name);
    EXPECT_EQ(cluster.device.name, name);
    EXPECT_EQ(cluster.source, "built-in " + name);
    EXPECT_GT(cluster.device.flops.at(DType::kFloat32), 0) << name;
    EXPECT_GT(cluster.device.memory_bytes, 0) << name;
    EXPECT_GT(cluster.device.bytes_per_second, 0) << name;
    EXPECT_GE(cluster.within.bytes_per_second, cluster.between.bytes_per_second) << name;
    EXPECT_LE(cluster.within.latency_ps, cluster.between.latency_ps) << name;
  }
}

// A number without its source is not shipped.
TEST(Cluster, EveryNumberOfABuiltInDeviceHasItsSource) {
  for (const auto& [name, text] : embedded_devices()) {
    for (const std::string& line : split(text, '\n')) {
      const std::string value = strip(line.substr(std::min(line.find(':'), line.size())));
      const bool is_number = value.size() > 2 && std::isdigit(static_cast<unsigned char>(value[2]));
      EXPECT_TRUE(!is_number || line.find("  # ") != std::string::npos) << name << ": " << line;
    }
  }
}

TEST(Cluster, Aliases) {
  EXPECT_EQ(load_cluster("A100").device.name, "a100-80gb");
  EXPECT_EQ(load_cluster("H100").device.name, "h100-80gb");
  EXPECT_EQ(load_cluster("B200").device.name, "b200");
  EXPECT_EQ(load_cluster("MI300X").device.name, "mi300x");
  EXPECT_EQ(load_cluster("CPU").device.name, "cpu");
  EXPECT_EQ(load_cluster("NVIDIA H100 80GB HBM3").device.name, "h100-80gb");
}

std::string error_of(const std::string& name) {
  try {
    load_cluster(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, UnknownNamesAndFiles) {
  const std::string known =
      "Built-in devices are a100-40gb, a100-80gb, b200, cpu, h100-80gb, h200, mi300x, v100-32gb";
  EXPECT_EQ(error_of("h1000"),
            "cluster \"h1000\": neither a built-in device nor a file; did you mean h100, a100 or "
            "h200? " +
                known);
  EXPECT_EQ(error_of("gaudi"), "cluster \"gaudi\": neither a built-in device nor a file. " + known);
  EXPECT_EQ(error_of("nowhere/cluster.yaml"),
            "nowhere/cluster.yaml: cannot be read: No such file or directory");
}

Cluster simple() {
  Cluster cluster;
  cluster.device.flops = {{DType::kFloat32, 1e12}, {DType::kBFloat16, 4e12}};
  cluster.device.matmul_efficiency = 0.5;
  cluster.device.bytes_per_second = 1e11;
  cluster.device.launch_ps = 1'000'000;
  cluster.devices_per_node = 4;
  cluster.within = {"within", 1e9, 0, 10'000'000, 5'000'000};
  cluster.between = {"between", 1e8, 0, 100'000'000, 50'000'000};
  return cluster;
}

TEST(Cluster, RingByHand) {
  // 4 ranks, 4000 bytes: 2 * 3 / 4 * 4000 = 6000 bytes at 1 GB/s = 6 us; 6 steps of 10 us; 5 us.
  const Mesh mesh{{{"tp", 4}}};
  EXPECT_EQ(collective_ps(simple(), mesh, {0}, Collective::kAllReduce, 4000), 71'000'000);
  EXPECT_EQ(collective_ps(simple(), mesh, {0}, Collective::kAllGather, 4000), 38'000'000);
  EXPECT_EQ(collective_ps(simple(), mesh, {0}, Collective::kAllToAll, 4000), 35'750'000);
  // Two nodes of 4: bandwidth 4 * 0.1 GB/s; 7 steps, one of which crosses.
  const Mesh two{{{"tp", 8}}};
  EXPECT_EQ(collective_ps(simple(), two, {0}, Collective::kAllGather, 8000),
            50'000'000 + 100'000'000 + 6 * 10'000'000 + 7000 * 2500);
  // One member a node: every step crosses.
  const Mesh grid{{{"dp", 3}, {"tp", 4}}};
  EXPECT_EQ(collective_ps(simple(), grid, {0}, Collective::kAllGather, 3000),
            50'000'000 + 2 * 100'000'000 + 2000 * 10'000);
  // 500 bytes in all to 3 others in the node (1 GB/s) and 4 outside (0.1 GB/s).
  EXPECT_EQ(collective_ps(simple(), two, {0}, Collective::kAllToAll, 6400),
            50'000'000 + 4 * 100'000'000 + 3 * 10'000'000 + 4 * 100 * 10'000);
  // 16 nodes: a tree has 2 * 4 crossings and 2 * 3 steps within nodes, a ring 2 * 15 and 2 * 48.
  const Mesh large{{{"tp", 64}}};
  EXPECT_EQ(collective_ps(simple(), large, {0}, Collective::kAllReduce, 6400),
            50'000'000 + 8 * 100'000'000 + 6 * 10'000'000 + 2 * 6400 * 2500);
}

TEST(Cluster, GroupsOfScaleUnits) {
  const Cluster cluster = simple();
  const Mesh grid{{{"dp", 3}, {"tp", 4}}};
  for (const Collective kind : kCollectives) {
    EXPECT_EQ(group_collective_ps(cluster, 3, 4, kind, 1 << 20),
              collective_ps(cluster, grid, {0}, kind, 1 << 20));
    EXPECT_EQ(group_collective_ps(cluster, 1, 8, kind, 1 << 20), 0);
  }
}

/// Where the closed form holds, it agrees with walking the ranks of every group.
TEST(Cluster, MergedAxesAgree) {
  const Cluster cluster = simple();
  for (const int inner : {2, 3, 4, 6, 8}) {
    for (const int outer : {2, 3, 4, 8}) {
      const Mesh split_mesh{{{"a", outer}, {"b", inner}}};
      const Mesh whole{{{"ab", outer * inner}}};
      for (const Collective kind : kCollectives) {
        EXPECT_EQ(collective_ps(cluster, split_mesh, {0, 1}, kind, 1 << 20),
                  collective_ps(cluster, whole, {0}, kind, 1 << 20));
        EXPECT_EQ(collective_ps(cluster, split_mesh, {1, 0}, kind, 1 << 20),
                  collective_ps(cluster, whole, {0}, kind, 1 << 20));
      }
    }
  }
}

TEST(Cluster, TimesGrowWithBytesAndNeverOverflow) {
  std::mt19937_64 random(20260101);
  for (const std::string& name : device_names()) {
    const Cluster cluster = load_cluster(name);
    for (int i = 0; i < 200; ++i) {
      Mesh mesh;
      mesh.axes.push_back({"a", 1 + static_cast<int>(random() % 64)});
      mesh.axes.push_back({"b", 1 + static_cast<int>(random() % 16)});
      const Collective kind = kCollectives[random() % 5];
      const std::vector<std::vector<int>> choices = {{0}, {1}, {0, 1}};
      const std::vector<int>& axes = choices[random() % 3];
      int64_t previous = 0, previous_sent = 0;
      for (int64_t bytes = 0; bytes >= 0 && bytes < std::numeric_limits<int64_t>::max() / 2;
           bytes = bytes * 2 + static_cast<int64_t>(random() % 3)) {
        const int64_t ps = collective_ps(cluster, mesh, axes, kind, bytes);
        EXPECT_GE(ps, previous);
        EXPECT_LE(ps, int64_t{1} << 53);
        previous = ps;
        const int64_t sent = collective_sent_bytes(mesh.axes[0].size, kind, bytes);
        EXPECT_GE(sent, previous_sent);
        previous_sent = sent;
        if (bytes == 0) bytes = 1;
      }
    }
    EXPECT_EQ(compute_ps(cluster, 1e300, 0, DType::kFloat32), int64_t{1} << 53);
    EXPECT_EQ(compute_ps(cluster, 0, std::numeric_limits<int64_t>::max(), DType::kInt64),
              int64_t{1} << 53);
  }
  EXPECT_EQ(collective_sent_bytes(2, Collective::kAllReduce, std::numeric_limits<int64_t>::max()),
            std::numeric_limits<int64_t>::max());
}

TEST(Cluster, SentBytes) {
  EXPECT_EQ(collective_sent_bytes(4, Collective::kAllReduce, 4000), 6000);
  EXPECT_EQ(collective_sent_bytes(4, Collective::kAllGather, 4000), 3000);
  EXPECT_EQ(collective_sent_bytes(4, Collective::kReduceScatter, 4000), 3000);
  EXPECT_EQ(collective_sent_bytes(4, Collective::kAllToAll, 4000), 750);
  EXPECT_EQ(collective_sent_bytes(4, Collective::kBroadcast, 4000), 4000);
  EXPECT_EQ(collective_sent_bytes(3, Collective::kAllGather, 100), 67);
  EXPECT_EQ(collective_sent_bytes(1, Collective::kAllReduce, 4000), 0);
}

TEST(Cluster, Roofline) {
  const Cluster cluster = simple();
  // 1e9 FLOPs at half of 1 TFLOPS: 2 ms; 1e8 bytes at 100 GB/s: 1 ms; 1 us to launch.
  EXPECT_EQ(compute_ps(cluster, 1e9, 100'000'000, DType::kFloat32), 2'001'000'000);
  EXPECT_EQ(compute_ps(cluster, 1e8, 100'000'000, DType::kFloat32), 1'001'000'000);
  EXPECT_EQ(compute_ps(cluster, 1e9, 0, DType::kBFloat16), 501'000'000);
  EXPECT_EQ(compute_ps(cluster, 0, 0, DType::kFloat32), 1'000'000);
  // Without a figure of its own: float8 as bfloat16, float16 and float64 as float32.
  EXPECT_EQ(compute_ps(cluster, 1e9, 0, DType::kFloat8E4M3FN), 501'000'000);
  EXPECT_EQ(compute_ps(cluster, 1e9, 0, DType::kFloat16), 2'001'000'000);
  EXPECT_EQ(compute_ps(cluster, 1e9, 0, DType::kComplex128), 2'001'000'000);
}

}  // namespace
}  // namespace nnscaler
