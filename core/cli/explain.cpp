#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/cli/session.h"

namespace nnscaler {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string plan, other, op;
  bool json = false;
};

Json read_plan(const std::string& path) {
  Json json;
  try {
    json = Json::parse(read_file(path));
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is not JSON: {}", path, error.what()));
  }
  if (!json.is_object() || !json.contains("format") || json["format"] != 1) {
    throw InputError(fmt::format("{}: is no plan of format 1; make one with nnscaler plan", path));
  }
  return json;
}

/// Runs what reads a plan; a document with other contents than a plan's is the user's mistake, not
/// a bug of ours.
int guarded(const std::string& path, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is no complete plan: {}; make it again with nnscaler plan",
                                 path, error.what()));
  }
}

/// "layers.3.mlp" -> "layers.*.mlp"
std::string general(const std::string& module) {
  std::vector<std::string> parts = split(module, '.');
  for (std::string& part : parts) {
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) part = "*";
  }
  return join(parts, ".");
}

std::string partition_text(const Json& partition, const std::vector<std::string>& axes) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < partition.size(); ++i) {
    const std::string text = partition[i].get<std::string>();
    if (text == "replicate") continue;
    if (text.rfind("partial gradient", 0) == 0) {
      parts.push_back(fmt::format("partial gradient passes over {}", axes[i]));
    } else if (text.rfind("partial", 0) == 0) {
      parts.push_back(fmt::format("partial sum passes over {}", axes[i]));
    } else {
      parts.push_back(fmt::format("{} over {}", text, axes[i]));
    }
  }
  return parts.empty() ? "replicated" : join(parts, ", ");
}

std::string steps_text(const Json& steps) {
  std::vector<std::string> parts;
  for (const Json& step : steps) {
    std::string text =
        fmt::format("{} over {}", step["step"].get<std::string>(), step["axis"].get<std::string>());
    if (step.contains("dim")) text += fmt::format(" dim {}", step["dim"].get<int>());
    if (step.contains("to_dim")) text += fmt::format(" to dim {}", step["to_dim"].get<int>());
    parts.push_back(text);
  }
  return parts.empty() ? "nothing" : join(parts, ", then ");
}

std::string layout_text(const Json& layout) {
  std::vector<std::string> parts;
  for (const Json& axis : layout) parts.push_back(axis.get<std::string>());
  return join(parts, ",");
}

std::vector<std::string> axis_names(const Json& plan) {
  std::vector<std::string> names;
  for (const std::string& axis : split(plan["mesh"].get<std::string>(), ','))
    names.push_back(split(axis, '=')[0]);
  return names;
}

/// Rows that differ in layer numbers only are one, in the order of first appearance.
class Folded {
 public:
  void add(const std::string& row) {
    const auto [it, added] = counts_.emplace(row, 0);
    if (added) order_.push_back(row);
    ++it->second;
  }
  void print() const {
    for (const std::string& row : order_) {
      const int count = counts_.at(row);
      fmt::print("  {}{}\n", row, count > 1 ? fmt::format("  (x{})", count) : "");
    }
  }

 private:
  std::map<std::string, int> counts_;
  std::vector<std::string> order_;
};

int64_t integer(const Json& json) { return json.get<int64_t>(); }

void print_summary(const Json& plan) {
  const Json& options = plan["options"];
  fmt::print("{} on {} ({}, {} a node; {} optimizer, {} microbatch(es), {} copies)\n",
             plan["model"].get<std::string>(), plan["mesh"].get<std::string>(),
             options["device"].get<std::string>(), integer(options["devices_per_node"]),
             options["optimizer"].get<std::string>(), integer(options["microbatches"]),
             integer(options["units"]));
  const Json& certificate = plan["certificate"];
  const Json& time = plan["time_ps"];
  fmt::print("step {}: computation {}, redistribution {}, gradient reduction {}\n",
             format_ps(integer(certificate["cost_ps"])), format_ps(integer(time["computation"])),
             format_ps(integer(time["redistribution"])),
             format_ps(integer(time["gradient_reduction"])));
  fmt::print(
      "certificate: no plan costs less than {} (gap {:.3g} %), proven by {}; objective: {}\n",
      format_ps(integer(certificate["lower_bound_ps"])), 100 * certificate["gap"].get<double>(),
      certificate["method"].get<std::string>(), certificate["objective"].get<std::string>());
  const Json& memory = plan["memory_bytes"];
  fmt::print("memory {} of {} a device:\n", format_bytes(integer(memory["total"])),
             format_bytes(integer(options["memory_budget_bytes"])));
  for (const auto& [what, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"parameters", "this rank's parts"},
           {"gradients", "one for each trained parameter"},
           {"optimizer", "its states"},
           {"buffers", "buffers and constants"},
           {"activations", "kept for backward, each once"},
           {"transient", "the largest working set of one operator or recomputed region"}}) {
    if (integer(memory[what]) > 0)
      fmt::print("  {:<12} {:>10}  {}\n", what, format_bytes(integer(memory[what])), why);
  }
}

