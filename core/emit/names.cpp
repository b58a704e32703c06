#include "core/emit/names.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"
#include "core/emit/body.h"
#include "core/emit/python.h"
#include "core/ops/spelling.h"

namespace nnscaler::emission {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

/// Better names than the operators' own.
constexpr auto kHints = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"scaled_dot_product_attention", "attention"},
    {"cross_entropy_loss", "loss"},
    {"nll_loss_nd", "loss"},
    {"nll_loss", "loss"},
    {"mse_loss", "loss"},
    {"l1_loss", "loss"},
    {"to", "cast"},
    {"slice", "part"},
    {"select", "part"},
    {"index", "part"},
    {"sum", "total"},
    {"pow", "power"},
    {"abs", "magnitude"},
    {"max", "largest"},
    {"min", "smallest"},
    {"all", "flag"},
    {"any", "flag"},
    {"round", "rounded"},
    {"sym_size", "size"},
    {"lift_fresh_copy", "constant"},
    {"__and__", "both"},
    {"__or__", "either"},
    {"bitwise_and", "both"},
    {"bitwise_or", "either"},
    {"bitwise_not", "inverse"},
    {"split_with_sizes", "split"},
});

}  // namespace

std::vector<std::string> assigned_names(std::string_view line) {
  // The first `=` outside of brackets and strings that is no comparison.
  int depth = 0;
  size_t equal = std::string_view::npos;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\') ++i;
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    if (c == '#') break;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c != '=' || depth != 0) continue;
    if (i + 1 < line.size() && line[i + 1] == '=') return {};
    if (i > 0 && std::string_view("=<>!:").find(line[i - 1]) != std::string_view::npos) return {};
    equal = i;
    break;
  }
  if (equal == std::string_view::npos) return {};
  std::string_view left = line.substr(0, equal);
  while (!left.empty() &&
         std::string_view(" +-*/%@&|^<>").find(left.back()) != std::string_view::npos) {
    left.remove_suffix(1);
  }
  if (const size_t colon = left.find(':'); colon != std::string_view::npos) {
    left = left.substr(0, colon);
  }
  std::string text = strip(left);
  if (text.starts_with("(") && text.ends_with(")")) text = text.substr(1, text.size() - 2);
  if (text.find_first_of("()[]{} ") != std::string::npos && text.find(',') == std::string::npos) {
    return {};
  }
  std::vector<std::string> names;
  for (const std::string& part : split(text, ',')) {
    const std::string name = strip(part);
    if (name.empty()) continue;
    names.push_back(python::is_identifier(name) ? name : "");
  }
  return names;
}

std::string safe_name(const std::string& name) {
  std::string base;
  for (const char c : name) {
    base += is_lower(c) || is_upper(c) || (c >= '0' && c <= '9') || c == '_' ? c : '_';
  }
  if (base.empty()) base = "x";
  if (base[0] >= '0' && base[0] <= '9') base = "x" + base;
  // E741: names that look like digits.
  if (base == "l" || base == "O" || base == "I") base += "_";
  if (python::is_keyword(base) || python::is_builtin(base)) base += "_";
  return base;
}

std::string operator_hint(const Scopes& scopes, int index, int output) {
  const Operator& op = scopes.op(index);
  std::string name;
  if (op.target.starts_with("aten.")) {
    const std::string_view base = base_name(op.target);
    name = base;
    for (const auto& [aten, hint] : kHints) {
      if (aten == base) name = hint;
    }
  } else if (const LeafFunction* leaf = scopes.graph().leaf(op.target)) {
    const std::vector<std::string> parts = split(leaf->qualname, '.');
    name = parts.size() > 1 && parts.back() == "apply" ? parts[parts.size() - 2] : parts.back();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; });
    if (base_name(op.target) == "sym_size") {
      const Argument* dim = op.find("dim");
      const auto* number = dim == nullptr ? nullptr : std::get_if<int64_t>(&dim->value);
      if (number != nullptr) name = "size_" + std::to_string(*number);
    }
  } else if (op.target.starts_with("_operator.")) {
    name = "size";
  } else {
    const std::vector<std::string> parts = split(op.target, '.');
    name = parts.size() > 1 ? parts[1] : parts[0];
  }
  while (name.size() > 1 && name.back() == '_') name.pop_back();
  if (op.outputs.size() > 1) name += "_" + std::to_string(output);
  return safe_name(name);
}

bool is_view(const Operator& op) {
  static constexpr auto kViews = std::to_array<std::string_view>(
      {"view",      "reshape", "transpose", "permute", "contiguous", "unsqueeze",   "squeeze",
       "expand",    "flatten", "to",        "repeat",  "unflatten",  "t",           "type_as",
       "expand_as", "view_as", "alias",     "clone",   "detach",     "broadcast_to"});
  if (op.target == "nnscaler.redistribute") return true;
  return op.target.starts_with("aten.") &&
         std::find(kViews.begin(), kViews.end(), base_name(op.target)) != kViews.end();
}

std::string source_hint(const Scopes& scopes, int value, int call, bool innermost) {
  for (int steps = 0; steps < 8; ++steps) {
    const Value& made = scopes.value(value);
    if (!made.producer.valid()) return "";
    const Operator& op = scopes.op(made.producer.index);
    // From the call where the name is wanted down to the one that made the value.
    std::vector<int> frames;
    int c = scopes.call_of[at(made.producer.index)];
    for (; c >= 0 && c != call; c = scopes.calls[at(c)].parent) {
      frames.push_back(scopes.calls[at(c)].frame);
    }
    if (c < 0) return "";
    frames.push_back(scopes.calls[at(call)].frame);
    if (!innermost) std::reverse(frames.begin(), frames.end());
    // A redistribution's line is that of its reader.
    if (op.target == "nnscaler.redistribute") frames.clear();
    for (const int frame : frames) {
      const SourceLine* line = source_line(scopes.graph(), op, frame);
      if (line == nullptr) continue;
      std::vector<std::string> names = assigned_names(line->text);
      if (op.outputs.size() > 1 && names.size() == op.outputs.size()) {
        const std::string& name = names[at(made.output_index)];
        if (!name.empty() && name != "_") return safe_name(name);
      }
      std::erase_if(names, [](const std::string& name) { return name.empty() || name == "_"; });
      if (names.size() == 1) return safe_name(names[0]);
    }
    const std::vector<Operand>& operands = scopes.operands[at(made.producer.index)];
    if (!is_view(op) || operands.empty()) return "";
    value = operands[0].value;
  }
  return "";
}

std::string last_word(const std::string& camel) {
  size_t start = 0;
  for (size_t i = 1; i < camel.size(); ++i) {
    if (is_upper(camel[i]) &&
        (!is_upper(camel[i - 1]) || (i + 1 < camel.size() && is_lower(camel[i + 1])))) {
      start = i;
    }
  }
  std::string word = camel.substr(start);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; });
  return safe_name(word);
}

std::string singular(const std::string& name, const std::string& fallback) {
  if (name.size() > 2 && name.ends_with("s") && !name.ends_with("ss")) {
    if (name.size() > 4 && name.ends_with("ies"))
      return safe_name(name.substr(0, name.size() - 3) + "y");
    return safe_name(name.substr(0, name.size() - 1));
  }
  return fallback;
}

}  // namespace nnscaler::emission
