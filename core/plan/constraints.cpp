#include "core/plan/constraints.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/yaml.h"

namespace nnscaler {

namespace {

/// "a", "a or b", "a, b or c"
std::string join_words(const std::vector<std::string>& words, std::string_view last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? fmt::format(" {} ", last) : ", ";
    text += words[i];
  }
  return text;
}

// ---- Reading ------------------------------------------------------------------------------------

constexpr const char* kWriteDims =
    "write a list of \"input,dim\" that may be split, such as [\"1,0\"], [] for none, or leave the "
    "rule out for any";

std::optional<int> parse_count(std::string_view text) {
  const std::string stripped = strip(text);
  int value = 0;
  const auto [end, status] =
      std::from_chars(stripped.data(), stripped.data() + stripped.size(), value);
  if (status != std::errc() || end != stripped.data() + stripped.size()) return std::nullopt;
  return value;
}

std::optional<bool> parse_flag(const Yaml& at) {
  if (at.kind != Yaml::Kind::kScalar || at.quoted) return std::nullopt;
  std::string text = at.text;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

class RuleReader {
 public:
  explicit RuleReader(Mistakes& mistakes) : mistakes_(mistakes) {}

  void read(const Yaml& at) {
    if (at.kind != Yaml::Kind::kMap) {
      mistakes_.add(at, fmt::format("a rule is a map with name and allowed_partition_dims, but "
                                    "this is {}",
                                    at.describe()));
      return;
    }
    check_keys(at, {"name", "parent_module", "allowed_partition_dims", "replica_allowed"}, "a rule",
               mistakes_);
    Constraint rule;
    rule.where = mistakes_.where(at);
    read_name(at, &rule);
    read_parent(at, &rule);
    const bool has_dims = read_dims(at, &rule);
    if (const Yaml* flag = at.find("replica_allowed")) {
      const std::optional<bool> value = parse_flag(*flag);
      if (value) {
        rule.replica_allowed = *value;
      } else {
        mistakes_.add(*flag,
                      fmt::format("replica_allowed is {}; write true or false", flag->describe()));
      }
    }
    if (has_dims && rule.allowed_dims.empty() && !rule.replica_allowed) {
      mistakes_.add(at, fmt::format("rule for {} allows neither a split (allowed_partition_dims: "
                                    "[]) nor replication (replica_allowed: false); allow one",
                                    rule.name));
    }
    rule.text = describe(rule);
    check_twice(at, rule);
    rules.push_back(std::move(rule));
  }

  std::vector<Constraint> rules;

 private:
  static std::string describe(const Constraint& rule) {
    std::vector<std::string> pairs;
    for (const auto& [input, dim] : rule.allowed_dims) {
      pairs.push_back(fmt::format("\"{},{}\"", input, dim));
    }
    return fmt::format("{}{}: {}{}", rule.name,
                       rule.parent_module.empty() ? "" : " in " + rule.parent_module,
                       pairs.empty() ? "no split" : join(pairs, ", "),
                       rule.replica_allowed ? "" : ", not replicated");
  }

  void read_name(const Yaml& at, Constraint* rule) {
    const Yaml* name = at.find("name");
    if (!name) {
      mistakes_.add(at,
                    "a rule lacks name; write the operator's signature, such as "
                    "torch.nn.functional.linear");
    } else if (name->kind != Yaml::Kind::kScalar || strip(name->text).empty()) {
      mistakes_.add(*name, fmt::format("name is {}; write the operator's signature, such as "
                                       "torch.nn.functional.linear",
                                       name->describe()));
    } else {
      rule->name = strip(name->text);
      rule->name_where = mistakes_.where(*name);
    }
  }

  void read_parent(const Yaml& at, Constraint* rule) {
    const Yaml* parent = at.find("parent_module");
    if (!parent) return;
    if (parent->kind != Yaml::Kind::kScalar) {
      mistakes_.add(*parent, fmt::format("parent_module is {}; write class names or qualified "
                                         "names, such as DecoderLayer or layers.*.mlp, or leave it "
                                         "out for every module",
                                         parent->describe()));
      return;
    }
    rule->parent_module = strip(parent->text);
    rule->parent_where = mistakes_.where(*parent);
    if (rule->parent_module.empty()) return;
    for (const std::string& component : split(rule->parent_module, '.')) {
      if (component.empty()) {
        mistakes_.add(*parent,
                      fmt::format("parent_module {} has an empty component", parent->describe()));
        return;
      }
      if (component != "*" && component.find('*') != std::string::npos) {
        mistakes_.add(*parent, fmt::format("parent_module {}: * stands for one whole component; "
                                           "write * or the component's name",
                                           parent->describe()));
        return;
      }
    }
  }

  /// Whether there is a list, be its pairs right or wrong.
  bool read_dims(const Yaml& at, Constraint* rule) {
    const Yaml* dims = at.find("allowed_partition_dims");
    if (!dims) {
      mistakes_.add(at, fmt::format("rule{} lacks allowed_partition_dims; {}",
                                    rule->name.empty() ? "" : " for " + rule->name, kWriteDims));
      return false;
    }
    if (dims->kind != Yaml::Kind::kList) {
      mistakes_.add(*dims,
                    fmt::format("allowed_partition_dims is {}; {}", dims->describe(), kWriteDims));
      return false;
    }
    bool all_right = true;
    for (const Yaml& item : dims->items) {
      const auto pair = read_pair(item);
      if (!pair) {
        all_right = false;
        continue;
      }
      const auto begin = rule->allowed_dims.begin(), end = rule->allowed_dims.end();
      if (std::find(begin, end, *pair) != end) continue;
      rule->allowed_dims.push_back(*pair);
      rule->dims_where.push_back(mistakes_.where(item));
    }
    return all_right;
  }

  std::optional<std::pair<int, int>> read_pair(const Yaml& item) {
    std::vector<std::string> parts;
    std::string shown = item.describe();
    if (item.kind == Yaml::Kind::kScalar) {
      parts = split(item.text, ',');
    } else if (item.kind == Yaml::Kind::kList) {
      for (const Yaml& part : item.items) {
        parts.push_back(part.kind == Yaml::Kind::kScalar ? part.text : part.describe());
      }
      shown = fmt::format("[{}]", join(parts, ", "));
    }
    if (parts.size() == 2) {
      const std::optional<int> input = parse_count(parts[0]), dim = parse_count(parts[1]);
      if (input && dim && *input >= 0 && *dim >= 0) return std::pair(*input, *dim);
      if (input && dim) {
        mistakes_.add(item, fmt::format("{} is negative; inputs and dimensions count from 0, and "
                                        "none counts from the end",
                                        shown));
        return std::nullopt;
      }
    }
    mistakes_.add(item,
                  fmt::format("{} is no pair of an input and a dimension; write \"input,dim\", "
                              "such as \"1,0\" for dimension 0 of input 1",
                              shown));
    return std::nullopt;
  }

  void check_twice(const Yaml& at, const Constraint& rule) {
    if (rule.name.empty()) return;
    for (const Constraint& other : rules) {
      if (other.name != rule.name || other.parent_module != rule.parent_module) continue;
      mistakes_.add(at,
                    fmt::format("a second rule for {} in {}, after that at {}; keep one", rule.name,
                                rule.parent_module.empty() ? "every module" : rule.parent_module,
                                other.where));
      return;
    }
  }

  Mistakes& mistakes_;
};

// ---- Matching modules ---------------------------------------------------------------------------

bool component_matches(const std::string& pattern, std::string_view component) {
  return pattern == "*" || pattern == component;
}

std::vector<std::string> path_components(const std::string& path) {
  return path.empty() ? std::vector<std::string>() : split(path, '.');
}

/// Whether the pattern matches class names of a run of frames that ends with frame `end`.
bool classes_end_at(const std::vector<std::string>& pattern, const ModuleStack& stack, size_t end) {
  if (pattern.size() > end + 1) return false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (!component_matches(pattern[i], stack[end + 1 - pattern.size() + i].short_class())) {
      return false;
    }
  }
  return true;
}

/// Whether the pattern matches a run of `components` that ends with component `end`.
bool path_ends_at(const std::vector<std::string>& pattern,
                  const std::vector<std::string>& components, size_t end) {
  if (pattern.size() > end + 1) return false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (!component_matches(pattern[i], components[end + 1 - pattern.size() + i])) return false;
  }
  return true;
}

