#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/graph/archive.h"
#include "core/ops/rule.h"

namespace nnscaler {

namespace {

using Json = nlohmann::ordered_json;

Json operand_json(const BoundOperand& operand) {
  return {{"dims", operand.dims}, {"no_gradient_sum", operand.no_gradient_sum}};
}

/// Everything that the planner and the lowering know of an operator.
Json rule_json(const Graph& graph, const Operator& op) {
  static constexpr const char* kReductions[] = {"sum", "max", "min"};
  const BoundRule rule = bind_rule(graph, op);
  Json json;
  json["target"] = op.target;
  json["signatures"] = signatures_of(graph, op);
  json["outputs_named"] = Json::array();
  for (const ValueId id : op.outputs)
    json["outputs_named"].push_back(id.valid() ? Json(graph.value(id).name) : Json());
  json["known"] = rule.known;
  json["annotation"] = rule.annotation;
  json["names"] = Json::array();
  for (const BoundName& name : rule.names) {
    Json entry = {{"name", name.name}, {"extent", name.extent}, {"splittable", name.splittable}};
    if (!name.splittable) entry["why_not"] = name.why_not;
    if (name.partial) entry["partial"] = kReductions[static_cast<size_t>(name.reduction)];
    if (name.rescale) entry["rescale"] = true;
    if (!name.keyword.empty()) entry["keyword"] = name.keyword;
    if (!name.once.empty()) entry["once"] = name.once;
    json["names"].push_back(std::move(entry));
  }
  json["inputs"] = Json::array();
  for (const BoundOperand& operand : rule.inputs) json["inputs"].push_back(operand_json(operand));
  json["outputs"] = Json::array();
  for (const BoundOperand& operand : rule.outputs) json["outputs"].push_back(operand_json(operand));
  json["linear"] = Json::array();
  for (const LinearIn& group : rule.linear) json["linear"].push_back(group.inputs);
  json["callee"] = rule.callee;
  json["size_argument"] = rule.size_argument;
  json["divide_argument"] = rule.divide_argument;
  json["divide_name"] = rule.divide_name;
  json["random"] = rule.random;
  json["view"] = rule.view;
  json["fused"] = rule.fused;
  json["mutated_inputs"] = rule.mutated_inputs;
  json["saved_inputs"] = rule.saved_inputs;
  json["saved_outputs"] = rule.saved_outputs;
  json["forward_flops"] = rule.forward_flops;
  json["backward_flops"] = rule.backward_flops;
  return json;
}

void print_rules(const Graph& graph, bool as_json) {
  Json all = Json::array();
  for (const Operator& op : graph.operators) {
    if (as_json) {
      all.push_back(rule_json(graph, op));
      continue;
    }
    const BoundRule rule = bind_rule(graph, op);
    fmt::print("{:<44} {}\n", rule.signature, rule.known ? rule.annotation : "replicated: no rule");
    for (const BoundName& name : rule.names) {
      if (!name.splittable) fmt::print("{:<44}   {}: {}\n", "", name.name, name.why_not);
    }
  }
  if (as_json) fmt::print("{}\n", Json{{"operators", all}}.dump(1));
}

/// docs/operators.md: for each family and rule, the functions that it holds for.
void print_markdown() {
  fmt::print(
      "# Operators\n\n"
      "Printed by `nnscaler operators --markdown`. Everything else is replicated, with a warning.\n"
      "`nnscaler operators --bind model.pt2` prints what each operator of a model is bound to.\n\n"
      "In a rule a plain name may be split, `k+` leaves partial sums in outputs without it, `k^` "
      "is\n"
      "never split, `*` stands for any dims, `(h d)` is one dim made of two, split at `h`. Names\n"
      "with a length of 1, or one that is symbolic, are not split.\n");
  std::string family;
  const std::vector<TableRow> rows = operator_table();
  for (auto row = rows.begin(); row != rows.end();) {
    if (row->family != family) {
      family = row->family;
      fmt::print("\n## {}{}\n\n| rule | functions |\n|---|---|\n",
                 static_cast<char>(std::toupper(static_cast<unsigned char>(family[0]))),
                 family.substr(1));
    }
    const std::string rule = row->annotation;
    std::vector<std::string> names;
    for (; row != rows.end() && row->family == family && row->annotation == rule; ++row) {
      for (const std::string& group : split(row->signature, '|')) {
        const std::string name = split(strip(group), ' ').front();
        const bool known = std::find(names.begin(), names.end(), name) != names.end();
        if (!name.empty() && !known) names.push_back(name);
      }
    }
    if (names.empty()) names.push_back("arithmetic on sizes");
    fmt::print("| `{}` | {} |\n", rule, join(names, ", "));
  }
}

void print_table(bool as_json) {
  const std::vector<TableRow> rows = operator_table();
  if (as_json) {
    Json all = Json::array();
    for (const TableRow& row : rows) {
      all.push_back({{"family", row.family},
                     {"target", row.target},
                     {"signatures", row.signature},
                     {"annotation", row.annotation}});
    }
    fmt::print("{}\n", Json{{"operators", all}}.dump(1));
    return;
  }
  std::string family;
  for (const TableRow& row : rows) {
    if (row.family != family) fmt::print("{}{}\n", family.empty() ? "" : "\n", row.family);
    family = row.family;
    fmt::print("  {:<40} {:<44} {}\n", row.target.empty() ? "a function kept whole" : row.target,
               row.signature.substr(0, row.signature.find(' ')), row.annotation);
  }
}

}  // namespace

std::function<int()> add_operators(CLI::App& app) {
  struct Options {
    std::string archive;
    bool json = false, markdown = false;
  };
  auto options = std::make_shared<Options>();
  app.add_option("--bind", options->archive, "print the rule of each operator of this archive")
      ->type_name("MODEL.pt2");
  app.add_flag("--json", options->json, "one JSON object on standard output");
  app.add_flag("--markdown", options->markdown, "print docs/operators.md")->excludes("--json");
  return [options] {
    if (options->markdown) {
      print_markdown();
    } else if (options->archive.empty()) {
      print_table(options->json);
    } else {
      print_rules(read_archive(options->archive), options->json);
    }
    return 0;
  };
}

}  // namespace nnscaler
