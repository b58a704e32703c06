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
    throw InputError(fmt::format("{}: is not JSON: {}", path, parser_reason(error.what())));
  }
  if (!json.is_object() || !json.contains("format") || json.at("format") != 1) {
    throw InputError(fmt::format("{}: is no plan of format 1; make one with nnscaler plan", path));
  }
  for (const char* key : {"archive", "model", "mesh", "options", "certificate", "time_ps",
                          "memory_bytes", "rules", "operators", "redistributions", "reductions"}) {
    if (!json.contains(key)) {
      throw InputError(fmt::format(
          "{}: is no complete plan: \"{}\" is missing; make it again with nnscaler plan", path,
          key));
    }
  }
  return json;
}

/// A listing, printed when all of it is there: of a damaged plan nothing is printed by halves.
class Listing {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...);
  }
  void print() const { fmt::print("{}", text_); }

 private:
  std::string text_;
};

/// Runs what reads a plan and prints what it lists; a document with other contents than a plan's is
/// the user's mistake, not a bug of ours.
int guarded(const std::string& path, const std::function<void(Listing&)>& body) {
  try {
    Listing out;
    body(out);
    out.print();
    return 0;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is no complete plan: {}; make it again with nnscaler plan",
                                 path, parser_reason(error.what())));
  } catch (const std::out_of_range&) {
    throw InputError(fmt::format(
        "{}: has more entries for an operator than mesh axes; make it again with nnscaler plan",
        path));
  }
}

/// "layers.3.mlp" -> "layers.*.mlp"; the root is "the model"
std::string general(const std::string& module) {
  if (module.empty()) return "the model";
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
      parts.push_back(fmt::format("partial gradient passes over {}", axes.at(i)));
    } else if (text.rfind("partial", 0) == 0) {
      parts.push_back(fmt::format("partial sum passes over {}", axes.at(i)));
    } else {
      parts.push_back(fmt::format("{} over {}", text, axes.at(i)));
    }
  }
  return parts.empty() ? "replicated" : join(parts, ", ");
}

std::string steps_text(const Json& steps) {
  std::vector<std::string> parts;
  for (const Json& step : steps) {
    std::string text = fmt::format("{} over {}", step.at("step").get<std::string>(),
                                   step.at("axis").get<std::string>());
    if (step.contains("dim")) text += fmt::format(" dim {}", step.at("dim").get<int>());
    if (step.contains("to_dim")) text += fmt::format(" to dim {}", step.at("to_dim").get<int>());
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
  for (const std::string& axis : split(plan.at("mesh").get<std::string>(), ','))
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
  void print(Listing& out) const {
    if (order_.empty()) out.add("  none\n");
    for (const std::string& row : order_) {
      const int count = counts_.at(row);
      out.add("  {}{}\n", row, count > 1 ? fmt::format("  (x{})", count) : "");
    }
  }

 private:
  std::map<std::string, int> counts_;
  std::vector<std::string> order_;
};

int64_t integer(const Json& json) { return json.get<int64_t>(); }

std::string counted(const Json& count, const char* one, const char* many) {
  return fmt::format("{} {}", integer(count), integer(count) == 1 ? one : many);
}

void print_summary(Listing& out, const Json& plan) {
  const Json& options = plan.at("options");
  out.add("{} on {} ({}, {} a node; {} optimizer, {}, {})\n", plan.at("model").get<std::string>(),
          plan.at("mesh").get<std::string>(), options.at("device").get<std::string>(),
          integer(options.at("devices_per_node")), options.at("optimizer").get<std::string>(),
          counted(options.at("microbatches"), "microbatch", "microbatches"),
          counted(options.at("units"), "copy", "copies"));
  const Json& certificate = plan.at("certificate");
  const Json& time = plan.at("time_ps");
  out.add("step {}: computation {}, redistribution {}, gradient reduction {}\n",
          format_ps(integer(certificate.at("cost_ps"))), format_ps(integer(time.at("computation"))),
          format_ps(integer(time.at("redistribution"))),
          format_ps(integer(time.at("gradient_reduction"))));
  out.add("certificate: no plan costs less than {} (gap {:.3g} %), proven by {}; objective: {}\n",
          format_ps(integer(certificate.at("lower_bound_ps"))),
          100 * certificate.at("gap").get<double>(), certificate.at("method").get<std::string>(),
          certificate.at("objective").get<std::string>());
  const Json& memory = plan.at("memory_bytes");
  out.add("memory {} of {} a device:\n", format_bytes(integer(memory.at("total"))),
          format_bytes(integer(options.at("memory_budget_bytes"))));
  for (const auto& [what, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"parameters", "this rank's parts"},
           {"gradients", "one for each trained parameter"},
           {"optimizer", "its states"},
           {"buffers", "buffers and constants"},
           {"activations", "kept for backward, each once"},
           {"transient", "the largest working set of one operator or recomputed region"}}) {
    if (integer(memory.at(what)) > 0)
      out.add("  {:<12} {:>10}  {}\n", what, format_bytes(integer(memory.at(what))), why);
  }
}