void print_rules(const Json& plan, const std::vector<std::string>& axes) {
  if (plan["rules"].empty()) return;
  fmt::print("rules:\n");
  for (size_t rule = 0; rule < plan["rules"].size(); ++rule) {
    fmt::print("  {}: {}\n", plan["rules"][rule]["where"].get<std::string>(),
               plan["rules"][rule]["rule"].get<std::string>());
    std::map<std::string, int> chosen;
    std::vector<std::string> order;
    for (const Json& op : plan["operators"]) {
      if (!op.contains("rule") || integer(op["rule"]) != static_cast<int64_t>(rule)) continue;
      const std::string row = fmt::format("{}: {}", general(op["module"].get<std::string>()),
                                          partition_text(op["partition"], axes));
      if (chosen[row]++ == 0) order.push_back(row);
    }
    for (const std::string& row : order) fmt::print("    {} operator(s) of {}\n", chosen[row], row);
  }
}

void print_operators(const Json& plan, const std::vector<std::string>& axes) {
  fmt::print("operators, module by module:\n");
  // Modules in order of first appearance, repeated ones together.
  std::vector<std::string> modules;
  std::map<std::string, std::vector<std::string>> rows;
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const Json& op : plan["operators"]) {
    const std::string module = general(op["module"].get<std::string>());
    std::string row = fmt::format("{:<28} {}", op["signature"].get<std::string>(),
                                  partition_text(op["partition"], axes));
    if (op.contains("at_start")) row += "  [computed once at start-up]";
    if (op.contains("in_place")) row += "  [takes part in an in-place write]";
    if (op["annotation"].get<std::string>().empty()) row += "  [has no rule: replicated]";
    if (op.contains("rule"))
      row += fmt::format("  [rule {}]",
                         plan["rules"][op["rule"].get<size_t>()]["where"].get<std::string>());
    if (!rows.count(module)) modules.push_back(module);
    if (counts[{module, row}]++ == 0) rows[module].push_back(row);
  }
  for (const std::string& module : modules) {
    fmt::print("  {}\n", module.empty() ? "(the model)" : module);
    for (const std::string& row : rows[module]) {
      const int count = counts[{module, row}];
      fmt::print("    {}{}\n", row, count > 1 ? fmt::format("  (x{})", count) : "");
    }
  }
}

void print_communication(const Json& plan) {
  fmt::print("redistributions:\n");
  Folded moves;
  for (const Json& move : plan["redistributions"]) {
    const int64_t bytes = integer(move["forward_bytes"]) + integer(move["backward_bytes"]);
    if (bytes == 0) continue;
    std::string reader = "shared by its readers";
    if (move["reader"].is_number()) {
      const Json& op = plan["operators"][move["reader"].get<size_t>()];
      reader = fmt::format("for {} of {}", op["signature"].get<std::string>(),
                           general(op["module"].get<std::string>()));
      if (op.contains("rule"))
        reader += fmt::format(" [rule {}]",
                              plan["rules"][op["rule"].get<size_t>()]["where"].get<std::string>());
    } else if (move["reader"] == "output") {
      reader = "for the caller";
    }
    const bool named = move.contains("fqn");
    moves.add(fmt::format("{} {} -> {} {}: forward {}, backward {}; {} sent, {}",
                          named ? general(move["fqn"].get<std::string>()) : "a value",
                          layout_text(move["from"]), layout_text(move["to"]), reader,
                          steps_text(move["forward"]), steps_text(move["backward"]),
                          format_bytes(bytes), format_ps(integer(move["ps"]))));
  }
  moves.print();
  fmt::print("gradients reduced once a step:\n");
  Folded reductions;
  for (const Json& entry : plan["reductions"]) {
    std::vector<std::string> over;
    for (const Json& axis : entry["axes"]) over.push_back(axis.get<std::string>());
    if (integer(entry["units"]) > 1)
      over.push_back(fmt::format("{} copies", integer(entry["units"])));
    reductions.add(fmt::format(
        "{}: all-reduce over {}, {} (sends {}), {}", general(entry["parameter"].get<std::string>()),
        join(over, " and "), format_bytes(integer(entry["bytes"])),
        format_bytes(integer(entry["sent_bytes"])), format_ps(integer(entry["ps"]))));
  }
  reductions.print();
}

