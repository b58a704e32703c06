#include "core/plan/constraints.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "tests/golden.h"

namespace nnscaler {
namespace {

/// "layers.0:Layer#1 > layers.0.mlp:MLP" as frames below the root, which is a `Root` unless the
/// text begins with ":Class > ".
ModuleStack parse_stack(const std::string& text) {
  ModuleStack stack;
  std::string rest = strip(text);
  if (!rest.starts_with(":")) stack.push_back({"", 0, "pkg.model.Root"});
  while (!rest.empty()) {
    const size_t end = rest.find(" > ");
    const std::string frame = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 3);
    const size_t colon = frame.find(':'), hash = frame.find('#');
    std::string name = frame.substr(colon + 1, hash - colon - 1);
    if (name.find('.') == std::string::npos) name = "pkg.model." + name;
    stack.push_back({frame.substr(0, colon),
                     hash == std::string::npos ? 0 : std::stoi(frame.substr(hash + 1)), name});
  }
  return stack;
}

/// One side of an annotation: names are added to `rule` as they come.
std::vector<std::vector<std::vector<int>>> parse_shapes(const std::string& text, BoundRule* rule,
                                                        const std::map<std::string, int>& lengths) {
  std::vector<std::vector<std::vector<int>>> shapes;
  for (const std::string& shape : split(text, ',')) {
    shapes.emplace_back();
    bool inside = false;
    std::string spaced;
    for (const char c : shape) {
      spaced += c == '(' ? std::string("( ") : c == ')' ? std::string(" )") : std::string(1, c);
    }
    std::istringstream tokens(spaced);
    for (std::string token; tokens >> token;) {
      if (token == "?") continue;
      if (token == "(" || token == ")") {
        inside = token == "(";
        if (inside) shapes.back().emplace_back();
        continue;
      }
      if (!inside) shapes.back().emplace_back();
      if (std::isdigit(static_cast<unsigned char>(token[0]))) continue;
      BoundName name;
      const char mark = token.back();
      name.name = mark == '+' || mark == '^' ? token.substr(0, token.size() - 1) : token;
      name.splittable = mark != '^';
      name.why_not = mark == '^' ? "marked ^" : "";
      name.partial = mark == '+';
      name.extent = lengths.at(name.name);
      size_t index = 0;
      while (index < rule->names.size() && rule->names[index].name != name.name) ++index;
      if (index == rule->names.size()) rule->names.push_back(name);
      shapes.back().back().push_back(static_cast<int>(index));
    }
  }
  return shapes;
}

/// A model, a line an operator: `stack | signatures | annotation | lengths | file:line`, the last
/// two optional; "-" for an operator without a rule.
struct Model {
  Graph graph;
  std::vector<BoundRule> rules;
  Signatures signatures;

  Model() {
    signatures.known = {"torch.add", "torch.matmul", "torch.nn.functional.gelu",
                        "torch.nn.functional.linear"};
  }

  void add(const std::string& line) {
    std::vector<std::string> parts = split(line, '|');
    parts.resize(5);
    Operator op;
    op.stack = static_cast<int>(graph.stacks.size());
    graph.stacks.push_back(parse_stack(parts[0]));
    if (const std::string source = strip(parts[4]); !source.empty()) {
      op.trace = static_cast<int>(graph.traces.size());
      const size_t colon = source.rfind(':');
      graph.traces.push_back({{"/home/user/" + source.substr(0, colon),
                               std::stoi(source.substr(colon + 1)), "f", ""}});
    }
    graph.operators.push_back(op);

    std::istringstream names(parts[1]);
    signatures.of_operators.emplace_back();
    for (std::string name; names >> name;) signatures.of_operators.back().push_back(name);

    BoundRule rule;
    rule.annotation = strip(parts[2]);
    if (rule.annotation == "-") {
      rule.annotation = "";
      rule.known = false;
    } else if (!rule.annotation.empty()) {
      std::map<std::string, int> lengths;
      std::istringstream words(parts[3]);
      for (std::string word; words >> word;) {
        const auto pair = split(word, '=');
        lengths[pair[0]] = std::stoi(pair[1]);
      }
      const size_t arrow = rule.annotation.find("->");
      rule.user_inputs = parse_shapes(rule.annotation.substr(0, arrow), &rule, lengths);
    }
    rules.push_back(rule);
  }
};

std::string describe(const Constraint& rule) { return rule.where + ": " + rule.text + "\n"; }

TEST(Constraints, Read) {
  run_golden("plan/constraints/read.txt", [](const std::string& input) {
    std::string output;
    for (const Constraint& rule : parse_constraints(input, "constraints.yaml")) {
      output += describe(rule);
    }
    return output.empty() ? "no rules" : output;
  });
}

TEST(Constraints, ReadKeepsEveryPosition) {
  const auto rules = parse_constraints(
      "- name: torch.matmul\n"
      "  parent_module: Attention\n"
      "  allowed_partition_dims: ['0,0', '0,1']\n",
      "c.yaml");
  ASSERT_EQ(rules.size(), 1u);
  EXPECT_EQ(rules[0].name, "torch.matmul");
  EXPECT_EQ(rules[0].parent_module, "Attention");
  EXPECT_EQ(rules[0].allowed_dims, (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}}));
  EXPECT_TRUE(rules[0].replica_allowed);
  EXPECT_EQ(rules[0].where, "c.yaml:1:3");
  EXPECT_EQ(rules[0].name_where, "c.yaml:1:9");
  EXPECT_EQ(rules[0].parent_where, "c.yaml:2:18");
  EXPECT_EQ(rules[0].dims_where, (std::vector<std::string>{"c.yaml:3:28", "c.yaml:3:35"}));
}