/// Length of the longest match that ends with the module of frame `end`, 0 for none.
int match_length(const std::string& pattern, const std::vector<std::string>& parts,
                 const ModuleStack& stack, size_t end) {
  const std::vector<std::string> components = path_components(stack[end].path);
  if (classes_end_at(parts, stack, end) ||
      (!components.empty() && path_ends_at(parts, components, components.size() - 1))) {
    return static_cast<int>(parts.size());
  }
  return pattern == stack[end].class_name ? 1 : 0;
}

/// Everything that a pattern with as many components could have named: for nearest names.
void add_runs(const ModuleStack& stack, size_t length, std::set<std::string>* classes,
              std::set<std::string>* paths) {
  for (size_t end = 0; end < stack.size(); ++end) {
    if (length <= end + 1) {
      std::vector<std::string> names;
      for (size_t i = end + 1 - length; i <= end; ++i) names.push_back(stack[i].short_class());
      classes->insert(join(names, "."));
    }
    const std::vector<std::string> components = path_components(stack[end].path);
    for (size_t begin = 0; begin + length <= components.size(); ++begin) {
      const auto first = components.begin() + static_cast<std::ptrdiff_t>(begin);
      paths->insert(join({first, first + static_cast<std::ptrdiff_t>(length)}, "."));
    }
  }
}