PlanOptions options_of(const Plan& plan) {
  PlanOptions options = plan.options;
  options.cluster = load_cluster(options.cluster_name);
  if (!options.constraints_path.empty()) {
    options.constraints =
        parse_constraints(read_file(options.constraints_path), options.constraints_path);
  }
  return options;
}

struct Opened {
  Prepared prepared;
  Plan plan;
};

Opened open_plan(const std::string& path) {
  const std::string text = read_file(path);
  const Json json = read_plan(path);
  Opened opened;
  opened.prepared =
      open_archive(json["archive"]["path"].get<std::string>(), recompute_modules_of(text, path));
  opened.plan = plan_from_json(text, path, opened.prepared);
  opened.plan.options = options_of(opened.plan);
  return opened;
}

int print_alternatives(const Options& given, const Json& json,
                       const std::vector<std::string>& axes) {
  const Opened opened = open_plan(given.plan);
  std::set<std::string> shown;
  Json list = Json::array();
  bool found = false;
  for (size_t i = 0; i < opened.prepared.graph.operators.size(); ++i) {
    const Json& row = json["operators"][i];
    const std::string module = row["module"].get<std::string>();
    if (module != given.op && general(module) != given.op && row["output"] != given.op) continue;
    found = true;
    // Layers that are alike have the same alternatives.
    if (!shown
             .insert(general(module) + "|" + row["signature"].get<std::string>() + "|" +
                     row["source"].get<std::string>())
             .second)
      continue;
    const BoundRule& rule = opened.prepared.rules[i];
    if (!given.json) {
      fmt::print("{}: {}\n  annotation {}\n", describe(opened.prepared, OpId{static_cast<int>(i)}),
                 partition_text(row["partition"], axes), rule.annotation);
      for (const BoundName& name : rule.names) {
        if (!name.splittable)
          fmt::print("  {} ({}) may not be split: {}\n", name.name, name.extent, name.why_not);
      }
    }
    std::vector<Alternative> all =
        alternatives(opened.prepared, opened.plan, OpId{static_cast<int>(i)});
    std::stable_sort(all.begin(), all.end(),
                     [](const Alternative& a, const Alternative& b) { return a.cost < b.cost; });
    for (const Alternative& alternative : all) {
      Json partition = Json::array();
      for (const AxisChoice& axis : alternative.choice) partition.push_back(to_string(axis, rule));
      const bool chosen = alternative.choice == opened.plan.choices[i];
      if (given.json) {
        list.push_back(Json{{"op", i},
                            {"partition", partition},
                            {"cost_ps", alternative.cost},
                            {"chosen", chosen}});
      } else {
        fmt::print("  {} {:<40} {}\n", chosen ? "*" : " ", partition_text(partition, axes),
                   alternative.cost == opened.plan.cost
                       ? "the plan's cost"
                       : fmt::format("+{}", format_ps(alternative.cost - opened.plan.cost)));
      }
    }
  }
  if (!found) {
    std::vector<std::string> names;
    for (const Json& op : json["operators"]) names.push_back(op["module"].get<std::string>());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    throw InputError(fmt::format(
        "explain: no operator is in \"{}\"{}; give a module's qualified name (* for any layer)",
        given.op, did_you_mean(given.op, names)));
  }
  if (given.json) fmt::print("{}\n", list.dump(1));
  return 0;
}

int run_explain(const Options& given) {
  return guarded(given.plan, [&] {
    const Json plan = read_plan(given.plan);
    const std::vector<std::string> axes = axis_names(plan);
    if (!given.op.empty()) return print_alternatives(given, plan, axes);
    if (given.json) {
      fmt::print("{}\n", plan.dump(1));
      return 0;
    }
    print_summary(plan);
    print_rules(plan, axes);
    print_operators(plan, axes);
    print_communication(plan);
    return 0;
  });
}