void print_rules(Listing& out, const Json& plan, const std::vector<std::string>& axes) {
  if (plan.at("rules").empty()) return;
  out.add("rules:\n");
  for (size_t rule = 0; rule < plan.at("rules").size(); ++rule) {
    out.add("  {}: {}\n", plan.at("rules").at(rule).at("where").get<std::string>(),
            plan.at("rules").at(rule).at("rule").get<std::string>());
    std::map<std::string, int> chosen;
    std::vector<std::string> order;
    for (const Json& op : plan.at("operators")) {
      if (!op.contains("rule") || integer(op.at("rule")) != static_cast<int64_t>(rule)) continue;
      const std::string row = fmt::format("{}: {}", general(op.at("module").get<std::string>()),
                                          partition_text(op.at("partition"), axes));
      if (chosen[row]++ == 0) order.push_back(row);
    }
    for (const std::string& row : order) out.add("    {} operator(s) of {}\n", chosen[row], row);
  }
}

void print_operators(Listing& out, const Json& plan, const std::vector<std::string>& axes) {
  out.add("operators, module by module:\n");
  // Modules in order of first appearance, repeated ones together.
  std::vector<std::string> modules;
  std::map<std::string, std::vector<std::string>> rows;
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const Json& op : plan.at("operators")) {
    const std::string module = general(op.at("module").get<std::string>());
    std::string row = fmt::format("{:<28} {}", op.at("signature").get<std::string>(),
                                  partition_text(op.at("partition"), axes));
    if (op.contains("constant")) row += "  [depends on no input: whole]";
    if (op.contains("in_place")) row += "  [takes part in an in-place write]";
    if (op.at("annotation").get<std::string>().empty()) row += "  [has no rule: replicated]";
    if (op.contains("rule"))
      row += fmt::format(
          "  [rule {}]",
          plan.at("rules").at(op.at("rule").get<size_t>()).at("where").get<std::string>());
    if (!rows.count(module)) modules.push_back(module);
    if (counts[{module, row}]++ == 0) rows[module].push_back(row);
  }
  for (const std::string& module : modules) {
    out.add("  {}\n", module);
    for (const std::string& row : rows[module]) {
      const int count = counts[{module, row}];
      out.add("    {}{}\n", row, count > 1 ? fmt::format("  (x{})", count) : "");
    }
  }
}

