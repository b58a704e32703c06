#include "core/emit/emit.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/emit/body.h"
#include "core/emit/classes.h"
#include "core/emit/expression.h"
#include "core/emit/names.h"
#include "core/emit/python.h"
#include "core/emit/scope.h"
#include "core/version.h"

namespace nnscaler {
namespace emission {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

/// A statement of a constructor.
struct Line {
  int indent = 0;
  std::string text;
  std::string comment;
  bool operator==(const Line&) const = default;
};

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    float value = static_cast<float>(mantissa) * 5.9604644775390625e-08F;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

/// A float32's shortest decimal that reads back as the same float32.
std::string float_text(float value) {
  if (!(std::abs(value) < 1e30F)) return python::number(static_cast<double>(value));
  char buffer[32];
  for (int digits = 1; digits < 10; ++digits) {
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(buffer, nullptr) == value) break;
  }
  return python::number(std::strtod(buffer, nullptr));
}

/// The i-th number of a tensor's raw contents; nullopt for a type without a Python literal.
std::optional<std::string> number_at(DType dtype, const std::string& bytes, size_t i) {
  const auto read = [&]<typename T>(T zero) {
    std::memcpy(&zero, bytes.data() + i * sizeof(T), sizeof(T));
    return zero;
  };
  switch (dtype) {
    case DType::kBool:
      return read(uint8_t{}) != 0 ? "True" : "False";
    case DType::kUInt8:
      return std::to_string(read(uint8_t{}));
    case DType::kInt8:
      return std::to_string(read(int8_t{}));
    case DType::kInt16:
      return std::to_string(read(int16_t{}));
    case DType::kInt32:
      return std::to_string(read(int32_t{}));
    case DType::kInt64:
      return std::to_string(read(int64_t{}));
    case DType::kFloat32:
      return float_text(read(float{}));
    case DType::kFloat64:
      return python::number(read(double{}));
    case DType::kFloat16:
      return float_text(half_to_float(read(uint16_t{})));
    case DType::kBFloat16:
      return float_text(std::bit_cast<float>(static_cast<uint32_t>(read(uint16_t{})) << 16));
    default:
      return std::nullopt;
  }
}

class File {
 public:
  explicit File(const Program& program)
      : program_(program),
        graph_(program.graph),
        scopes_(find_scopes(program)),
        classes_(find_classes(scopes_)),
        speller_(program),
        inputs_(root_inputs()),
        bodies_(classes_, speller_, inputs_, reserved_names()) {}

  std::string text() {
    python::Writer body;
    for (size_t i = 0; i < classes_.classes.size(); ++i) {
      body.blank(2);
      if (classes_.classes[i].members[0] == 0) {
        print_root(body);
      } else {
        print_class(body, static_cast<int>(i));
      }
    }
    python::Writer file;
    print_head(file, body);
    file.append(body);
    return file.text();
  }

 private:
  const Module& module(int index) const { return scopes_.modules[at(index)]; }

  // The file's head.

  void print_head(python::Writer& file, const python::Writer& body) {
    std::vector<std::string> lines = program_.header;
    if (lines.empty()) {
      const std::string digest =
          program_.plan_digest.empty() ? "" : " from plan " + program_.plan_digest;
      lines = {
          "Rank program of " + (graph_.module_class.empty() ? "a model" : graph_.module_class) +
              " for the mesh " + program_.mesh.to_string() + ".",
          "",
          "Written by nnscaler " + std::string(kVersion) + digest + "; every rank runs this file",
          "with its own coordinates."};
    }
    file.line(0, "\"\"\"" + python::docstring_text(lines[0]));
    for (size_t i = 1; i < lines.size(); ++i) file.line(0, python::docstring_text(lines[i]));
    file.line(0, "\"\"\"");
    file.blank();
    static const std::set<std::string> kStandard = {"collections", "math", "operator",
                                                    "dataclasses"};
    std::vector<std::string> standard, others;
    for (const std::string& name : speller_.imports()) {
      (kStandard.contains(name) ? standard : others).push_back("import " + name);
    }
    for (const char* name : {"math", "operator"}) {
      if (body.uses(name) && !speller_.imports().contains(name)) {
        standard.push_back("import " + std::string(name));
      }
    }
    std::sort(standard.begin(), standard.end());
    for (const std::string& line : standard) file.line(0, line);
    if (!standard.empty()) file.blank();
    if (speller_.uses_custom_operators()) add_model_import(others);
    others.emplace_back("import nnscaler.runtime as rt");
    if (uses_torch(body)) others.emplace_back("import torch");
    if (body.uses("F")) others.emplace_back("import torch.nn.functional as F");
    std::sort(others.begin(), others.end());
    for (const std::string& line : others) file.line(0, line);
    if (body.uses("nn")) file.line(0, "from torch import nn");
    file.blank();
    std::vector<std::string> axes;
    for (const MeshAxis& axis : program_.mesh.axes) {
      axes.push_back(axis.name + "=" + std::to_string(axis.size));
    }
    file.statement(0, "MESH = rt.Mesh(" + join(axes, ", ") + ")");
    std::vector<std::string> inputs;
    for (const Input& entry : entries_) {
      if (entry.value < 0 || graph_.values[at(entry.value)].is_symbol) continue;
      const Value& value = graph_.values[at(entry.value)];
      inputs.push_back(python::quote(entry.expression) + ": (" + shape_text(value) + ", " +
                       Speller::dtype(value.dtype) + ")");
    }
    file.statement(0, "INPUTS = {" + join(inputs, ", ") + "}");
  }

