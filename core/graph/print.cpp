#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/text.h"
#include "core/graph/archive.h"
#include "core/graph/python.h"

namespace nnscaler {

namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

/// Puts thousands apart: 1,234,567.
std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

/// "layers.3.mlp" -> "layers.*.mlp"
std::string general(const std::string& path) {
  std::vector<std::string> parts = split(path, '.');
  for (std::string& part : parts) {
    if (part.find_first_not_of("0123456789") == std::string::npos) part = "*";
  }
  return join(parts, ".");
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// `names(id)` spells a value.
template <typename Names>
std::string print_value(const ArgValue& value, bool is_tuple, Names&& names) {
  const auto size = [&](const SymInt& item) {
    return item.symbol.valid() ? names(item.symbol) : std::to_string(item.value);
  };
  const auto truth = [](bool item) { return std::string(item ? "True" : "False"); };
  const auto tensor = [&](ValueId id) { return id.valid() ? names(id) : std::string("None"); };
  const auto list = [&](const auto& items, const auto& print) {
    std::vector<std::string> parts;
    for (const auto& item : items) parts.push_back(print(item));
    if (!is_tuple) return fmt::format("[{}]", join(parts, ", "));
    return fmt::format("({}{})", join(parts, ", "), parts.size() == 1 ? "," : "");
  };
  const auto real = [](double item) { return print_float(item); };
  static constexpr const char* kFormats[] = {"", "torch.contiguous_format", "torch.channels_last",
                                             "torch.channels_last_3d", "torch.preserve_format"};
  return std::visit(
      Overloaded{
          [](std::monostate) { return std::string("None"); },
          [&](ValueId id) { return tensor(id); },
          [&](const TensorList& items) { return list(items, tensor); },
          [](int64_t item) { return std::to_string(item); },
          [&](double item) { return real(item); },
          [&](bool item) { return truth(item); },
          [](const std::string& item) { return quote(item); },
          [](const std::complex<double>& item) {
            return fmt::format("({}{:+}j)", item.real(), item.imag());
          },
          [&](const SymInt& item) { return size(item); },
          [&](const std::vector<SymInt>& items) { return list(items, size); },
          [&](const std::vector<double>& items) { return list(items, real); },
          [&](const std::vector<bool>& items) { return list(items, truth); },
          [&](const std::vector<std::string>& items) {
            return list(items, [](const std::string& item) { return quote(item); });
          },
          [](DType item) { return fmt::format("torch.{}", dtype_name(item)); },
          [](const DeviceArg& item) {
            return quote(item.index ? fmt::format("{}:{}", item.type, *item.index) : item.type);
          },
          [](LayoutArg item) {
            return std::string(item == LayoutArg::kStrided ? "torch.strided" : "torch.sparse_coo");
          },
          [](MemoryFormatArg item) { return std::string(kFormats[static_cast<size_t>(item)]); },
          [](const PySource& item) { return item.text; },
      },
      value);
}

std::string print_tree(const Graph& graph, const Tree& tree, const std::vector<ValueId>& leaves) {
  switch (tree.kind) {
    case Tree::Kind::kLeaf: {
      if (tree.leaf < 0) return "nothing";
      const Value& value = graph.value(leaves[static_cast<size_t>(tree.leaf)]);
      return fmt::format("{}: {}", display_name(value), value.type());
    }
    case Tree::Kind::kLiteral:
      return tree.literal;
    default:
      break;
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const std::string child = print_tree(graph, tree.children[i], leaves);
    if (tree.kind == Tree::Kind::kDict) {
      parts.push_back(fmt::format("{}: {}", tree.keys[i], child));
    } else if (tree.kind == Tree::Kind::kObject) {
      parts.push_back(fmt::format("{}={}", tree.keys[i], child));
    } else {
      parts.push_back(child);
    }
  }
  const std::string inside = join(parts, ", ");
  switch (tree.kind) {
    case Tree::Kind::kList:
      return fmt::format("[{}]", inside);
    case Tree::Kind::kDict:
      return fmt::format("{{{}}}", inside);
    case Tree::Kind::kObject:
      return fmt::format("{}({})", tree.type.substr(tree.type.rfind('.') + 1), inside);
    default:
      return fmt::format("({}{})", inside, parts.size() == 1 ? "," : "");
  }
}

/// A call of a module: operators and further calls, in order.
struct ModuleCall {
  Frame frame;
  struct Item {
    int op = -1;
    std::unique_ptr<ModuleCall> call;
    std::string key;  ///< Equal for items that do the same.
  };
  std::vector<Item> items;
};

class Listing {
 public:
  Listing(const Graph& graph, const PrintOptions& options) : graph_(graph), options_(options) {}

  std::string run() {
    header();
    ModuleCall root;
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      const Operator& op = graph_.operators[i];
      if (options_.keep && !options_.keep(op)) continue;
      ModuleCall* at = &root;
      for (const Frame& frame : graph_.stack_of(op)) {
        if (at->items.empty() || !at->items.back().call || at->items.back().call->frame != frame) {
          at->items.emplace_back().call = std::make_unique<ModuleCall>();
          at->items.back().call->frame = frame;
        }
        at = at->items.back().call.get();
      }
      at->items.emplace_back().op = static_cast<int>(i);
      ++num_shown_;
    }
    line(0, num_shown_ == graph_.operators.size()
                ? fmt::format("{} operators", num_shown_)
                : fmt::format("{} of {} operators", num_shown_, graph_.operators.size()));
    print_items(root, 1);
    for (const Anchor& anchor : graph_.anchors) {
      line(0, fmt::format("anchor {} {}", anchor.name, place_of(anchor)));
    }
    return std::move(text_);
  }

 private:
  void line(int depth, std::string_view content) {
    text_.append(static_cast<size_t>(2 * depth), ' ');
    text_ += content;
    text_ += '\n';
  }

  std::string place_of(const Anchor& anchor) const {
    const size_t next = static_cast<size_t>(anchor.position);
    if (next == graph_.operators.size()) return "at the end";
    const Operator& op = graph_.operators[next];
    if (op.outputs.empty() || !op.outputs[0].valid()) return fmt::format("before {}", op.target);
    return fmt::format("before {}", graph_.value(op.outputs[0]).name);
  }

  void header() {
    line(0, graph_.module_class.empty() ? "(no class)" : graph_.module_class);
    std::string how = graph_.training ? "exported in training mode" : "exported in evaluation mode";
    if (!graph_.torch_version.empty()) how += fmt::format(" by torch {}", graph_.torch_version);
    if (graph_.eval_mode == "flags") how += "; evaluation differs in flags only";
    if (graph_.eval_mode == "differs") how += "; evaluation differs: " + graph_.eval_reason;
    line(1, how);
    for (const std::string& warning : graph_.warnings) line(1, "warning: " + warning);
    line(0, "inputs");
    for (const ForwardParameter& parameter : graph_.forward) {
      std::string what = parameter.tree ? print_tree(graph_, *parameter.tree, graph_.inputs)
                                        : "left at its default";
      if (!parameter.tree && parameter.fallback) what += fmt::format(", {}", *parameter.fallback);
      // "x: x: f32[4]" would say it twice.
      const std::string name = fmt::format("{}: ", parameter.name);
      line(1, what.starts_with(name) ? what : name + what);
    }
    line(0, "output");
    line(1, print_tree(graph_, graph_.output, graph_.outputs));
    weights();
    if (!graph_.ties.empty()) line(0, "tied");
    for (const auto& group : graph_.ties) line(1, join(group, " = "));
    if (!graph_.symbols.empty()) line(0, "dynamic sizes");
    for (const auto& [name, info] : graph_.symbols) {
      std::string range = fmt::format("{}: at least {}", name, info.min);
      if (info.max) range += fmt::format(", at most {}", *info.max);
      if (!info.input.empty() && info.dim < 0) range += fmt::format("; the input {}", info.input);
      if (info.dim >= 0) range += fmt::format("; dim {} of {}", info.dim, info.input);
      line(1, range);
    }
    if (!graph_.leaves.empty()) line(0, "kept whole");
    for (const LeafFunction& leaf : graph_.leaves) {
      line(1, leaf.annotation.empty() ? leaf.signature
                                      : fmt::format("{}: {}", leaf.signature, leaf.annotation));
    }
  }

  /// Counts tied tensors once.
  void weights() {
    std::set<std::string_view> repeated;
    for (const auto& group : graph_.ties) repeated.insert(group.begin() + 1, group.end());
    static constexpr std::pair<ValueKind, const char*> kKinds[] = {
        {ValueKind::kParameter, "parameters"},
        {ValueKind::kBuffer, "buffers"},
        {ValueKind::kConstant, "literals"},
    };
    for (const auto& [kind, title] : kKinds) {
      int64_t count = 0, elements = 0, bytes = 0, frozen = 0;
      for (const Value& value : graph_.values) {
        if (value.kind != kind || repeated.contains(value.fqn)) continue;
        ++count;
        elements += value.num_elements();
        bytes += value.bytes();
        if (!value.requires_grad) frozen += value.num_elements();
      }
      if (count == 0) continue;
      std::string content =
          fmt::format("{}: {} tensor{}, {} element{}, {}", title, count, count == 1 ? "" : "s",
                      with_commas(elements), elements == 1 ? "" : "s", format_bytes(bytes));
      if (kind == ValueKind::kParameter && frozen > 0) {
        content += fmt::format(", {} of them frozen", with_commas(frozen));
      }
      line(0, content);
    }
  }

  std::string call_name(const Operator& op) const {
    if (options_.name) return options_.name(op);
    const LeafFunction* leaf = graph_.leaf(op.target);
    return leaf ? leaf->signature : op.target;
  }

  /// `path`: of the module that it is shown in, "self" there.
  std::string print_operator(const Operator& op, const std::string& path) const {
    const auto name = [&](ValueId id) -> std::string {
      const Value& value = graph_.value(id);
      if (value.is_symbol) return value.symbol;
      if (value.fqn.empty()) return value.name;
      if (path.empty()) return fmt::format("self.{}", value.fqn);
      const std::string below = relative(value.fqn, path);
      return below == value.fqn ? value.fqn : fmt::format("self{}", below);
    };
    std::vector<std::string> results, arguments;
    for (const ValueId id : op.outputs) {
      if (!id.valid()) {
        results.emplace_back("None");
      } else {
        const Value& value = graph_.value(id);
        results.push_back(fmt::format("{}: {}", value.name, value.type()));
      }
    }
    for (const Argument& argument : op.args) {
      const std::string value = print_value(argument.value, argument.is_tuple, name);
      arguments.push_back(argument.keyword ? fmt::format("{}={}", argument.name, value) : value);
    }
    std::string text = fmt::format("{}{}{}({})", join(results, ", "), results.empty() ? "" : " = ",
                                   call_name(op), join(arguments, ", "));
    if (options_.note) {
      const std::string note = options_.note(op);
      if (!note.empty()) text += fmt::format("  {{{}}}", note);
    }
    std::vector<std::string> remarks;
    if (const SourceLine* source = graph_.source_of(op)) {
      remarks.push_back(fmt::format("{}:{}", file_name(source->file), source->line));
    }
    for (int r = op.region; r >= 0; r = graph_.regions[static_cast<size_t>(r)].parent) {
      remarks.push_back(print_region(graph_.regions[static_cast<size_t>(r)]));
    }
    if (op.training_only) remarks.emplace_back("training only");
    if (!remarks.empty()) text += "  # " + join(remarks, ", ");
    return text;
  }

  static std::string print_region(const Region& region) {
    switch (region.kind) {
      case RegionKind::kGradMode:
        return region.enabled ? "enable_grad" : "no_grad";
      case RegionKind::kAutocast:
        if (!region.enabled) return fmt::format("autocast({}) off", region.device_type);
        return region.dtype == DType::kUnknown
                   ? fmt::format("autocast({})", region.device_type)
                   : fmt::format("autocast({}, {})", region.device_type, dtype_name(region.dtype));
      default:
        return "recompute";
    }
  }

  // --- Equal neighbours ---

  /// Names values by their order in what is compared, so that equal layers have equal keys.
  struct Numbering {
    std::map<ValueId, int> numbers;
    std::string of(ValueId id) {
      return fmt::format("%{}", numbers.emplace(id, numbers.size()).first->second);
    }
  };

  std::string relative(const std::string& name, const std::string& path) const {
    if (path.empty() || !name.starts_with(path)) return name;
    return name.size() == path.size() || name[path.size()] == '.' ? name.substr(path.size()) : name;
  }

  void append_key(const Operator& op, const std::string& path, Numbering& numbering,
                  std::string& key) const {
    const auto name = [&](ValueId id) {
      const Value& value = graph_.value(id);
      std::string text = numbering.of(id);
      if (!value.fqn.empty()) text += relative(value.fqn, path);
      return text + value.type();
    };
    for (const ValueId id : op.outputs) key += id.valid() ? name(id) : "None";
    key += call_name(op);
    if (options_.note) key += options_.note(op);
    for (const Argument& argument : op.args) {
      key += fmt::format(",{}={}", argument.name, print_value(argument.value, false, name));
    }
    if (const SourceLine* source = graph_.source_of(op)) {
      key += fmt::format("#{}:{}", source->file, source->line);
    }
    for (int r = op.region; r >= 0; r = graph_.regions[static_cast<size_t>(r)].parent) {
      key += print_region(graph_.regions[static_cast<size_t>(r)]);
    }
    key += op.training_only ? "t;" : ";";
  }

  void append_key(const ModuleCall& call, const std::string& path, Numbering& numbering,
                  std::string& key) const {
    key += fmt::format("{}:{}:{}(", relative(call.frame.path, path), call.frame.class_name,
                       call.items.size());
    for (const ModuleCall::Item& item : call.items) {
      if (item.call) {
        append_key(*item.call, path, numbering, key);
      } else {
        append_key(graph_.operators[static_cast<size_t>(item.op)], path, numbering, key);
      }
    }
    key += ")";
  }

  void print_items(ModuleCall& parent, int depth) {
    std::vector<ModuleCall::Item>& items = parent.items;
    for (ModuleCall::Item& item : items) {
      if (!options_.fold) break;
      Numbering numbering;
      if (item.call) {
        const std::string& path = item.call->frame.path;
        item.key = general(path);
        append_key(*item.call, path, numbering, item.key);
      } else {
        append_key(graph_.operators[static_cast<size_t>(item.op)], parent.frame.path, numbering,
                   item.key);
      }
    }
    for (size_t i = 0; i < items.size();) {
      const auto [period, repeats] =
          options_.fold ? repetition(items, i) : std::pair<size_t, size_t>(1, 1);
      if (period > 1) line(depth, fmt::format("{} times:", repeats));
      const int below = depth + (period > 1 ? 1 : 0);
      for (size_t k = i; k < i + period; ++k) {
        if (!items[k].call) {
          line(below, print_operator(graph_.operators[static_cast<size_t>(items[k].op)],
                                     parent.frame.path));
          continue;
        }
        const Frame& first = items[k].call->frame;
        const Frame& last = items[k + (repeats - 1) * period].call->frame;
        line(below, title(first, last, repeats, parent.frame.path));
        print_items(*items[k].call, below + 1);
      }
      i += period * repeats;
    }
  }

  std::string title(const Frame& first, const Frame& last, size_t repeats,
                    const std::string& above) const {
    const auto name = [&](const Frame& frame) -> std::string {
      if (frame.path.empty()) return "(root)";
      const std::string below = relative(frame.path, above);
      return below.starts_with('.') ? below.substr(1) : below;
    };
    const std::string path = name(first);
    if (repeats == 1) {
      return first.call == 0
                 ? fmt::format("{}: {}", path, first.short_class())
                 : fmt::format("{}: {}, call {}", path, first.short_class(), first.call + 1);
    }
    if (first.path == last.path) {
      return fmt::format("{}: {}, {} equal calls", path, first.short_class(), repeats);
    }
    return fmt::format("{} to {}: {}, {} equal modules", path, name(last), first.short_class(),
                       repeats);
  }

  /// The shortest block of items at `i` that repeats, and how often; a block without a module does
  /// not count.
  static std::pair<size_t, size_t> repetition(const std::vector<ModuleCall::Item>& items,
                                              size_t i) {
    constexpr size_t kMaxPeriod = 8;
    for (size_t period = 1; period <= kMaxPeriod && i + 2 * period <= items.size(); ++period) {
      const auto begin = items.begin() + static_cast<ptrdiff_t>(i);
      if (std::none_of(begin, begin + static_cast<ptrdiff_t>(period),
                       [](const ModuleCall::Item& item) { return item.call != nullptr; })) {
        continue;
      }
      size_t length = 0;
      while (i + period + length < items.size() &&
             items[i + length].key == items[i + period + length].key) {
        ++length;
      }
      if (length >= period) return {period, 1 + length / period};
    }
    return {1, 1};
  }

  const Graph& graph_;
  const PrintOptions& options_;
  std::string text_;
  size_t num_shown_ = 0;
};

}  // namespace

const std::string& display_name(const Value& value) {
  return value.fqn.empty() ? value.name : value.fqn;
}

std::string print_argument(const Graph& graph, const Argument& argument) {
  return print_value(argument.value, argument.is_tuple, [&](ValueId id) {
    const Value& value = graph.value(id);
    return value.is_symbol ? value.symbol : display_name(value);
  });
}

std::string print_graph(const Graph& graph, const PrintOptions& options) {
  return Listing(graph, options).run();
}

}  // namespace nnscaler
