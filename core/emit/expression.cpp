#include "core/emit/expression.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/emit/python.h"
#include "core/ops/spelling.h"

namespace nnscaler::emission {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

const char* memory_format(MemoryFormatArg format) {
  switch (format) {
    case MemoryFormatArg::kContiguous:
      return "torch.contiguous_format";
    case MemoryFormatArg::kChannelsLast:
      return "torch.channels_last";
    case MemoryFormatArg::kChannelsLast3d:
      return "torch.channels_last_3d";
    case MemoryFormatArg::kPreserve:
      break;
  }
  return "torch.preserve_format";
}

const char* reduction_name(int64_t reduction) {
  return reduction == 0 ? "\"none\"" : reduction == 1 ? "\"mean\"" : "\"sum\"";
}

/// Whether `ruff format` leaves no blanks around `**` beside it.
bool is_simple(std::string_view text) {
  if (text.starts_with("-")) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  });
}

/// … or around the colon of a slice.
bool is_plain(std::string_view text) {
  if (text.starts_with("-")) text.remove_prefix(1);
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// A keyword's Python source in the quotes that `ruff format` prefers.
std::string with_double_quotes(std::string text) {
  if (text.find('"') == std::string::npos) std::replace(text.begin(), text.end(), '\'', '"');
  return text;
}

/// Arguments that say nothing on one device of one layout.
bool is_dropped(const Argument& argument) {
  if (argument.name == "layout") return std::holds_alternative<LayoutArg>(argument.value);
  if (argument.name != "pin_memory" && argument.name != "non_blocking") return false;
  const auto* flag = std::get_if<bool>(&argument.value);
  return flag == nullptr || !*flag;
}

}  // namespace

std::string place_of(const Graph& graph, const Operator& op) {
  const SourceLine* line = graph.source_of(op);
  if (line == nullptr) return "an unknown place";
  return line->file + ":" + std::to_string(line->line);
}

Speller::Speller(const Program& program) : program_(program) {
  for (const Value& value : program.graph.values) {
    if (value.kind == ValueKind::kIntermediate || value.device.empty() || value.is_symbol) continue;
    device_type_ = value.device.substr(0, value.device.find(':'));
    break;
  }
}

std::string Speller::dtype(DType dtype) { return std::string("torch.") + dtype_name(dtype); }

std::string Speller::device(const DeviceArg& device) const {
  if (device.type == device_type_) return "rt.device()";
  if (device.index.has_value()) {
    return python::quote(device.type + ":" + std::to_string(*device.index));
  }
  return python::quote(device.type);
}

std::string Speller::device_type(const std::string& type) const {
  return type == device_type_ ? "rt.device().type" : python::quote(type);
}

std::string Speller::import_name(const std::string& module, const std::string& qualname) {
  for (const std::string& text : {module, qualname}) {
    for (const std::string& part : split(text, '.')) {
      if (!python::is_identifier(part)) {
        throw UnsupportedError(module + "." + qualname +
                               ": generated code cannot import it; define it at the top level of a "
                               "module");
      }
    }
  }
  if (module == "builtins") return qualname;
  if (module != "torch") imports_.insert(module);
  return module + "." + qualname;
}

std::string Speller::steps(const Steps& steps) const {
  std::vector<std::string> texts;
  for (const Step& step : steps) {
    const std::string axis = python::quote(program_.mesh.axes[at(step.axis)].name);
    const std::string dim = ", dim=" + std::to_string(step.dim);
    std::string text;
    switch (step.kind) {
      case StepKind::kSlice:
        text = "slice(" + axis + dim;
        break;
      case StepKind::kAllGather:
        text = "all_gather(" + axis + dim;
        break;
      case StepKind::kAllToAll:
        text = "all_to_all(" + axis + dim + ", to_dim=" + std::to_string(step.to_dim);
        break;
      case StepKind::kAllReduce:
        text = "all_reduce(" + axis;
        if (step.reduction != Reduction::kSum) {
          text += step.reduction == Reduction::kMax ? ", op=\"max\"" : ", op=\"min\"";
        }
        break;
      case StepKind::kReduceScatter:
        text = "reduce_scatter(" + axis + dim;
        break;
      case StepKind::kKeepFirst:
        text = "keep_first(" + axis;
        break;
      case StepKind::kPad:
        text = "pad(" + axis + dim;
        break;
    }
    texts.push_back("rt." + text + ")");
  }
  return "[" + join(texts, ", ") + "]";
}