/// "; did you mean SelfAttention?" from what the stacks hold.
std::string nearest_modules(const std::string& pattern, const std::vector<ModuleStack>& stacks) {
  const size_t length = split(pattern, '.').size();
  std::set<std::string> classes, paths;
  for (const ModuleStack& stack : stacks) add_runs(stack, length, &classes, &paths);
  std::vector<std::string> names(classes.begin(), classes.end());
  names.insert(names.end(), paths.begin(), paths.end());
  return did_you_mean(pattern, names);
}

}  // namespace

std::vector<Constraint> parse_constraints(const std::string& text, const std::string& file) {
  const Yaml root = parse_yaml(text, file);
  Mistakes mistakes(file);
  RuleReader reader(mistakes);
  if (root.kind == Yaml::Kind::kList) {
    for (const Yaml& item : root.items) reader.read(item);
  } else if (root.kind == Yaml::Kind::kNull) {
    mistakes.add(root, "holds no rules; write a list of rules, or [] for none");
  } else {
    mistakes.add(root, fmt::format("a constraints file is a list of rules, but this is {}; start "
                                   "each rule with \"- name: \"",
                                   root.describe()));
  }
  mistakes.raise_if_any();
  return std::move(reader.rules);
}

ModuleMatch match_module(const std::string& pattern, const ModuleStack& stack) {
  const int depth = static_cast<int>(stack.size());
  if (pattern.empty()) return {true, depth, 0};
  const std::vector<std::string> parts = split(pattern, '.');
  ModuleMatch best;
  const auto offer = [&best](int distance, int length) {
    if (best.matches && std::pair(best.distance, -best.length) <= std::pair(distance, -length)) {
      return;
    }
    best = {true, distance, length};
  };
  for (int frame = depth - 1; frame >= 0; --frame) {
    const size_t end = static_cast<size_t>(frame);
    if (const int length = match_length(pattern, parts, stack, end); length > 0) {
      offer(depth - 1 - frame, length);
    }
    // A run may also end at a container (a ModuleList), which is no frame: what lies between are
    // the modules inside it.
    const std::vector<std::string> components = path_components(stack[end].path);
    for (size_t component = 0; component + 1 < components.size(); ++component) {
      if (!path_ends_at(parts, components, component)) continue;
      const auto first = components.begin();
      const std::string prefix =
          join({first, first + static_cast<std::ptrdiff_t>(component) + 1}, ".") + ".";
      int inside = depth - 1 - frame;
      for (size_t i = 0; i <= end; ++i) inside += stack[i].path.starts_with(prefix) ? 1 : 0;
      offer(inside, static_cast<int>(parts.size()));
    }
  }
  return best;
}

// ---- Matching operators -------------------------------------------------------------------------