void print_communication(Listing& out, const Json& plan) {
  out.add("redistributions:\n");
  Folded moves;
  for (const Json& move : plan.at("redistributions")) {
    const int64_t bytes = integer(move.at("forward_bytes")) + integer(move.at("backward_bytes"));
    if (bytes == 0) continue;
    std::string reader = "shared by its readers";
    if (move.at("reader").is_number()) {
      const Json& op = plan.at("operators").at(move.at("reader").get<size_t>());
      reader = fmt::format("for {} of {}", op.at("signature").get<std::string>(),
                           general(op.at("module").get<std::string>()));
      if (op.contains("rule"))
        reader += fmt::format(
            " [rule {}]",
            plan.at("rules").at(op.at("rule").get<size_t>()).at("where").get<std::string>());
    } else if (move.at("reader") == "output") {
      reader = "for the caller";
    }
    const bool named = move.contains("fqn");
    moves.add(fmt::format("{} {} -> {} {}: forward {}, backward {}; {} sent, {}",
                          named ? general(move.at("fqn").get<std::string>()) : "a value",
                          layout_text(move.at("from")), layout_text(move.at("to")), reader,
                          steps_text(move.at("forward")), steps_text(move.at("backward")),
                          format_bytes(bytes), format_ps(integer(move.at("ps")))));
  }
  moves.print(out);
  out.add("gradients reduced once a step:\n");
  Folded reductions;
  for (const Json& entry : plan.at("reductions")) {
    std::vector<std::string> over;
    for (const Json& axis : entry.at("axes")) over.push_back(axis.get<std::string>());
    if (integer(entry.at("units")) > 1)
      over.push_back(fmt::format("{} copies", integer(entry.at("units"))));
    reductions.add(fmt::format("{}: all-reduce over {}, {} (sends {}), {}",
                               general(entry.at("parameter").get<std::string>()),
                               join(over, " and "), format_bytes(integer(entry.at("bytes"))),
                               format_bytes(integer(entry.at("sent_bytes"))),
                               format_ps(integer(entry.at("ps")))));
  }
  reductions.print(out);
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
  opened.prepared = open_archive(json.at("archive").at("path").get<std::string>(),
                                 recompute_modules_of(text, path));
  opened.plan = plan_from_json(text, path, opened.prepared);
  opened.plan.options = options_of(opened.plan);
  return opened;
}

void print_alternatives(Listing& out, const Options& given, const Json& json,
                        const std::vector<std::string>& axes) {
  const Opened opened = open_plan(given.plan);
  std::set<std::string> shown;
  Json list = Json::array();
  bool found = false;
  for (size_t i = 0; i < opened.prepared.graph.operators.size(); ++i) {
    const Json& row = json.at("operators").at(i);
    const std::string module = row.at("module").get<std::string>();
    if (module != given.op && general(module) != given.op && row.at("output") != given.op) continue;
    found = true;
    // Layers that are alike have the same alternatives.
    if (!shown
             .insert(general(module) + "|" + row.at("signature").get<std::string>() + "|" +
                     row.at("source").get<std::string>())
             .second)
      continue;
    const BoundRule& rule = opened.prepared.rules[i];
    if (!given.json) {
      out.add("{}: {}\n  annotation {}\n", describe(opened.prepared, OpId{static_cast<int>(i)}),
              partition_text(row.at("partition"), axes), rule.annotation);
      for (const BoundName& name : rule.names) {
        if (!name.splittable)
          out.add("  {} ({}) may not be split: {}\n", name.name, name.extent, name.why_not);
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
        out.add("  {} {:<40} {}\n", chosen ? "*" : " ", partition_text(partition, axes),
                alternative.cost == opened.plan.cost
                    ? "the plan's cost"
                    : fmt::format("+{}", format_ps(alternative.cost - opened.plan.cost)));
      }
    }
  }
  if (!found) {
    std::vector<std::string> names;
    for (const Json& op : json.at("operators")) names.push_back(op.at("module").get<std::string>());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::string hint = did_you_mean(given.op, names);
    if (hint.empty()) hint = "; write a module's qualified name, * for any layer";
    throw InputError(
        fmt::format("--operator {}: the plan has no such module or output{}", given.op, hint));
  }
  if (given.json) out.add("{}\n", list.dump(1));
}