std::string Speller::argument(const Operator& op, int index, const Context& context) const {
  const ArgValue& content = op.args[at(index)].value;
  if (std::holds_alternative<std::monostate>(content)) return "None";
  if (const auto* value = std::get_if<ValueId>(&content)) {
    return value->valid() ? context.operand(index, 0) : "None";
  }
  if (const auto* tensors = std::get_if<TensorList>(&content)) {
    if (const auto name = context.list(index)) return *name;
    std::vector<std::string> items;
    for (size_t j = 0; j < tensors->size(); ++j) {
      items.push_back((*tensors)[j].valid() ? context.operand(index, static_cast<int>(j)) : "None");
    }
    return op.args[at(index)].is_tuple ? python::tuple(items) : "[" + join(items, ", ") + "]";
  }
  if (const auto* integer = std::get_if<int64_t>(&content)) {
    return context.number(index, 0, std::to_string(*integer));
  }
  if (const auto* real = std::get_if<double>(&content)) {
    return context.number(index, 0, python::number(*real));
  }
  if (const auto* flag = std::get_if<bool>(&content)) return *flag ? "True" : "False";
  if (const auto* text = std::get_if<std::string>(&content)) return python::quote(*text);
  if (const auto* complex = std::get_if<std::complex<double>>(&content)) {
    return "complex(" + python::number(complex->real()) + ", " + python::number(complex->imag()) +
           ")";
  }
  if (const auto* symbol = std::get_if<SymInt>(&content)) {
    return symbol->symbol.valid() ? context.operand(index, 0) : std::to_string(symbol->value);
  }
  std::vector<std::string> items;
  if (const auto* sizes = std::get_if<std::vector<SymInt>>(&content)) {
    for (size_t j = 0; j < sizes->size(); ++j) {
      const int element = static_cast<int>(j);
      items.push_back((*sizes)[j].symbol.valid()
                          ? context.operand(index, element)
                          : context.number(index, element, std::to_string((*sizes)[j].value)));
    }
    return python::tuple(items);
  }
  if (const auto* reals = std::get_if<std::vector<double>>(&content)) {
    for (size_t j = 0; j < reals->size(); ++j) {
      items.push_back(context.number(index, static_cast<int>(j), python::number((*reals)[j])));
    }
    return python::tuple(items);
  }
  if (const auto* flags = std::get_if<std::vector<bool>>(&content)) {
    for (const bool each : *flags) items.emplace_back(each ? "True" : "False");
    return python::tuple(items);
  }
  if (const auto* texts = std::get_if<std::vector<std::string>>(&content)) {
    for (const std::string& each : *texts) items.push_back(python::quote(each));
    return python::tuple(items);
  }
  if (const auto* type = std::get_if<DType>(&content)) return dtype(*type);
  if (const auto* where = std::get_if<DeviceArg>(&content)) return device(*where);
  if (const auto* layout = std::get_if<LayoutArg>(&content)) {
    return *layout == LayoutArg::kStrided ? "torch.strided" : "torch.sparse_coo";
  }
  if (const auto* format = std::get_if<MemoryFormatArg>(&content)) return memory_format(*format);
  return std::get<PySource>(content).text;
}

std::string Speller::index(const Scopes& scopes, int op_index, const Context& context,
                           bool* statement) const {
  const Operator& op = scopes.op(op_index);
  const std::string_view base = base_name(op.target);
  const std::string self = argument(op, 0, context);
  const auto text_of = [&](std::string_view name, std::string fallback) {
    for (size_t i = 0; i < op.args.size(); ++i) {
      if (op.args[i].name == name) return argument(op, static_cast<int>(i), context);
    }
    return fallback;
  };
  std::string inside;
  if (base == "slice" || base == "select") {
    const auto& source = scopes.graph().value(std::get<ValueId>(op.args[0].value));
    const int rank = static_cast<int>(source.shape.size());
    const Argument* where = op.find("dim");
    int dim = where == nullptr ? 0 : static_cast<int>(std::get<int64_t>(where->value));
    if (dim < 0) dim += rank;
    if (dim > 0 && dim == rank - 1 && rank >= 3) {
      inside = "..., ";
    } else {
      for (int i = 0; i < dim; ++i) inside += ":, ";
    }
    if (base == "select") {
      inside += text_of("index", "0");
    } else {
      std::string start = text_of("start", "None"), end = text_of("end", "None");
      const std::string step = text_of("step", "1");
      if (start == "None" || start == "0") start = "";
      if (end == "None" || end == std::to_string(std::numeric_limits<int64_t>::max())) end = "";
      const bool blanks = !is_plain(start) || !is_plain(end);
      inside += start;
      if (blanks && !start.empty()) inside += ' ';
      inside += ':';
      if (blanks && !end.empty()) inside += ' ';
      inside += end;
      if (step != "1") inside += (blanks ? " : " : ":") + step;
    }
  } else {
    const auto& indices = std::get<TensorList>(op.args[1].value);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (i > 0) inside += ", ";
      inside += indices[i].valid() ? context.operand(1, static_cast<int>(i)) : ":";
    }
    if (base == "index_put_") {
      *statement = true;
      return self + "[" + inside + "] = " + text_of("values", "None");
    }
  }
  return self + "[" + inside + "]";
}