namespace {

/// "\"0,0\" (m)"
std::string pair_text(size_t input, size_t dim) { return fmt::format("\"{},{}\"", input, dim); }

/// The name of an operator's dimension as its annotation has it: "m", "(h d)", "fixed".
std::string dim_label(const BoundRule& rule, const std::vector<int>& names) {
  if (names.empty()) return "fixed";
  std::vector<std::string> words;
  for (const int name : names) words.push_back(rule.names[static_cast<size_t>(name)].name);
  return words.size() == 1 ? words[0] : "(" + join(words, " ") + ")";
}

/// The outermost splittable name of a dimension, or -1.
int splittable_name(const BoundRule& rule, const std::vector<int>& names) {
  for (const int name : names) {
    if (rule.names[static_cast<size_t>(name)].splittable) return name;
  }
  return -1;
}

/// The name that a pair stands for in this operator, or -1.
int name_at(const BoundRule& rule, std::pair<int, int> pair) {
  const size_t input = static_cast<size_t>(pair.first), dim = static_cast<size_t>(pair.second);
  if (input >= rule.user_inputs.size() || dim >= rule.user_inputs[input].size()) return -1;
  return splittable_name(rule, rule.user_inputs[input][dim]);
}

/// What to write instead: the splittable dimensions of `input`, or without any (and for -1) the
/// first place of every splittable name.
std::string suggestion(const BoundRule& rule, int input) {
  std::vector<std::string> pairs;
  std::set<int> seen;
  for (size_t i = 0; i < rule.user_inputs.size(); ++i) {
    if (input >= 0 && static_cast<size_t>(input) != i) continue;
    for (size_t dim = 0; dim < rule.user_inputs[i].size(); ++dim) {
      const int name = splittable_name(rule, rule.user_inputs[i][dim]);
      if (name >= 0 && seen.insert(name).second) pairs.push_back(pair_text(i, dim));
    }
  }
  if (!pairs.empty()) return "; write " + join_words(pairs, "or");
  if (input >= 0) return suggestion(rule, -1);
  return "; it can only be replicated: write allowed_partition_dims: []";
}

/// Why a pair fits no operator, told by one of them.
std::string misfit(const BoundRule& rule, std::pair<int, int> pair) {
  const size_t input = static_cast<size_t>(pair.first), dim = static_cast<size_t>(pair.second);
  const auto& inputs = rule.user_inputs;
  const std::string quoted =
      rule.annotation.empty() ? "" : fmt::format(" in \"{}\"", rule.annotation);
  if (inputs.empty())
    return fmt::format("it has no input that may be split{}", suggestion(rule, -1));
  if (input >= inputs.size()) {
    std::vector<std::string> numbers;
    for (size_t i = 0; i < inputs.size(); ++i) numbers.push_back(std::to_string(i));
    return fmt::format("it has only input{} {}{}{}", numbers.size() == 1 ? "" : "s",
                       join_words(numbers, "and"), quoted, suggestion(rule, -1));
  }
  if (dim >= inputs[input].size()) {
    if (inputs[input].empty()) {
      return fmt::format("its input {} has no dimension that may be split{}{}", input, quoted,
                         suggestion(rule, -1));
    }
    std::vector<std::string> dims;
    for (size_t i = 0; i < inputs[input].size(); ++i) {
      dims.push_back(fmt::format("{} ({})", i, dim_label(rule, inputs[input][i])));
    }
    return fmt::format("its input {} has only dimension{} {}{}", input, dims.size() == 1 ? "" : "s",
                       join_words(dims, "and"), suggestion(rule, pair.first));
  }
  const std::vector<int>& names = inputs[input][dim];
  if (names.empty()) {
    return fmt::format("dimension {} of its input {} has a fixed length{}{}", dim, input, quoted,
                       suggestion(rule, pair.first));
  }
  const BoundName& name = rule.names[static_cast<size_t>(names[0])];
  return fmt::format("{}{} may not be split: {}{}", dim_label(rule, names), quoted,
                     name.why_not.empty() ? "its operator does not allow it" : name.why_not,
                     suggestion(rule, pair.first));
}

/// Whether every axis can split one of `names`, each name evenly by all axes that split it.
bool divides(const std::vector<int64_t>& extents, const std::vector<int>& axis_sizes, size_t axis,
             std::vector<int64_t>* parts) {
  if (axis == axis_sizes.size()) return true;
  if (axis_sizes[axis] == 1) return divides(extents, axis_sizes, axis + 1, parts);
  for (size_t i = 0; i < extents.size(); ++i) {
    const int64_t before = (*parts)[i], after = before * axis_sizes[axis];
    if (extents[i] % after != 0 || extents[i] < after) continue;
    (*parts)[i] = after;
    if (divides(extents, axis_sizes, axis + 1, parts)) return true;
    (*parts)[i] = before;
  }
  return false;
}

class Matcher {
 public:
  Matcher(const Graph& graph, const std::vector<BoundRule>& rules,
          const std::vector<Constraint>& constraints, const std::vector<int>& axis_sizes,
          const Signatures& signatures)
      : graph_(graph),
        rules_(rules),
        constraints_(constraints),
        axis_sizes_(axis_sizes),
        signatures_(signatures) {}

