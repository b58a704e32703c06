#include "core/cost/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/yaml.h"
#include "core/cost/embedded.h"
#include "core/cost/time.h"

namespace nnscaler {

namespace {

struct Unit {
  const char* name;
  double factor;
};

/// What a quantity may be written in, and an example for messages.
struct Quantity {
  std::string what;
  std::vector<Unit> units;
  std::string example;
  double most;
};

const Quantity kBandwidth = {"a bandwidth",
                             {{"B/s", 1},
                              {"KB/s", 1e3},
                              {"MB/s", 1e6},
                              {"GB/s", 1e9},
                              {"TB/s", 1e12},
                              {"KiB/s", 1024.0},
                              {"MiB/s", 1024.0 * 1024},
                              {"GiB/s", 1024.0 * 1024 * 1024},
                              {"TiB/s", 1024.0 * 1024 * 1024 * 1024},
                              {"Mb/s", 1e6 / 8},
                              {"Gb/s", 1e9 / 8},
                              {"Tb/s", 1e12 / 8}},
                             "450 GB/s",
                             1e18};
const Quantity kTime = {
    "a time", {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, "7 us", 1e3};
const Quantity kFlops = {"a rate of arithmetic",
                         {{"GFLOPS", 1e9},
                          {"TFLOPS", 1e12},
                          {"PFLOPS", 1e15},
                          {"GFLOP/s", 1e9},
                          {"TFLOP/s", 1e12},
                          {"PFLOP/s", 1e15}},
                         "312 TFLOPS",
                         1e21};

constexpr DType kDTypes[] = {DType::kFloat64,        DType::kFloat32,        DType::kFloat16,
                             DType::kBFloat16,       DType::kFloat8E4M3FN,   DType::kFloat8E5M2,
                             DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU};

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Reads the keys of one description into a cluster that may hold a device's numbers already.
class Reader {
 public:
  explicit Reader(const std::string& file) : mistakes_(file) {}

  Cluster read(const Yaml& root, bool is_built_in);

 private:
  const Yaml* find(const Yaml& map, const std::string& key, bool required) {
    const Yaml* value = map.find(key);
    if (!value && required) missing_.push_back(key);
    return value;
  }

  /// A number at the start of a scalar; `rest` is what follows it.
  std::optional<double> number(const Yaml& at, std::string* rest) {
    if (at.kind != Yaml::Kind::kScalar) return std::nullopt;
    const std::string text = strip(at.text);
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || !std::isfinite(value)) return std::nullopt;
    *rest = strip(std::string_view(end, text.data() + text.size()));
    return value;
  }

  void quantity(const Yaml& map, const std::string& key, const Quantity& kind, bool required,
                double* result) {
    const Yaml* at = find(map, key, required);
    if (!at) return;
    std::string unit;
    const std::optional<double> value = number(*at, &unit);
    for (const Unit& known : kind.units) {
      if (!value || *value <= 0 || unit != known.name) continue;
      if (*value * known.factor > kind.most) break;
      *result = *value * known.factor;
      return;
    }
    std::vector<std::string> names;
    for (const Unit& known : kind.units) names.push_back(known.name);
    mistakes_.add(*at,
                  fmt::format("{} is {}, not {}; write a positive number with its unit, such "
                              "as {} (units are {})",
                              key, at->describe(), kind.what, kind.example, join(names, ", ")));
  }
  void time(const Yaml& map, const std::string& key, bool required, int64_t* result) {
    double seconds = -1;
    quantity(map, key, kTime, required, &seconds);
    if (seconds >= 0) *result = to_ps(seconds);
  }
  void share(const Yaml& map, const std::string& key, double* result) {
    const Yaml* at = find(map, key, false);
    if (!at) return;
    std::string rest;
    const std::optional<double> value = number(*at, &rest);
    if (value && rest.empty() && *value > 0 && *value <= 1) {
      *result = *value;
      return;
    }
    mistakes_.add(*at, fmt::format("{} is {}, not a share; write a number above 0 and up to 1, "
                                   "such as 0.7",
                                   key, at->describe()));
  }
  void text(const Yaml& map, const std::string& key, std::string* result) {
    const Yaml* at = find(map, key, false);
    if (!at) return;
    if (at->kind == Yaml::Kind::kScalar) {
      *result = at->text;
    } else {
      mistakes_.add(*at, fmt::format("{} is {}, not a text", key, at->describe()));
    }
  }
  bool is_map(const Yaml& at, const std::string& key) {
    if (at.kind == Yaml::Kind::kMap) return true;
    mistakes_.add(at, fmt::format("{} is {}, not a map", key, at.describe()));
    return false;
  }

  void read_flops(const Yaml& map, bool required, Device* device) {
    const Yaml* at = find(map, "flops", required);
    if (!at || !is_map(*at, "flops")) return;
    std::vector<std::string> known;
    for (const DType dtype : kDTypes) known.push_back(dtype_name(dtype));
    check_keys(*at, known, "flops", mistakes_);
    for (const DType dtype : kDTypes) {
      double value = 0;
      quantity(*at, dtype_name(dtype), kFlops, false, &value);
      if (value > 0) device->flops[dtype] = value;
    }
    if (device->flops.count(DType::kFloat32) == 0 && !at->find("float32")) {
      mistakes_.add(*at, "flops has no float32; it stands for every type without a figure");
    }
  }
  void read_link(const Yaml& map, const std::string& key, bool required, Link* link) {
    const Yaml* at = find(map, key, required);
    if (!at || !is_map(*at, key)) return;
    check_keys(*at, {"name", "bandwidth", "per_peer", "latency", "base"}, key, mistakes_);
    std::swap(missing_, outer_missing_);
    // A link of another name is another link: nothing is left of the device's own.
    if (const Yaml* name = at->find("name"); name && name->text != link->name) {
      *link = Link{};
      required = true;
    }
    text(*at, "name", &link->name);
    quantity(*at, "bandwidth", kBandwidth, required, &link->bytes_per_second);
    quantity(*at, "per_peer", kBandwidth, false, &link->peer_bytes_per_second);
    time(*at, "latency", required, &link->latency_ps);
    time(*at, "base", false, &link->base_ps);
    report_missing(*at, key);
    std::swap(missing_, outer_missing_);
  }
  void report_missing(const Yaml& at, const std::string& what) {
    if (missing_.empty()) return;
    mistakes_.add(at, fmt::format("{} lacks {}; add {}", what, join(missing_, ", "),
                                  missing_.size() == 1 ? "it" : "them"));
    missing_.clear();
  }

  Mistakes mistakes_;
  std::vector<std::string> missing_, outer_missing_;
};

/// The built-in devices by name and alias, in lower case.
const std::map<std::string, const std::pair<std::string, std::string>*>& built_in_names() {
  static const auto kNames = [] {
    std::map<std::string, const std::pair<std::string, std::string>*> names;
    for (const auto& file : embedded_devices()) {
      names[file.first] = &file;
      const Yaml root = parse_yaml(file.second, file.first);
      if (const Yaml* aliases = root.find("aliases")) {
        for (const Yaml& alias : aliases->items) names[alias.text] = &file;
      }
    }
    return names;
  }();
  return kNames;
}

const std::pair<std::string, std::string>* find_built_in(const std::string& name) {
  const auto found = built_in_names().find(lower_case(name));
  return found == built_in_names().end() ? nullptr : found->second;
}

/// "; did you mean h100?" or ".", and the list.
std::string known_devices(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, file] : built_in_names()) names.push_back(known);
  const std::string hint = did_you_mean(name, names);
  return fmt::format("{} Built-in devices are {}", hint.empty() ? "." : hint,
                     join(device_names(), ", "));
}