  /// Operators of a library are defined where the model's module, or what it imports, is imported.
  void add_model_import(std::vector<std::string>& imports) const {
    const size_t dot = graph_.module_class.rfind('.');
    if (dot == std::string::npos) return;
    const std::string name = graph_.module_class.substr(0, dot);
    const std::vector<std::string> parts = split(name, '.');
    const bool importable = std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
      return python::is_identifier(part);
    });
    if (!importable || name == "__main__" || speller_.imports().contains(name)) return;
    // Where the package is used otherwise, this counts as used, too.
    const auto& others = speller_.imports();
    const bool used = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
      return other == parts[0] || other.starts_with(parts[0] + ".");
    });
    imports.push_back("import " + name + (used ? "" : "  # noqa: F401"));
  }

  /// The dtypes of INPUTS count, too.
  bool uses_torch(const python::Writer& body) const {
    return body.uses("torch") ||
           std::any_of(entries_.begin(), entries_.end(), [&](const Input& entry) {
             return entry.value >= 0 && !graph_.values[at(entry.value)].is_symbol;
           });
  }

  std::set<std::string> reserved_names() {
    std::set<std::string> names = {"torch", "F",    "nn",       "rt",          "MESH",    "INPUTS",
                                   "self",  "math", "operator", "collections", "nnscaler"};
    const auto add = [&](const std::string& dotted) {
      names.insert(dotted.substr(0, dotted.find('.')));
    };
    for (const LeafFunction& leaf : graph_.leaves) add(leaf.module);
    const std::function<void(const Tree&)> visit = [&](const Tree& tree) {
      if (!tree.type.empty()) add(tree.type);
      for (const Tree& child : tree.children) visit(child);
    };
    visit(graph_.output);
    for (const Class& each : classes_.classes) names.insert(each.name);
    return names;
  }

  // What forward takes.

  struct Input {
    int value = -1;          ///< -1 for a constant
    std::string expression;  ///< 'batch["x"]'
    std::string literal;     ///< Of a constant.
    bool plain = false;      ///< The expression is a parameter's name.
  };

  void take_apart(const Tree& tree, const std::string& expression, const std::string& hint,
                  bool plain, std::vector<RootInput>& names) {
    switch (tree.kind) {
      case Tree::Kind::kLeaf: {
        const ValueId value = graph_.inputs[at(tree.leaf)];
        if (!value.valid()) return;
        entries_.push_back({value.index, expression, "", plain});
        names.push_back({value.index, plain ? expression : safe_name(hint), plain});
        return;
      }
      case Tree::Kind::kLiteral:
        entries_.push_back({-1, expression, tree.literal, plain});
        break;
      case Tree::Kind::kTuple:
      case Tree::Kind::kList:
        for (size_t i = 0; i < tree.children.size(); ++i) {
          take_apart(tree.children[i], expression + "[" + std::to_string(i) + "]",
                     hint + "_" + std::to_string(i), false, names);
        }
        break;
      case Tree::Kind::kDict:
        for (size_t i = 0; i < tree.children.size(); ++i) {
          std::string key = tree.keys[i];
          if (key.starts_with("'") && key.find('"') == std::string::npos) {
            std::replace(key.begin(), key.end(), '\'', '"');
          }
          const std::string inner = key.size() > 2 ? key.substr(1, key.size() - 2) : key;
          take_apart(tree.children[i], expression + "[" + key + "]",
                     python::is_identifier(inner) ? inner : hint, false, names);
        }
        break;
      case Tree::Kind::kObject:
        for (size_t i = 0; i < tree.children.size(); ++i) {
          take_apart(tree.children[i], expression + "." + tree.keys[i], tree.keys[i], false, names);
        }
        break;
    }
    if (plain) names.push_back({-1, expression, true});
  }

  std::vector<RootInput> root_inputs() {
    std::vector<RootInput> names;
    const std::set<std::string> needed = reserved_names();
    for (const ForwardParameter& each : graph_.forward) {
      if (needed.contains(each.name)) {
        throw UnsupportedError(graph_.module_class + ".forward: its parameter " + each.name +
                               " has a name that generated code needs itself; rename it");
      }
    }
    if (graph_.forward.empty()) {  // an archive without the user's signature
      for (const ValueId input : graph_.inputs) {
        if (!input.valid()) continue;
        const std::string name = safe_name(graph_.value(input).name);
        names.push_back({input.index, name, true});
        entries_.push_back({input.index, name, "", true});
        signature_.push_back(name);
      }
      return names;
    }
    bool keyword_only = false;
    for (const ForwardParameter& each : graph_.forward) {
      const std::string fallback = each.fallback.has_value() ? default_text(*each.fallback) : "";
      if (each.kind == "var_positional") {
        signature_.push_back("*" + each.name);
        keyword_only = true;
      } else if (each.kind == "var_keyword") {
        signature_.push_back("**" + each.name);
      } else {
        if (each.kind == "keyword" && !keyword_only) {
          signature_.emplace_back("*");
          keyword_only = true;
        }
        signature_.push_back(fallback.empty() ? each.name : each.name + "=" + fallback);
      }
      if (each.tree.has_value()) {
        take_apart(*each.tree, each.name, each.name, true, names);
        if (each.tree->children.empty() && each.kind == "var_positional") {
          entries_.push_back({-1, each.name, "()", true});
        }
        if (each.tree->children.empty() && each.kind == "var_keyword") {
          entries_.push_back({-1, each.name, "{}", true});
        }
        continue;
      }
      names.push_back({-1, each.name, true});
      if (each.kind == "var_positional") {
        entries_.push_back({-1, each.name, "()", true});
      } else if (each.kind == "var_keyword") {
        entries_.push_back({-1, each.name, "{}", true});
      } else if (!fallback.empty()) {
        entries_.push_back({-1, each.name, fallback, true});
      }
    }
    return names;
  }

  /// A default's source in our quotes; dotted names are imported.
  std::string default_text(std::string text) {
    if (text.starts_with("'") && text.find('"') == std::string::npos) {
      std::replace(text.begin(), text.end(), '\'', '"');
    }
    const size_t dot = text.rfind('.');
    const bool dotted = dot != std::string::npos &&
                        text.find_first_of("\"'()[]{} ,") == std::string::npos &&
                        !(text[0] >= '0' && text[0] <= '9') && text[0] != '-' && text[0] != '.';
    if (dotted && !text.starts_with("torch.")) {
      return speller_.import_name(text.substr(0, dot), text.substr(dot + 1));
    }
    return text;
  }

  std::string shape_text(const Value& value) const {
    std::vector<std::string> extents;
    for (const Extent& extent : value.shape) {
      extents.push_back(extent.is_symbolic() ? "None" : std::to_string(extent.value));
    }
    return python::tuple(extents);
  }

  // Modules.

  std::string argument_text(int class_index, int number, const std::string& literal) const {
    const Class& each = classes_.classes[at(class_index)];
    const int argument = each.argument_of[at(number)];
    return argument < 0 ? literal : each.arguments[at(argument)].name;
  }

  static std::string number_literal(const Number& number) {
    if (const auto* integer = std::get_if<int64_t>(&number)) return std::to_string(*integer);
    return python::number(std::get<double>(number));
  }

  /// Arguments with which a class's constructor makes a module.
  std::vector<std::string> constructor_arguments(int class_index, int child) const {
    std::vector<std::string> texts;
    const int first = classes_.child_numbers[at(child)];
    for (size_t i = 0; i < classes_.arguments[at(child)].size(); ++i) {
      texts.push_back(argument_text(class_index, first + static_cast<int>(i),
                                    number_literal(classes_.arguments[at(child)][i])));
    }
    return texts;
  }

  std::string constructor(int class_index, int child) const {
    return classes_.classes[at(classes_.class_of[at(child)])].name + "(" +
           join(constructor_arguments(class_index, child), ", ") + ")";
  }

  std::string member_text(const std::string& base, int holder, const std::string& name) const {
    return bodies_.path_text(base, holder, {name});
  }

  std::string slot_source(int class_index, int value, std::string* comment) const {
    const Value& each = graph_.values[at(value)];
    const int first = classes_.slot_numbers[at(value)];
    std::vector<std::string> extents, whole;
    bool split = false, known = true;
    const auto rest = program_.rest.find(value);
    std::map<int, std::vector<std::string>> shards;  // dim -> axes
    std::vector<std::string> reduce;
    std::vector<int64_t> factors(each.shape.size(), 1);
    if (rest != program_.rest.end()) {
      for (size_t axis = 0; axis < rest->second.shard_dim.size(); ++axis) {
        const int dim = rest->second.shard_dim[axis];
        if (dim < 0) continue;
        shards[dim].push_back(python::quote(program_.mesh.axes[axis].name));
        factors[at(dim)] *= program_.mesh.axes[axis].size;
        split = true;
      }
      for (const int axis : rest->second.reduce_axes) {
        reduce.push_back(python::quote(program_.mesh.axes[at(axis)].name));
      }
    }
    for (size_t i = 0; i < each.shape.size(); ++i) {
      const std::string literal = std::to_string(each.shape[i].value);
      extents.push_back(argument_text(class_index, first + static_cast<int>(i), literal));
      known &= extents.back() == literal;
      whole.push_back(std::to_string(each.shape[i].value * factors[i]));
    }
    if (split && known) *comment = "whole " + python::tuple(whole);
    std::string text = python::tuple(extents);
    if (!shards.empty()) {
      std::vector<std::string> items;
      for (const auto& [dim, axes] : shards) {
        items.push_back(std::to_string(dim) + ": " +
                        (axes.size() == 1 ? axes[0] : python::tuple(axes)));
      }
      text += ", shard={" + join(items, ", ") + "}";
    }
    if (each.kind == ValueKind::kParameter) {
      if (!reduce.empty()) text += ", reduce=" + python::tuple(reduce);
      if (each.dtype != DType::kFloat32) text += ", dtype=" + Speller::dtype(each.dtype);
      if (!each.requires_grad) text += ", requires_grad=False";
      return "rt.parameter(MESH, " + text + ")";
    }
    return "rt.buffer(MESH, " + text + ", dtype=" + Speller::dtype(each.dtype) + ")";
  }

  std::string literal_text(const Value& value) const {
    const std::string& bytes = graph_.constants.at(value.fqn);
    std::vector<std::string> items;
    for (int64_t i = 0; i < value.num_elements(); ++i) {
      const auto number = number_at(value.dtype, bytes, static_cast<size_t>(i));
      if (!number.has_value()) {
        throw UnsupportedError(value.fqn + ": a literal of type " + dtype_name(value.dtype) +
                               " cannot be printed; make it a buffer of the model");
      }
      items.push_back(*number);
    }
    for (size_t dim = value.shape.size(); dim-- > 0;) {
      const auto extent = static_cast<size_t>(value.shape[dim].value);
      std::vector<std::string> rows;
      for (size_t i = 0; extent > 0 && i < items.size(); i += extent) {
        rows.push_back(
            "[" +
            join(std::vector<std::string>(items.begin() + static_cast<std::ptrdiff_t>(i),
                                          items.begin() + static_cast<std::ptrdiff_t>(i + extent)),
                 ", ") +
            "]");
      }
      if (extent == 0) rows = {"[]"};
      items = std::move(rows);
    }
    const bool plain = value.dtype == DType::kFloat32 || value.dtype == DType::kInt64 ||
                       value.dtype == DType::kBool;
    return "torch.tensor(" + items[0] +
           (plain && value.num_elements() > 0 ? "" : ", dtype=" + Speller::dtype(value.dtype)) +
           ")";
  }

  void declare_slot(int class_index, int owner, const std::string& base, int holder, int value,
                    int indent, std::vector<Line>& lines) const {
    const Value& each = graph_.values[at(value)];
    const std::string& name = scopes_.attribute[at(value)];
    const bool parameter = each.kind == ValueKind::kParameter;
    std::string source, comment;
    if (classes_.is_tied[at(value)]) {
      const auto& ties = classes_.ties[at(owner)];
      const auto own = std::find_if(ties.begin(), ties.end(),
                                    [&](const Tie& tie) { return tie.target == value; });
      source = own == ties.end() ? "None" : path_of(owner, own->source);
      comment = own == ties.end() ? "" : "tied";
      if (own != ties.end()) placed_.insert(value);
    } else if (is_literal(graph_, each)) {
      source = literal_text(each);
    } else {
      source = slot_source(class_index, value, &comment);
    }
    std::string text;
    if (!parameter) {
      text = base + ".register_buffer(" + python::quote(name) + ", " + source +
             (each.persistent && each.kind == ValueKind::kBuffer ? ")" : ", persistent=False)");
    } else if (source == "None" || !python::is_identifier(name)) {
      text = base + ".register_parameter(" + python::quote(name) + ", " + source + ")";
    } else {
      text = member_text(base, holder, name) + " = " + source;
    }
    lines.push_back({indent, text, comment});
  }

  std::string path_of(int base, int value) const {
    std::vector<std::string> path;
    const std::string& prefix = module(base).path;
    const std::string& whole = module(scopes_.owner[at(value)]).path;
    if (whole.size() > prefix.size()) {
      path = split(whole.substr(prefix.empty() ? 0 : prefix.size() + 1), '.');
    }
    path.push_back(scopes_.attribute[at(value)]);
    return bodies_.path_text("self", base, path);
  }

  /// What `holder`, which `base` names, holds.
  void declare(int class_index, int owner, const std::string& base, int holder, int indent,
               std::vector<Line>& lines) const {
    for (const int value : module(holder).slots) {
      declare_slot(class_index, owner, base, holder, value, indent, lines);
    }
    if (module(holder).is_list)
      return declare_elements(class_index, owner, base, holder, indent, lines);
    for (const int child : module(holder).children) {
      const std::string& name = module(child).name;
      const std::string target = member_text(base, holder, name);
      const std::string source = module_source(class_index, child);
      lines.push_back({indent,
                       python::is_identifier(name)
                           ? target + " = " + source
                           : base + ".add_module(" + python::quote(name) + ", " + source + ")",
                       ""});
      if (!module(child).is_class) declare(class_index, owner, target, child, indent, lines);
    }
  }

  /// Holders in a list that hold alike share a loop.
  void declare_elements(int class_index, int owner, const std::string& base, int holder, int indent,
                        std::vector<Line>& lines) const {
    const std::vector<int>& children = module(holder).children;
    const std::string& list = module(holder).name;
    const bool named = python::is_identifier(list);
    // Within another such loop, the base is that loop's variable.
    std::string variable = named ? singular(list, "module") : "module";
    while (variable == base.substr(0, base.find_first_of(".[("))) variable += "_";
    const auto inside = [&](int child, const std::string& name, int deep) {
      std::vector<Line> result;
      if (!module(child).is_class) declare(class_index, owner, name, child, deep, result);
      return result;
    };
    const int size = std::stoi(module(children.back()).name) + 1;
    for (size_t i = 0; i < children.size();) {
      const std::vector<Line> first = inside(children[i], variable, indent + 4);
      size_t j = i + 1;
      const int start = std::stoi(module(children[i]).name);
      while (!first.empty() && j < children.size() &&
             std::stoi(module(children[j]).name) == start + static_cast<int>(j - i) &&
             inside(children[j], variable, indent + 4) == first) {
        ++j;
      }
      if (j - i < 2) {
        const std::vector<Line> own =
            inside(children[i], member_text(base, holder, module(children[i]).name), indent);
        lines.insert(lines.end(), own.begin(), own.end());
        ++i;
        continue;
      }
      const int stop = start + static_cast<int>(j - i);
      std::string range = base;
      if (start > 0 || stop < size) {
        range += "[" + (start > 0 ? std::to_string(start) : "") + ":" +
                 (stop < size ? std::to_string(stop) : "") + "]";
      }
      lines.push_back({indent, "for " + variable + " in " + range + ":", ""});
      lines.insert(lines.end(), first.begin(), first.end());
      i = j;
    }
  }

  std::string module_source(int class_index, int id) const {
    if (module(id).is_class) return constructor(class_index, id);
    if (!module(id).is_list) return "nn.Module()";
    return "nn.ModuleList(" + elements_source(class_index, id) + ")";
  }

  /// The modules of a list: a comprehension where they are alike.
  std::string elements_source(int class_index, int id) const {
    std::vector<int> elements;  // -1 for what holds nothing
    for (const int child : module(id).children) {
      elements.resize(static_cast<size_t>(std::stoi(module(child).name)), -1);
      elements.push_back(child);
    }
    std::vector<std::string> texts;
    for (const int child : elements) {
      texts.push_back(child < 0 ? "nn.Module()" : module_source(class_index, child));
    }
    if (const std::string alike = comprehension(class_index, elements); !alike.empty())
      return alike;
    std::vector<std::string> items;
    constexpr size_t kRun = 3;
    for (size_t i = 0; i < texts.size();) {
      size_t j = i + 1;
      while (j < texts.size() && texts[j] == texts[i]) ++j;
      if (j - i < kRun) {
        items.push_back(texts[i]);
        ++i;
        continue;
      }
      if (i == 0 && j == texts.size()) {
        return texts[0] + " for _ in range(" + std::to_string(j) + ")";
      }
      items.push_back("*(" + texts[i] + " for _ in range(" + std::to_string(j - i) + "))");
      i = j;
    }
    if (texts.size() == 2 && texts[0] == texts[1]) return texts[0] + " for _ in range(2)";
    return "[" + join(items, ", ") + "]";
  }

  /// `Block(size) for size in (64, 128)`: modules of one class whose arguments differ; "" for
  /// others.
  std::string comprehension(int class_index, const std::vector<int>& elements) const {
    if (elements.size() < 3) return "";
    const int first = elements[0];
    if (std::any_of(elements.begin(), elements.end(), [&](int child) {
          return child < 0 || !module(child).is_class ||
                 classes_.class_of[at(child)] != classes_.class_of[at(first)];
        })) {
      return "";
    }
    std::vector<std::vector<std::string>> rows;
    rows.reserve(elements.size());
    for (const int child : elements) rows.push_back(constructor_arguments(class_index, child));
    const Class& built = classes_.classes[at(classes_.class_of[at(first)])];
    std::vector<size_t> varying;
    for (size_t i = 0; i < rows[0].size(); ++i) {
      if (std::any_of(rows.begin(), rows.end(),
                      [&](const auto& row) { return row[i] != rows[0][i]; })) {
        varying.push_back(i);
      }
    }
    if (varying.empty()) return "";
    std::vector<std::string> arguments = rows[0], names, items;
    for (const size_t i : varying) {
      std::string name = safe_name(built.arguments[i].name);
      for (const ConstructorArgument& own : classes_.classes[at(class_index)].arguments) {
        if (own.name == name) name += "_";
      }
      arguments[i] = name;
      names.push_back(name);
    }
    bool counted = varying.size() == 1;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<std::string> values;
      for (const size_t i : varying) values.push_back(rows[r][i]);
      counted = counted && values[0] == std::to_string(r);
      items.push_back(values.size() == 1 ? values[0] : python::tuple(values));
    }
    return built.name + "(" + join(arguments, ", ") + ") for " + join(names, ", ") + " in " +
           (counted ? "range(" + std::to_string(rows.size()) + ")" : python::tuple(items));
  }

  void print_lines(python::Writer& writer, const std::vector<Line>& lines) const {
    for (const Line& line : lines) writer.statement(line.indent, line.text, line.comment);
  }

  void print_ties(python::Writer& writer, int owner) {
    for (const Tie& tie : classes_.ties[at(owner)]) {
      if (placed_.contains(tie.target)) continue;
      writer.statement(8, path_of(owner, tie.target) + " = " + path_of(owner, tie.source), "tied");
    }
  }

  std::string paths_of(const Class& each) const {
    const auto name = [&](int id) { return module(id).path; };
    if (each.members.size() == 1) return name(each.members[0]);
    if (each.members.size() == 2) return name(each.members[0]) + " and " + name(each.members[1]);
    return name(each.members[0]) + " to " + name(each.members.back()) + " (" +
           std::to_string(each.members.size()) + ")";
  }

  void print_class(python::Writer& writer, int index) {
    const Class& each = classes_.classes[at(index)];
    const int id = each.members[0];
    const bool list = module(id).is_list;
    writer.line(0, "class " + each.name + (list ? "(nn.ModuleList):" : "(nn.Module):"));
    writer.docstring(4, paths_of(each) + ": " + module(id).class_name);
    writer.blank();
    std::vector<Line> lines;
    declare(index, id, "self", id, 8, lines);
    std::vector<std::string> parameters = {"self"};
    for (const ConstructorArgument& argument : each.arguments) parameters.push_back(argument.name);
    if (!lines.empty() || list || !each.arguments.empty()) {
      writer.statement(4, "def __init__(" + join(parameters, ", ") + "):");
      writer.statement(8, "super().__init__(" + (list ? elements_source(index, id) : "") + ")");
      for (const ConstructorArgument& argument : each.arguments) {
        if (argument.in_forward) {
          writer.statement(8, "self." + argument.name + " = " + argument.name);
        }
      }
      print_lines(writer, lines);
      print_ties(writer, id);
      writer.blank();
    }
    print_methods(writer, index, true);
  }

  void print_methods(python::Writer& writer, int index, bool first) {
    const Class& each = classes_.classes[at(index)];
    for (size_t m = 0; m < each.methods.size(); ++m) {
      if (each.methods[m].call == 0) continue;
      if (!first) writer.blank();
      first = false;
      std::vector<std::string> parameters = bodies_.parameters(index, static_cast<int>(m));
      parameters.insert(parameters.begin(), "self");
      writer.statement(4, "def " + each.methods[m].name + "(" + join(parameters, ", ") + "):");
      bodies_.print(writer, index, static_cast<int>(m), 8, true);
    }
  }

  // The root.

  void print_root(python::Writer& writer) {
    const int index = classes_.class_of[0];
    writer.line(0, "class GenModel(rt.ParallelModule):");
    writer.docstring(4, graph_.module_class.empty() ? "The model." : graph_.module_class);
    writer.blank();
    writer.line(4, "mesh = MESH");
    writer.line(4, "plan_ngpus = " + std::to_string(program_.mesh.num_devices()));
    if (!scopes_.ties.empty()) {
      std::vector<std::string> groups;
      for (const std::vector<int>& group : scopes_.ties) {
        std::vector<std::string> names;
        for (const int value : group) names.push_back(python::quote(graph_.values[at(value)].fqn));
        groups.push_back(python::tuple(names));
      }
      writer.statement(4, "ties = " + python::tuple(groups));
    }
    writer.line(4, "inputs = INPUTS");
    if (graph_.eval_mode == "differs") {
      writer.line(4, "eval_mode = \"differs\"");
      writer.statement(4, "eval_reason = " + python::quote(graph_.eval_reason));
    }
    writer.blank();
    writer.line(4, "def __init__(self, init_params=True, build_buckets=True):");
    writer.line(8, "super().__init__()");
    std::vector<Line> lines;
    declare(index, 0, "self", 0, 8, lines);
    print_lines(writer, lines);
    print_ties(writer, 0);
    writer.line(8, "self.finish_init(init_params, build_buckets)");
    writer.blank();
    std::vector<std::string> parameters = signature_;
    parameters.insert(parameters.begin(), "self");
    writer.statement(4, "def rank_forward(" + join(parameters, ", ") + "):");
    for (const Input& entry : entries_) {
      if (entry.value < 0) {
        writer.statement(8, "rt.check_constant(" + python::quote(entry.expression) + ", " +
                                entry.expression + ", " + entry.literal + ")");
        continue;
      }
      const std::string name = entry.plain ? entry.expression : bodies_.root_name(entry.value);
      if (!entry.plain && !name.empty()) writer.statement(8, name + " = " + entry.expression);
      const Value& value = graph_.values[at(entry.value)];
      if (value.is_symbol) continue;
      writer.statement(8, "rt.check_input(" + python::quote(entry.expression) + ", " +
                              (name.empty() ? entry.expression : name) + ", " + shape_text(value) +
                              ", " + Speller::dtype(value.dtype) + ")");
    }
    const std::string result = result_text();
    const bool single = graph_.output.kind == Tree::Kind::kLeaf;
    if (!bodies_.print(writer, index, 0, 8, single)) writer.statement(8, "return " + result);
    print_methods(writer, index, false);
  }

  std::string result_text() {
    const Tree& tree = graph_.output;
    if (tree.kind == Tree::Kind::kLeaf &&
        tree.leaf < 0) {  // an archive without the user's structure
      const std::vector<std::string> values = bodies_.root_values(scopes_.outputs);
      return values.size() == 1 && !values[0].starts_with("*") ? values[0] : python::tuple(values);
    }
    return tree_text(tree);
  }

  std::string tree_text(const Tree& tree) {
    switch (tree.kind) {
      case Tree::Kind::kLeaf:
        return bodies_.root_values({scopes_.outputs[at(tree.leaf)]})[0];
      case Tree::Kind::kLiteral:
        return default_text(tree.literal);
      case Tree::Kind::kTuple:
      case Tree::Kind::kList: {
        std::vector<std::string> items = children_text(tree);
        if (tree.kind == Tree::Kind::kList) return "[" + join(items, ", ") + "]";
        if (tree.type.empty()) return python::tuple(items);
        const std::string callee = type_text(tree.type);
        return tree.type.starts_with("torch.return_types.")
                   ? callee + "(" + python::tuple(items) + ")"
                   : callee + "(" + join(items, ", ") + ")";
      }
      case Tree::Kind::kDict: {
        std::vector<std::string> items;
        for (size_t i = 0; i < tree.children.size(); ++i) {
          items.push_back(default_text(tree.keys[i]) + ": " + tree_text(tree.children[i]));
        }
        const std::string text = "{" + join(items, ", ") + "}";
        return tree.type.empty() ? text : type_text(tree.type) + "(" + text + ")";
      }
      case Tree::Kind::kObject: {
        std::vector<std::string> items;
        for (size_t i = 0; i < tree.children.size(); ++i) {
          const Tree& child = tree.children[i];
          // transformers' outputs have None for whatever is left out.
          if (child.kind == Tree::Kind::kLiteral && child.literal == "None" &&
              tree.type.starts_with("transformers.")) {
            continue;
          }
          items.push_back(tree.keys[i] + "=" + tree_text(child));
        }
        return type_text(tree.type) + "(" + join(items, ", ") + ")";
      }
    }
    throw InternalError("internal error: a tree of an unknown kind");
  }

  std::vector<std::string> children_text(const Tree& tree) {
    std::vector<int> values;
    for (const Tree& child : tree.children) {
      if (child.kind == Tree::Kind::kLeaf) values.push_back(scopes_.outputs[at(child.leaf)]);
    }
    if (values.size() == tree.children.size()) return bodies_.root_values(values);
    std::vector<std::string> items;
    for (const Tree& child : tree.children) items.push_back(tree_text(child));
    return items;
  }

  std::string type_text(const std::string& type) {
    const size_t dot = type.rfind('.');
    if (dot == std::string::npos) return type;
    if (type.starts_with("torch.return_types.")) return type;
    return speller_.import_name(type.substr(0, dot), type.substr(dot + 1));
  }

  const Program& program_;
  const Graph& graph_;
  Scopes scopes_;
  Classes classes_;
  Speller speller_;
  std::vector<Input> entries_;
  std::vector<std::string> signature_;
  std::vector<RootInput> inputs_;
  Bodies bodies_;
  mutable std::set<int> placed_;  ///< Ties that were made where their target is declared.
};

}  // namespace
}  // namespace emission

std::map<std::string, std::string> emit(const Program& program) {
  std::map<std::string, std::string> files;
  files["gencode0.py"] = emission::File(program).text();
  for (int rank = 1; rank < program.runtime_ngpus; ++rank) {
    files["gencode" + std::to_string(rank) + ".py"] =
        "\"\"\"Program of rank " + std::to_string(rank) +
        ", which runs that of rank 0 with its own coordinates.\"\"\"\n\n"
        "from .gencode0 import MESH, GenModel\n\n"
        "__all__ = [\"MESH\", \"GenModel\"]\n";
  }
  return files;
}

}  // namespace nnscaler