  std::vector<ConstraintMatch> match() {
    std::vector<ConstraintMatch> matches(graph_.operators.size());
    matched_.resize(constraints_.size());
    held_.resize(constraints_.size());
    for (size_t op = 0; op < graph_.operators.size(); ++op) choose(op, &matches[op]);
    for (size_t rule = 0; rule < constraints_.size(); ++rule) {
      if (matched_[rule].empty()) {
        report_unmatched(constraints_[rule]);
      } else if (check_pairs(rule)) {
        check_choices(rule, matches);
      }
    }
    if (!mistakes_.empty()) throw InputError(join(mistakes_, "\n"));
    return matches;
  }

 private:
  bool has_name(size_t op, const std::string& name) const {
    const auto& names = signatures_.of_operators[op];
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  const ModuleMatch& module_match(size_t rule, int stack) {
    const auto [found, is_new] = module_matches_.try_emplace({rule, stack});
    if (is_new) {
      static const ModuleStack kNone;
      found->second = match_module(constraints_[rule].parent_module,
                                   stack < 0 ? kNone : graph_.stacks[static_cast<size_t>(stack)]);
    }
    return found->second;
  }

  /// "layers.0.fc1 (model.py:12)"
  std::string place(size_t op) const {
    const Operator& node = graph_.operators[op];
    const std::string path = node.stack < 0 ? "" : graph_.module_path(node);
    const SourceLine* source = graph_.source_of(node);
    const std::string line =
        source
            ? fmt::format("{}:{}", source->file.substr(source->file.rfind('/') + 1), source->line)
            : "";
    if (path.empty()) return line.empty() ? "the model" : line;
    return line.empty() ? path : fmt::format("{} ({})", path, line);
  }

  void choose(size_t op, ConstraintMatch* result) {
    const BoundRule& bound = rules_[op];
    ModuleMatch best;
    for (size_t rule = 0; rule < constraints_.size(); ++rule) {
      if (!has_name(op, constraints_[rule].name)) continue;
      const ModuleMatch match = module_match(rule, graph_.operators[op].stack);
      if (!match.matches) continue;
      matched_[rule].push_back(op);
      if (best.matches) {
        const auto rank = std::pair(match.distance, -match.length);
        const auto best_rank = std::pair(best.distance, -best.length);
        if (rank == best_rank) report_tie(op, static_cast<size_t>(result->constraint), rule);
        if (rank >= best_rank) continue;
      }
      best = match;
      result->constraint = static_cast<int>(rule);
    }
    if (result->constraint < 0) return;
    const Constraint& rule = constraints_[static_cast<size_t>(result->constraint)];
    held_[static_cast<size_t>(result->constraint)].push_back(op);
    result->replica_allowed = rule.replica_allowed;
    result->allowed_names.resize(bound.names.size());
    for (const auto& pair : rule.allowed_dims) {
      const int name = name_at(bound, pair);
      if (name >= 0) result->allowed_names[static_cast<size_t>(name)] = true;
    }
  }

  void report_tie(size_t op, size_t first, size_t second) {
    const Constraint &a = constraints_[first], &b = constraints_[second];
    if (a.allowed_dims == b.allowed_dims && a.replica_allowed == b.replica_allowed) return;
    if (!ties_.insert({first, second}).second) return;
    mistakes_.push_back(
        fmt::format("{}: rule for {} and that at {} ({}) hold alike for {}, and "
                    "differ; make one parent_module more precise, or keep one rule",
                    b.where, b.text, a.where, a.text, place(op)));
  }

  /// The innermost class, after the user's class where it is one of torch.nn: "MLP.Linear".
  static std::string caller(const ModuleStack& stack) {
    size_t user = stack.size();
    while (user > 1 && stack[user - 1].class_name.starts_with("torch.nn.")) --user;
    std::vector<std::string> names;
    for (size_t i = user - 1; i < stack.size(); ++i) names.push_back(stack[i].short_class());
    return join(names, ".");
  }

  void report_unmatched(const Constraint& rule) {
    std::vector<ModuleStack> stacks;
    std::set<std::string> callers;
    bool name_found = false;
    for (size_t op = 0; op < graph_.operators.size(); ++op) {
      if (!has_name(op, rule.name)) continue;
      name_found = true;
      const Operator& node = graph_.operators[op];
      if (node.stack < 0) continue;
      const ModuleStack& stack = graph_.stacks[static_cast<size_t>(node.stack)];
      stacks.push_back(stack);
      if (!stack.empty()) callers.insert(caller(stack));
    }
    if (!name_found) {
      report_unknown_name(rule);
      return;
    }
    const std::string& pattern = rule.parent_module;
    const bool is_module = std::any_of(
        graph_.stacks.begin(), graph_.stacks.end(),
        [&pattern](const ModuleStack& stack) { return match_module(pattern, stack).matches; });
    std::vector<std::string> names(callers.begin(), callers.end());
    const size_t num_callers = names.size();
    if (num_callers > 6) {
      names.resize(6);
      names.push_back(fmt::format("{} more classes", num_callers - 6));
    }
    const std::string called =
        names.empty() ? "" : fmt::format("; it is called in {}", join_words(names, "and"));
    if (is_module) {
      mistakes_.push_back(fmt::format("{}: module {} calls no {}{}", rule.parent_where, pattern,
                                      rule.name, called));
      return;
    }
    std::string hint = nearest_modules(pattern, stacks);
    if (hint.empty()) hint = nearest_modules(pattern, graph_.stacks);
    mistakes_.push_back(fmt::format("{}: rule for {} matches nothing: the model has no module {}{}",
                                    rule.parent_where, rule.name, pattern,
                                    hint.empty() ? called : hint));
  }

  void report_unknown_name(const Constraint& rule) {
    std::set<std::string> canonical, all;
    for (const auto& names : signatures_.of_operators) {
      if (!names.empty()) canonical.insert(names[0]);
      all.insert(names.begin(), names.end());
    }
    std::string hint = did_you_mean(rule.name, {canonical.begin(), canonical.end()});
    if (hint.empty()) hint = did_you_mean(rule.name, {all.begin(), all.end()});
    const auto& known = signatures_.known;
    if (std::find(known.begin(), known.end(), rule.name) != known.end()) {
      mistakes_.push_back(
          fmt::format("{}: rule matches nothing: the model never calls {}; remove the rule",
                      rule.name_where, rule.name));
      return;
    }
    if (hint.empty()) {
      std::vector<std::string> names(canonical.begin(), canonical.end());
      const size_t num_names = names.size();
      if (num_names > 12) {
        names.resize(12);
        names.push_back(fmt::format("{} more", num_names - 12));
      }
      if (!names.empty()) hint = "; it calls " + join_words(names, "and");
    }
    mistakes_.push_back(fmt::format("{}: rule matches nothing: the model calls no operator {}{}",
                                    rule.name_where, rule.name, hint));
  }

  /// Whether each pair of a rule fits an operator; reports those that do not.
  bool check_pairs(size_t index) {
    const Constraint& rule = constraints_[index];
    const std::vector<size_t>& ops = matched_[index];
    const bool asks = !rule.allowed_dims.empty() || !rule.replica_allowed;
    if (asks &&
        std::none_of(ops.begin(), ops.end(), [this](size_t op) { return rules_[op].known; })) {
      mistakes_.push_back(fmt::format(
          "{}: rule for {} cannot hold: the operator has no annotation, so it is always "
          "replicated; register one with nnscaler.register_op, or write "
          "allowed_partition_dims: [] with replica_allowed: true",
          rule.where, rule.name));
      return false;
    }
    bool all_fit = true;
    for (size_t i = 0; i < rule.allowed_dims.size(); ++i) {
      const std::pair<int, int> pair = rule.allowed_dims[i];
      const auto fits = [this, pair](size_t op) { return name_at(rules_[op], pair) >= 0; };
      if (std::any_of(ops.begin(), ops.end(), fits)) continue;
      all_fit = false;
      const size_t example =
          *std::find_if(ops.begin(), ops.end(), [this](size_t op) { return rules_[op].known; });
      mistakes_.push_back(fmt::format("{}: rule for {} allows \"{},{}\", but {}",
                                      rule.dims_where[i], rule.name, pair.first, pair.second,
                                      misfit(rules_[example], pair)));
    }
    return all_fit;
  }

  /// Operators that must be split must be able to.
  void check_choices(size_t index, const std::vector<ConstraintMatch>& matches) {
    const Constraint& rule = constraints_[index];
    if (rule.replica_allowed) return;
    std::vector<std::string> sizes;
    for (const int size : axis_sizes_) {
      if (size > 1) sizes.push_back(std::to_string(size));
    }
    if (sizes.empty()) return;
    std::vector<size_t> stuck;
    for (const size_t op : held_[index]) {
      if (!can_split(op, matches[op])) stuck.push_back(op);
    }
    if (stuck.empty()) return;
    const size_t op = stuck[0];
    const BoundRule& bound = rules_[op];
    std::vector<std::string> lengths;
    for (size_t i = 0; i < bound.names.size(); ++i) {
      if (!matches[op].allowed_names[i]) continue;
      lengths.push_back(fmt::format("{} is {} long", bound.names[i].name, bound.names[i].extent));
    }
    std::string reason;
    if (!bound.known) {
      reason = "it has no annotation and is always replicated";
    } else if (lengths.empty()) {
      std::vector<std::string> pairs;
      for (const auto& [input, dim] : rule.allowed_dims) {
        pairs.push_back(fmt::format("\"{},{}\"", input, dim));
      }
      reason =
          fmt::format("{} {} dimension of it that may be split{}", join_words(pairs, "or"),
                      pairs.size() == 1 ? "is no" : "names no",
                      bound.annotation.empty() ? "" : fmt::format(" (\"{}\")", bound.annotation));
    } else if (sizes.size() == 1) {
      reason = fmt::format("{}, which {} devices cannot share evenly", join_words(lengths, "and"),
                           sizes[0]);
    } else {
      reason = fmt::format("{}, which axes of {} devices cannot share evenly",
                           join_words(lengths, "and"), join_words(sizes, "and"));
    }
    const std::string others = stuck.size() == 1
                                   ? ""
                                   : fmt::format(" and {} more operator{}", stuck.size() - 1,
                                                 stuck.size() == 2 ? "" : "s");
    mistakes_.push_back(
        fmt::format("{}: rule for {} leaves {}{} no choice: {}; allow another "
                    "dimension or replica_allowed: true, or take another mesh",
                    rule.where, rule.name, place(op), others, reason));
  }

  bool can_split(size_t op, const ConstraintMatch& match) const {
    std::vector<int64_t> extents;
    for (size_t i = 0; i < match.allowed_names.size(); ++i) {
      if (match.allowed_names[i]) extents.push_back(rules_[op].names[i].extent);
    }
    std::vector<int64_t> parts(extents.size(), 1);
    return divides(extents, axis_sizes_, 0, &parts);
  }

  const Graph& graph_;
  const std::vector<BoundRule>& rules_;
  const std::vector<Constraint>& constraints_;
  const std::vector<int>& axis_sizes_;
  const Signatures& signatures_;
  std::vector<std::vector<size_t>> matched_;  ///< Operators that each rule matches.
  std::vector<std::vector<size_t>> held_;     ///< Those for which it is the closest.
  std::map<std::pair<size_t, int>, ModuleMatch> module_matches_;
  std::set<std::pair<size_t, size_t>> ties_;
  std::vector<std::string> mistakes_;
};

}  // namespace

std::vector<ConstraintMatch> match_constraints(const Graph& graph,
                                               const std::vector<BoundRule>& rules,
                                               const std::vector<Constraint>& constraints,
                                               const std::vector<int>& axis_sizes,
                                               const Signatures& signatures) {
  check(rules.size() == graph.operators.size() &&
            signatures.of_operators.size() == graph.operators.size(),
        "constraints need a rule and the signatures of each operator");
  return Matcher(graph, rules, constraints, axis_sizes, signatures).match();
}

std::vector<ConstraintMatch> match_constraints(const Graph& graph,
                                               const std::vector<BoundRule>& rules,
                                               const std::vector<Constraint>& constraints,
                                               const std::vector<int>& axis_sizes) {
  if (constraints.empty()) return std::vector<ConstraintMatch>(graph.operators.size());
  Signatures signatures;
  signatures.known = known_signatures();
  for (const Operator& op : graph.operators) {
    signatures.of_operators.push_back(signatures_of(graph, op));
  }
  return match_constraints(graph, rules, constraints, axis_sizes, signatures);
}

std::vector<int> match_recompute(const Graph& graph, const std::string& modules) {
  std::vector<int> groups(graph.operators.size(), -1);
  if (strip(modules).empty()) return groups;
  struct Pattern {
    std::string text;
    std::vector<std::string> parts;
    bool used = false;
  };
  std::vector<Pattern> patterns;
  for (const std::string& part : split(modules, ',')) {
    const std::string text = strip(part);
    std::vector<std::string> parts = split(text, '.');
    if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
      throw InputError(
          fmt::format("recompute_modules \"{}\": \"{}\" is no module; write class names "
                      "or qualified names, separated by commas",
                      modules, text));
    }
    patterns.push_back({text, std::move(parts)});
  }