Cluster built_in(const std::pair<std::string, std::string>& file) {
  Cluster cluster = Reader(file.first).read(parse_yaml(file.second, file.first), true);
  cluster.device.name = file.first;
  cluster.source = "built-in " + file.first;
  return cluster;
}

Cluster Reader::read(const Yaml& root, bool is_built_in) {
  Cluster cluster;
  if (root.kind != Yaml::Kind::kMap) {
    mistakes_.add(root, fmt::format("a cluster file is a map, but this is {}; write at least "
                                    "\"device: NAME\", where NAME is one of {}",
                                    root.describe(), join(device_names(), ", ")));
    mistakes_.raise_if_any();
  }
  std::vector<std::string> keys = {"device",
                                   "title",
                                   "flops",
                                   "matmul_efficiency",
                                   "memory",
                                   "memory_bandwidth",
                                   "memory_efficiency",
                                   "launch",
                                   "devices_per_node",
                                   "within",
                                   "between"};
  if (is_built_in) keys.push_back("aliases");
  check_keys(root, keys, is_built_in ? "a device" : "a cluster", mistakes_);
  Device& device = cluster.device;
  bool described = true;
  if (const Yaml* at = root.find("device")) {
    described = false;
    const auto* file = at->kind == Yaml::Kind::kScalar ? find_built_in(strip(at->text)) : nullptr;
    if (file) {
      cluster = built_in(*file);
    } else if (at->kind == Yaml::Kind::kScalar) {
      mistakes_.add(*at, fmt::format("unknown device {}{}; leave device out to describe your own",
                                     at->describe(), known_devices(at->text)));
    } else {
      mistakes_.add(*at, fmt::format("device is {}, not a name", at->describe()));
    }
  }
  text(root, "title", &device.title);
  read_flops(root, described, &device);
  share(root, "matmul_efficiency", &device.matmul_efficiency);
  if (const Yaml* at = find(root, "memory", described)) {
    try {
      device.memory_bytes = parse_bytes(at->kind == Yaml::Kind::kScalar ? at->text : "", "memory");
    } catch (const InputError&) {
      mistakes_.add(*at, fmt::format("memory is {}, not an amount of memory; write a positive "
                                     "number with its unit, such as 80 GiB",
                                     at->describe()));
    }
  }
  // The efficiency is of the figure beside it; a bandwidth alone is what is achieved.
  double bandwidth = 0, efficiency = 1;
  quantity(root, "memory_bandwidth", kBandwidth, described, &bandwidth);
  share(root, "memory_efficiency", &efficiency);
  if (bandwidth > 0) {
    device.bytes_per_second = bandwidth * efficiency;
  } else if (const Yaml* at = root.find("memory_efficiency")) {
    if (!root.find("memory_bandwidth")) {
      mistakes_.add(*at, "memory_efficiency stands without memory_bandwidth; write both");
    }
  }
  time(root, "launch", described, &device.launch_ps);
  if (const Yaml* at = find(root, "devices_per_node", described)) {
    std::string rest;
    const std::optional<double> value = number(*at, &rest);
    if (value && rest.empty() && *value >= 1 && *value <= 65536 && *value == std::floor(*value)) {
      cluster.devices_per_node = static_cast<int>(*value);
    } else {
      mistakes_.add(*at, fmt::format("devices_per_node is {}, not a count; write an integer from 1 "
                                     "to 65536",
                                     at->describe()));
    }
  }
  read_link(root, "within", described, &cluster.within);
  read_link(root, "between", described, &cluster.between);
  report_missing(root, "a cluster without a built-in device");
  mistakes_.raise_if_any();
  return cluster;
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const auto& file : embedded_devices()) names.push_back(file.first);
  return names;
}

Cluster parse_cluster(const std::string& text, const std::string& file) {
  Cluster cluster = Reader(file).read(parse_yaml(text, file), false);
  if (cluster.device.name.empty()) cluster.device.name = file;
  if (cluster.device.title.empty()) cluster.device.title = cluster.device.name;
  cluster.source = file;
  return cluster;
}

Cluster load_cluster(const std::string& name_or_path) {
  if (const auto* file = find_built_in(name_or_path)) return built_in(*file);
  std::error_code status;
  const std::string extension = std::filesystem::path(name_or_path).extension().string();
  const bool is_path = name_or_path.find('/') != std::string::npos || extension == ".yaml" ||
                       extension == ".yml" || std::filesystem::exists(name_or_path, status);
  if (is_path) return parse_cluster(read_file(name_or_path), name_or_path);
  throw InputError(fmt::format("cluster \"{}\": neither a built-in device nor a file{}",
                               name_or_path, known_devices(name_or_path)));
}

}  // namespace nnscaler