int run_explain(const Options& given) {
  return guarded(given.plan, [&](Listing& out) {
    const Json plan = read_plan(given.plan);
    const std::vector<std::string> axes = axis_names(plan);
    if (!given.op.empty()) return print_alternatives(out, given, plan, axes);
    if (given.json) {
      out.add("{}\n", plan.dump(1));
      return;
    }
    print_summary(out, plan);
    print_rules(out, plan, axes);
    print_operators(out, plan, axes);
    print_communication(out, plan);
  });
}

int run_diff(const Options& given) {
  return guarded(given.plan + " or " + given.other, [&](Listing& out) {
    const Json a = read_plan(given.plan);
    const Json b = read_plan(given.other);
    const std::vector<std::string> axes_a = axis_names(a);
    const std::vector<std::string> axes_b = axis_names(b);
    Folded rows;
    int different = 0;
    const bool same_model = a.at("archive").at("digest") == b.at("archive").at("digest");
    if (same_model) {
      for (size_t i = 0; i < a.at("operators").size(); ++i) {
        const Json& x = a.at("operators").at(i);
        const Json& y = b.at("operators").at(i);
        const std::string from = partition_text(x.at("partition"), axes_a);
        const std::string to = partition_text(y.at("partition"), axes_b);
        if (from == to) continue;
        ++different;
        rows.add(fmt::format("{} of {}: {} | {}", x.at("signature").get<std::string>(),
                             general(x.at("module").get<std::string>()), from, to));
      }
    }
    const auto cost = [](const Json& plan) {
      return integer(plan.at("certificate").at("cost_ps"));
    };
    const auto memory = [](const Json& plan) {
      return integer(plan.at("memory_bytes").at("total"));
    };
    if (given.json) {
      Json json;
      json["same_archive"] = same_model;
      json["cost_ps"] = {cost(a), cost(b)};
      json["memory_bytes"] = {memory(a), memory(b)};
      json["operators_that_differ"] = different;
      out.add("{}\n", json.dump(1));
      return;
    }
    out.add("{:<18} {:>14} {:>14}\n", "", given.plan, given.other);
    out.add("{:<18} {:>14} {:>14}\n", "mesh", a.at("mesh").get<std::string>(),
            b.at("mesh").get<std::string>());
    out.add("{:<18} {:>14} {:>14}\n", "step", format_ps(cost(a)), format_ps(cost(b)));
    for (const char* what : {"computation", "redistribution", "gradient_reduction"}) {
      out.add("{:<18} {:>14} {:>14}\n", what, format_ps(integer(a.at("time_ps").at(what))),
              format_ps(integer(b.at("time_ps").at(what))));
    }
    out.add("{:<18} {:>14} {:>14}\n", "memory", format_bytes(memory(a)), format_bytes(memory(b)));
    if (!same_model) {
      out.add("the plans are of different archives, so operators are not compared\n");
    } else {
      out.add("{} operator(s) differ\n", different);
      if (different > 0) rows.print(out);
    }
  });
}

int run_check(const Options& given) {
  return guarded(given.plan, [&](Listing& out) {
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
        json.at("rules").size() == opened.plan.options.constraints.size() &&
        !json.at("options").value("given_partitions", false)) {
      const Plan best = search(opened.prepared, opened.plan.options);
      if (best.cost < opened.plan.lower_bound) {
        throw InputError(fmt::format("{}: a plan of {} exists, below the bound of {}", given.plan,
                                     format_ps(best.cost), format_ps(opened.plan.lower_bound)));
      }
    }
    if (given.json) {
      out.add("{}\n", Json{{"cost_ps", again.cost},
                           {"lower_bound_ps", opened.plan.lower_bound},
                           {"memory_bytes", again.memory.total()}}
                          .dump());
    } else {
      out.add(
          "{}: cost {} and memory {} follow from the archive; no cheaper plan than the bound of {} "
          "was found\n",
          given.plan, format_ps(again.cost), format_bytes(again.memory.total()),
          format_ps(opened.plan.lower_bound));
    }
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