Speller::Result Speller::spell(const Scopes& scopes, int op_index, const Context& context) {
  const Operator& op = scopes.op(op_index);
  const Graph& graph = scopes.graph();
  static const CallInfo kPlain;
  const CallInfo& info =
      at(op_index) < program_.calls.size() ? program_.calls[at(op_index)] : kPlain;
  if (const auto found = program_.redistributions.find(op_index);
      found != program_.redistributions.end()) {
    Result moved;
    moved.text = "rt.redistribute(" + argument(op, 0, context) +
                 ", MESH, forward=" + steps(found->second.forward) +
                 ", backward=" + steps(found->second.backward) + ")";
    return moved;
  }

  std::vector<std::string> arguments;
  const auto add_keywords = [&] {
    for (const auto& [name, text] : info.keywords) {
      arguments.push_back(name + "=" + with_double_quotes(text));
    }
  };
  const auto positional_and_keywords = [&](size_t first, bool plain) {
    bool keyword = false;
    for (size_t i = first; i < op.args.size(); ++i) {
      const Argument& each = op.args[i];
      if (plain && is_dropped(each)) continue;
      // Flags and types read better with their name; what follows a keyword is one, too.
      keyword |= each.keyword || (plain && i > first &&
                                  (std::holds_alternative<bool>(each.value) ||
                                   std::holds_alternative<DType>(each.value) ||
                                   (first == 0 && each.name == "dim")));
      arguments.push_back((keyword ? each.name + "=" : "") +
                          argument(op, static_cast<int>(i), context));
    }
  };

  if (const LeafFunction* leaf = graph.leaf(op.target)) {
    std::string callee =
        info.callee.empty() ? import_name(leaf->module, leaf->qualname) : info.callee;
    positional_and_keywords(0, false);
    add_keywords();
    Result called;
    called.text = callee + "(" + join(arguments, ", ") + ")";
    called.primary = true;
    return called;
  }
  const std::vector<std::string> parts = split(op.target, '.');
  const bool named = std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return python::is_identifier(part) || python::is_keyword(part);
  });
  if (!named || op.target.find("higher_order") != std::string::npos) {
    throw UnsupportedError(place_of(graph, op) + ": " + op.target +
                           " has no Python spelling; write the model without it");
  }

  std::vector<std::string_view> present;
  for (const Argument& each : op.args) {
    if (!is_dropped(each)) present.push_back(each.name);
  }
  Spelling spelling = spelling_of(op.target, op.torch_fn, present);
  Result result;
  const SpellingStyle style = spelling.style;
  result.primary = style == SpellingStyle::kCall || style == SpellingStyle::kMethod ||
                   style == SpellingStyle::kIndex || style == SpellingStyle::kRaw;
  result.takes_primary = style == SpellingStyle::kMethod || style == SpellingStyle::kInfix ||
                         style == SpellingStyle::kIndex;
  const auto infix = [&](const std::string& left, const std::string& right) {
    if (spelling.name == "**") {
      if (left.starts_with("-")) return "torch.pow(" + left + ", " + right + ")";
      return is_simple(left) && is_simple(right) ? left + "**" + right : left + " ** " + right;
    }
    if ((spelling.name == "==" || spelling.name == "!=") && (right == "True" || right == "False")) {
      return left + (spelling.name == "==" ? ".eq(" : ".ne(") + right + ")";
    }
    return left + " " + spelling.name + " " + right;
  };
  bool compound = false;
  switch (spelling.style) {
    case SpellingStyle::kInfix:
    case SpellingStyle::kReflected: {
      const bool swap = spelling.style == SpellingStyle::kReflected;
      const std::string left = argument(op, swap ? 1 : 0, context);
      const std::string right = argument(op, swap ? 0 : 1, context);
      result.text = infix(left, right);
      compound = true;
      break;
    }
    case SpellingStyle::kPrefix:
      result.text = spelling.name + argument(op, 0, context);
      break;
    case SpellingStyle::kIndex: {
      const auto* indices =
          op.args.size() > 1 ? std::get_if<TensorList>(&op.args[1].value) : nullptr;
      const Argument* accumulate = op.find("accumulate");
      const bool adds = accumulate != nullptr && std::get_if<bool>(&accumulate->value) != nullptr &&
                        std::get<bool>(accumulate->value);
      if (adds &&
          std::all_of(indices->begin(), indices->end(), [](ValueId v) { return v.valid(); })) {
        std::vector<std::string> items;
        for (size_t i = 0; i < indices->size(); ++i) {
          items.push_back(context.operand(1, static_cast<int>(i)));
        }
        result.text = argument(op, 0, context) + ".index_put_(" + python::tuple(items) + ", " +
                      argument(op, 2, context) + ", accumulate=True)";
      } else if (adds) {
        positional_and_keywords(0, false);
        result.text = "torch.ops." + op.target + "(" + join(arguments, ", ") + ")";
      } else {
        result.text = index(scopes, op_index, context, &result.statement);
      }
      break;
    }
    case SpellingStyle::kAlias:
      result.text = argument(op, 0, context) + "[...]";
      break;
    case SpellingStyle::kShape:
      result.text = argument(op, 0, context) + ".shape[" + argument(op, 1, context) + "]";
      break;
    case SpellingStyle::kRaw:
      custom_ |= !op.target.starts_with("aten.");
      positional_and_keywords(0, false);
      add_keywords();
      result.text = spelling.name + "(" + join(arguments, ", ") + ")";
      break;
    case SpellingStyle::kCall:
    case SpellingStyle::kMethod: {
      const bool method = spelling.style == SpellingStyle::kMethod;
      if (spelling.name.ends_with("!")) {
        result.text =
            argument(op, 0, context) + "." + spelling.name.substr(0, spelling.name.size() - 1);
        break;
      }
      if (spelling.listed) {
        // Without running statistics, a norm takes the batch's in evaluation, too.
        const Argument* statistics = op.find("running_mean");
        const bool always =
            statistics != nullptr && std::holds_alternative<std::monostate>(statistics->value);
        bool keyword = false;
        for (const SpelledArgument& each : spelling.arguments) {
          if (!each.constant.empty()) {
            arguments.push_back(std::string(each.python) + "=" + std::string(each.constant));
            continue;
          }
          size_t i = 0;
          while (i < op.args.size() && op.args[i].name != each.aten) ++i;
          if (i == op.args.size()) {
            keyword = true;  // what follows a gap needs its name
            continue;
          }
          std::string text;
          const ArgValue& content = op.args[i].value;
          if (each.form == ArgumentForm::kReduction && std::get_if<int64_t>(&content) != nullptr) {
            text = reduction_name(std::get<int64_t>(content));
          } else if (each.form == ArgumentForm::kSpread) {
            text = argument(op, static_cast<int>(i), context);
            text = text.starts_with("[") ? text.substr(1, text.size() - 2) : "*" + text;
          } else if (each.form == ArgumentForm::kTraining && graph.eval_mode == "flags" &&
                     !always) {
            text = argument(op, static_cast<int>(i), context);
            if (text == "True") {
              text = "self.training";
            } else if (std::get_if<double>(&content) != nullptr && std::get<double>(content) != 0) {
              text += " if self.training else 0.0";
            }
          } else {
            text = argument(op, static_cast<int>(i), context);
          }
          if (!each.omit_if.empty() && text == each.omit_if) {
            keyword = true;
            continue;
          }
          keyword |= !each.python.empty();
          const std::string_view name = each.python.empty() ? each.aten : each.python;
          arguments.push_back(keyword ? std::string(name) + "=" + text : text);
        }
        // ATen's reductions default to the mean, torch's not all: what is left out is said.
        for (const SpelledArgument& each : spelling.arguments) {
          if (each.form != ArgumentForm::kReduction || op.find(each.aten) != nullptr) continue;
          arguments.push_back(std::string(each.python) + "=\"mean\"");
        }
      } else {
        positional_and_keywords(method ? 1 : 0, true);
      }
      if (spelling.number) {
        for (std::string& text : arguments) {
          const bool keyword = text.starts_with("dim=");
          if (!text.ends_with(",)") || !(keyword || text.starts_with("("))) continue;
          const size_t open = keyword ? 5 : 1;
          text = (keyword ? "dim=" : "") + text.substr(open, text.size() - open - 2);
        }
      }
      if (spelling.spread && method && !arguments.empty() && arguments[0].starts_with("(") &&
          arguments[0].size() > 2) {
        std::string& list = arguments[0];
        list = list.ends_with(",)") ? list.substr(1, list.size() - 3)
                                    : list.substr(1, list.size() - 2);
      }
      std::string callee = method ? argument(op, 0, context) + "." + spelling.name : spelling.name;
      if (!info.callee.empty()) {
        callee = info.callee;
        if (method) arguments.insert(arguments.begin(), argument(op, 0, context));
      }
      constexpr std::string_view kRuntime = "nnscaler.runtime.";
      if (callee.starts_with(kRuntime)) callee = "rt." + callee.substr(kRuntime.size());
      add_keywords();
      result.text = callee + "(" + join(arguments, ", ") + ")";
      break;
    }
  }
  if (info.divide_result != 1) {
    if (compound) result.text = "(" + result.text + ")";
    result.text += " / " + std::to_string(info.divide_result);
    result.primary = false;
  }
  return result;
}

}  // namespace nnscaler::emission
