#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/cli/session.h"

namespace nnscaler {

namespace {

struct Options {
  std::string archive, mesh, cluster = "cpu", constraints, recompute, optimizer = "adamw", memory,
                             output, partitions;
  int ngpus = 0, units = 1, microbatches = 1;
  bool json = false, inference = false;
  std::string dump;
};

/// {"12": ["k"], ...}: partitions of a policy, by operator number.
std::map<int, std::vector<std::string>> read_partitions(const std::string& path) {
  std::map<int, std::vector<std::string>> result;
  try {
    const auto json = nlohmann::json::parse(read_file(path));
    if (!json.is_object()) {
      throw InputError(path +
                       ": is no object; write {\"operator number\": [\"its partition\", ...]}");
    }
    for (const auto& [key, value] : json.items()) {
      int index = -1;
      const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (status != std::errc() || end != key.data() + key.size() || index < 0) {
        throw InputError(fmt::format("{}: \"{}\" is no operator number", path, key));
      }
      if (!value.is_array() ||
          !std::ranges::all_of(value, [](const auto& e) { return e.is_string(); })) {
        throw InputError(fmt::format(
            "{}: operator {} has no list of texts; write its partition on each mesh axis", path,
            key));
      }
      result[index] = value.get<std::vector<std::string>>();
    }
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: is not JSON: {}", path, parser_reason(error.what())));
  }
  return result;
}

/// An option's number, from 1 on.
CLI::Validator count_to(int max) {
  return CLI::Validator(
      [max](std::string& text) {
        int value = 0;
        const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool right =
            status == std::errc() && end == text.data() + text.size() && value >= 1 && value <= max;
        return right ? "" : fmt::format("\"{}\" is no number from 1 to {}", text, max);
      },
      "");
}

int run(const Options& given) {
  if (given.mesh.empty() == (given.ngpus == 0)) {
    throw InputError("plan: give either --mesh, such as --mesh dp=4,tp=2, or --ngpus");
  }
  PlanOptions options;
  options.mesh = parse_mesh(given.mesh.empty() ? fmt::format("tp={}", given.ngpus) : given.mesh);
  options.cluster = load_cluster(given.cluster);
  options.cluster_name = given.cluster;
  options.constraints_path = given.constraints;
  if (!given.constraints.empty()) {
    options.constraints = parse_constraints(read_file(given.constraints), given.constraints);
  }
  options.recompute_modules = given.recompute;
  options.optimizer = given.optimizer;
  if (!given.memory.empty()) options.memory_bytes = parse_bytes(given.memory, "--memory");
  options.units = given.units;
  options.microbatches = given.microbatches;
  options.inference = given.inference;
  if (!given.partitions.empty()) {
    options.forced = read_partitions(given.partitions);
    options.others_replicate = true;
  }
  const Prepared prepared = open_archive(given.archive, given.recompute);
  for (const std::string& warning : prepared.graph.warnings)
    fmt::print(stderr, "nnscaler: warning: {}\n", warning);
  if (!given.dump.empty()) write_file(given.dump, dump_problem(prepared, options));
  const Plan plan = plan_archive(prepared, given.archive, options);
  for (const std::string& warning : plan.warnings)
    fmt::print(stderr, "nnscaler: warning: {}\n", warning);
  if (!given.output.empty()) write_file(given.output, to_json(plan, prepared));
  const double ms = 1e-9;
  if (given.json) {
    nlohmann::ordered_json json;
    json["model"] = prepared.graph.module_class;
    json["mesh"] = options.mesh.to_string();
    json["cost_ms"] = static_cast<double>(plan.cost) * ms;
    json["lower_bound_ms"] = static_cast<double>(plan.lower_bound) * ms;
    json["gap"] = plan.gap();
    json["method"] = plan.method;
    json["computation_ms"] = static_cast<double>(plan.compute_ps) * ms;
    json["redistribution_ms"] = static_cast<double>(plan.communication_ps) * ms;
    json["gradient_reduction_ms"] = static_cast<double>(plan.gradient_ps) * ms;
    json["peak_memory_bytes"] = plan.memory.total();
    json["search_seconds"] = plan.search_seconds;
    json["operators"] = prepared.graph.operators.size();
    json["core_nodes"] = plan.core_nodes;
    if (!given.output.empty()) json["plan"] = given.output;
    fmt::print("{}\n", json.dump(1));
    return 0;
  }
  fmt::print("{}: {} operators on {} ({}, {} a node)\n", prepared.graph.module_class,
             prepared.graph.operators.size(), options.mesh.to_string(),
             options.cluster.device.title, options.cluster.devices_per_node);
  fmt::print(
      "assumed   {} optimizer, {} microbatch{} a step, {} cop{} of the plan, {} of memory a "
      "device\n",
      options.optimizer, options.microbatches, options.microbatches == 1 ? "" : "es", options.units,
      options.units == 1 ? "y" : "ies", format_bytes(plan.budget_bytes));
  fmt::print("step      {}: computation {}, redistribution {}, gradient reduction {}\n",
             format_ps(plan.cost), format_ps(plan.compute_ps), format_ps(plan.communication_ps),
             format_ps(plan.gradient_ps));
  fmt::print(
      "memory    {} a device: parameters {}, gradients {}, optimizer {}, activations {}, working "
      "set {}\n",
      format_bytes(plan.memory.total()), format_bytes(plan.memory.parameters),
      format_bytes(plan.memory.gradients), format_bytes(plan.memory.optimizer),
      format_bytes(plan.memory.activations), format_bytes(plan.memory.transient));
  if (plan.lower_bound == plan.cost) {
    fmt::print("optimal   no plan of this space costs less (proven by {}, gap 0)\n", plan.method);
  } else {
    fmt::print("gap       {:.3g} % at most to the best plan; no plan costs less than {}\n",
               100 * plan.gap(), format_ps(plan.lower_bound));
  }
  fmt::print("objective {}\n", plan.objective);
  fmt::print("searched  {:.1f} ms\n", 1e3 * plan.search_seconds);
  if (!given.output.empty()) {
    fmt::print("wrote     {} (nnscaler explain {})\n", given.output, given.output);
  }
  return 0;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("archive", given->archive, "model.pt2, from nnscaler export")->required();
  app.add_option("--mesh", given->mesh, "named axes and their sizes, such as dp=4,tp=2");
  app.add_option("--ngpus", given->ngpus, "number of devices, all on one axis")
      ->check(count_to(1 << 24));
  app.add_option("--cluster", given->cluster,
                 "a device in the box (nnscaler devices) or a YAML file; default cpu");
  app.add_option("--constraints", given->constraints, "YAML list of rules that the plan must obey");
  app.add_option("--recompute", given->recompute,
                 "modules to recompute in backward, comma-separated");
  app.add_option("--optimizer", given->optimizer, "adamw, adam, sgd, sgd-momentum or none")
      ->check(CLI::IsMember({"adamw", "adam", "sgd", "sgd-momentum", "none"}));
  app.add_option("--memory", given->memory,
                 "budget of a device, such as 70GiB; default 0.8 of the device's");
  app.add_option("--units", given->units, "data-parallel copies of the plan")
      ->check(count_to(1 << 24));
  app.add_option("--microbatches", given->microbatches, "forward and backward passes a step")
      ->check(count_to(1 << 24));
  app.add_option("--partitions", given->partitions,
                 "JSON file: operator number -> its partition on each axis");
  app.add_option("--dump-problem", given->dump,
                 "write the labelling problem as JSON, for another solver");
  app.add_flag("--inference", given->inference, "forward only");
  app.add_option("-o,--output", given->output, "where to write plan.json");
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run(*given); };
}

}  // namespace nnscaler