  // Frames down to the outermost match tell module instances and their calls apart.
  using Instance = std::vector<std::pair<std::string, int>>;
  std::map<Instance, int> instances;
  std::map<int, int> group_of_stack;
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const int index = graph.operators[i].stack;
    const auto known = group_of_stack.find(index);
    if (known != group_of_stack.end()) {
      groups[i] = known->second;
      continue;
    }
    static const ModuleStack kNone;
    const ModuleStack& stack = index < 0 ? kNone : graph.stacks[static_cast<size_t>(index)];
    std::optional<size_t> outermost;  // frames before it
    for (Pattern& pattern : patterns) {
      if (pattern.text == "ROOT") {
        pattern.used = true;
        outermost = 0;
      }
      for (size_t frame = 0; frame < stack.size(); ++frame) {
        if (match_length(pattern.text, pattern.parts, stack, frame) == 0) continue;
        pattern.used = true;
        outermost = std::min(outermost.value_or(frame + 1), frame + 1);
        break;
      }
    }
    int group = -1;
    if (outermost) {
      Instance instance;
      for (size_t frame = 0; frame < *outermost; ++frame) {
        instance.emplace_back(stack[frame].path, stack[frame].call);
      }
      group = instances.try_emplace(instance, static_cast<int>(instances.size())).first->second;
    }
    group_of_stack[index] = group;
    groups[i] = group;
  }

  std::vector<std::string> mistakes;
  for (const Pattern& pattern : patterns) {
    if (pattern.used) continue;
    const bool is_container = std::any_of(
        graph.stacks.begin(), graph.stacks.end(),
        [&pattern](const ModuleStack& stack) { return match_module(pattern.text, stack).matches; });
    mistakes.push_back(
        is_container
            ? fmt::format("recompute_modules: {} is a container that is never called itself; name "
                          "what it holds: {}.*",
                          pattern.text, pattern.text)
            : fmt::format("recompute_modules: {} matches no module of the model{}", pattern.text,
                          nearest_modules(pattern.text, graph.stacks)));
  }
  if (!mistakes.empty()) throw InputError(join(mistakes, "\n"));
  return groups;
}

}  // namespace nnscaler