TEST(Constraints, Modules) {
  run_golden("plan/constraints/modules.txt", [](const std::string& input) {
    const std::vector<std::string> lines = split(strip(input), '\n');
    const ModuleStack stack = parse_stack(lines[0]);
    std::string output;
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::string pattern = strip(lines[i]);
      const ModuleMatch match = match_module(pattern, stack);
      output += pattern +
                (match.matches ? ": distance " + std::to_string(match.distance) + ", length " +
                                     std::to_string(match.length)
                               : ": no") +
                "\n";
    }
    return output;
  });
}

TEST(Constraints, EveryModuleMatchesTheEmptyParent) {
  const ModuleMatch match = match_module("", parse_stack("a:A > a.b:B"));
  EXPECT_TRUE(match.matches);
  EXPECT_EQ(match.distance, 3);  // farther than the root
  EXPECT_EQ(match.length, 0);
  EXPECT_TRUE(match_module("", {}).matches);
  EXPECT_FALSE(match_module("A", {}).matches);
}

/// Sections "mesh 2,4", "model" with a line an operator, and "rules" with the YAML.
TEST(Constraints, Match) {
  run_golden("plan/constraints/match.txt", [](const std::string& input) {
    const size_t rules_at = input.find("rules\n");
    std::vector<int> axis_sizes;
    Model model;
    for (const std::string& line : split(input.substr(0, rules_at), '\n')) {
      if (line.starts_with("mesh ")) {
        for (const std::string& size : split(line.substr(5), ',')) {
          axis_sizes.push_back(std::stoi(size));
        }
      } else if (line.find('|') != std::string::npos) {
        model.add(line);
      }
    }
    const auto constraints = parse_constraints(input.substr(rules_at + 6), "constraints.yaml");
    const auto matches =
        match_constraints(model.graph, model.rules, constraints, axis_sizes, model.signatures);
    std::string output;
    for (size_t i = 0; i < matches.size(); ++i) {
      const ConstraintMatch& match = matches[i];
      output += model.graph.module_path(model.graph.operators[i]) + " " +
                model.signatures.of_operators[i][0] + ": ";
      if (match.constraint < 0) {
        output += "free\n";
        continue;
      }
      std::vector<std::string> names;
      for (size_t name = 0; name < match.allowed_names.size(); ++name) {
        if (match.allowed_names[name]) names.push_back(model.rules[i].names[name].name);
      }
      if (match.replica_allowed) names.push_back("replicate");
      output += "rule " + std::to_string(match.constraint) + ", " + join(names, " or ") + "\n";
    }
    return output;
  });
}

TEST(Constraints, Recompute) {
  run_golden("plan/constraints/recompute.txt", [](const std::string& input) {
    const size_t blank = input.find("\n\n");
    Model model;
    for (const std::string& line : split(strip(input.substr(0, blank)), '\n')) {
      model.add(line + " | op");
    }
    const std::string modules = input.substr(blank + 2, input.size() - blank - 3);
    std::string output;
    for (const int group : match_recompute(model.graph, modules)) {
      output += (output.empty() ? "" : " ") + std::to_string(group);
    }
    return output;
  });
}

}  // namespace
}  // namespace nnscaler