int run_diff(const Options& given) {
  return guarded(given.plan + " or " + given.other, [&] {
    const Json a = read_plan(given.plan);
    const Json b = read_plan(given.other);
    const std::vector<std::string> axes_a = axis_names(a);
    const std::vector<std::string> axes_b = axis_names(b);
    Folded rows;
    int different = 0;
    const bool same_model = a["archive"]["digest"] == b["archive"]["digest"];
    if (same_model) {
      for (size_t i = 0; i < a["operators"].size(); ++i) {
        const Json& x = a["operators"][i];
        const Json& y = b["operators"][i];
        const std::string from = partition_text(x["partition"], axes_a);
        const std::string to = partition_text(y["partition"], axes_b);
        if (from == to) continue;
        ++different;
        rows.add(fmt::format("{} of {}: {} | {}", x["signature"].get<std::string>(),
                             general(x["module"].get<std::string>()), from, to));
      }
    }
    const auto cost = [](const Json& plan) { return integer(plan["certificate"]["cost_ps"]); };
    const auto memory = [](const Json& plan) { return integer(plan["memory_bytes"]["total"]); };
    if (given.json) {
      Json json;
      json["same_archive"] = same_model;
      json["cost_ps"] = {cost(a), cost(b)};
      json["memory_bytes"] = {memory(a), memory(b)};
      json["operators_that_differ"] = different;
      fmt::print("{}\n", json.dump(1));
      return 0;
    }
    fmt::print("{:<12} {:>14} {:>14}\n", "", given.plan, given.other);
    fmt::print("{:<12} {:>14} {:>14}\n", "mesh", a["mesh"].get<std::string>(),
               b["mesh"].get<std::string>());
    fmt::print("{:<12} {:>14} {:>14}\n", "step", format_ps(cost(a)), format_ps(cost(b)));
    for (const char* what : {"computation", "redistribution", "gradient_reduction"}) {
      fmt::print("{:<12.12} {:>14} {:>14}\n", what, format_ps(integer(a["time_ps"][what])),
                 format_ps(integer(b["time_ps"][what])));
    }
    fmt::print("{:<12} {:>14} {:>14}\n", "memory", format_bytes(memory(a)),
               format_bytes(memory(b)));
    if (!same_model) {
      fmt::print("the plans are of different archives, so operators are not compared\n");
    } else {
      fmt::print("{} operator(s) differ\n", different);
      rows.print();
    }
    return 0;
  });
}

int run_check(const Options& given) {
  return guarded(given.plan, [&] {
    const Opened opened = open_plan(given.plan);
    const Json json = read_plan(given.plan);
    const auto report = [&](const char* what, int64_t written, int64_t computed) {
      if (written != computed) {
        throw InputError(
            fmt::format("{}: {} is written as {} and is {} by the archive; the plan was changed, "
                        "or made by another version",
                        given.plan, what, written, computed));
      }
    };
    const Plan again = recompute(opened.prepared, opened.plan);
    report("certificate.cost_ps", opened.plan.cost, again.cost);
    report("memory_bytes.total", opened.plan.memory.total(), again.memory.total());
    if (opened.plan.options.forced.empty() &&
        json["rules"].size() == opened.plan.options.constraints.size() &&
        !json["options"].value("given_partitions", false)) {
      const Plan best = search(opened.prepared, opened.plan.options);
      if (best.cost < opened.plan.lower_bound) {
        throw InputError(fmt::format("{}: a plan of {} exists, below the bound of {}", given.plan,
                                     format_ps(best.cost), format_ps(opened.plan.lower_bound)));
      }
    }
    if (given.json) {
      fmt::print("{}\n", Json{{"cost_ps", again.cost},
                              {"lower_bound_ps", opened.plan.lower_bound},
                              {"memory_bytes", again.memory.total()}}
                             .dump());
    } else {
      fmt::print(
          "{}: cost {} and memory {} follow from the archive; no cheaper plan than the bound of {} "
          "was found\n",
          given.plan, format_ps(again.cost), format_bytes(again.memory.total()),
          format_ps(opened.plan.lower_bound));
    }
    return 0;
  });
}

}  // namespace

std::function<int()> add_explain(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("plan", given->plan, "plan.json")->required();
  app.add_option("--operator", given->op,
                 "a module (layers.0.mlp, * for any layer) or an operator's output: what each "
                 "other partition of its "
                 "operators would cost, all else chosen anew");
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run_explain(*given); };
}

std::function<int()> add_diff(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("first", given->plan, "plan.json")->required();
  app.add_option("second", given->other, "another plan.json")->required();
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run_diff(*given); };
}

std::function<int()> add_check(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("plan", given->plan, "plan.json; its archive is read too")->required();
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run_check(*given); };
}

}  // namespace nnscaler
