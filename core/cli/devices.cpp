#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/cost/cluster.h"

namespace nnscaler {

std::function<int()> add_devices(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "one JSON object on standard output");
  return [json] {
    nlohmann::ordered_json all;
    if (!*json)
      fmt::print("{:<12} {:<28} {:>10} {:>10} {:>12} {:>8}\n", "name", "device", "bf16", "memory",
                 "bandwidth", "a node");
    for (const std::string& name : device_names()) {
      const Cluster cluster = load_cluster(name);
      const Device& device = cluster.device;
      const auto peak = [&](DType type) {
        const auto it = device.flops.find(type);
        return it == device.flops.end() ? 0 : it->second;
      };
      if (*json) {
        all[name] = {{"title", device.title},
                     {"bf16_flops", peak(DType::kBFloat16)},
                     {"memory_bytes", device.memory_bytes},
                     {"bytes_per_second", device.bytes_per_second},
                     {"devices_per_node", cluster.devices_per_node},
                     {"within", cluster.within.name},
                     {"between", cluster.between.name}};
      } else {
        const double bf16 = peak(DType::kBFloat16) / 1e12;
        fmt::print("{:<12} {:<28} {:>10} {:>10} {:>7.4g} GB/s {:>8}\n", name, device.title,
                   bf16 > 0 ? fmt::format("{:.4g} TF", bf16) : "-",
                   format_bytes(device.memory_bytes), device.bytes_per_second / 1e9,
                   cluster.devices_per_node);
      }
    }
    if (*json) fmt::print("{}\n", all.dump(1));
    return 0;
  };
}

}  // namespace nnscaler
