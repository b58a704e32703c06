// models/model.json -> values and operators, region bodies in their place.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "core/base/error.h"
#include "core/graph/python.h"
#include "core/graph/read.h"

namespace nnscaler {

namespace {

constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kSchemaMinor = 20;
constexpr int64_t kMaxBytes = int64_t{1} << 60;
constexpr int kMaxDepth = 60;
constexpr size_t kMaxFrames = 200;

// Checks that export made; they hold on every rank, or fail to make sense on a part of a tensor.
bool is_assertion(std::string_view target) {
  static constexpr std::array<std::string_view, 4> kPrefixes = {
      "aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range",
      "aten._assert_async"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return target.starts_with(prefix); });
}

std::vector<std::string_view> split_views(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// `  File "model.py", line 244, in forward\n    q = self.q_proj(x)\n  File …`
Trace parse_trace(std::string_view text) {
  Trace trace;
  for (const std::string_view line : split_views(text, "\n")) {
    const std::string_view content = trim(line);
    const size_t quote_end = content.find("\", line ");
    if (content.starts_with("File \"") && quote_end != std::string_view::npos) {
      SourceLine source;
      source.file = content.substr(6, quote_end - 6);
      const std::string_view rest = content.substr(quote_end + 8);
      for (const char c : rest) {
        if (c < '0' || c > '9' || source.line > 100'000'000) break;
        source.line = source.line * 10 + (c - '0');
      }
      const size_t in = rest.find(", in ");
      if (in != std::string_view::npos) source.function = rest.substr(in + 5);
      trace.push_back(std::move(source));
    } else if (!trace.empty() && content.find_first_not_of("^~ ") != std::string_view::npos) {
      std::string& code = trace.back().text;
      if (!code.empty()) code += '\n';
      code += content;
    }
  }
  return trace;
}

/// `L__self__,,pkg.LM;L__self__fc@1,fc,torch.nn.modules.linear.Linear`
ModuleStack parse_stack(std::string_view text) {
  ModuleStack stack;
  if (text.starts_with("_empty_nn_module_stack")) return stack;
  for (const std::string_view entry : split_views(text, ";")) {
    // Three parts; commas inside brackets belong to a path or class.
    std::array<std::string_view, 3> parts;
    size_t part = 0, begin = 0;
    int depth = 0;
    for (size_t i = 0; i < entry.size() && part < 2; ++i) {
      const char c = entry[i];
      if (c == '(' || c == '[') ++depth;
      if (c == ')' || c == ']') --depth;
      if (c == ',' && depth == 0) {
        parts[part++] = entry.substr(begin, i - begin);
        begin = i + 1;
      }
    }
    parts[part] = entry.substr(begin);
    if (part < 2) continue;
    Frame frame;
    frame.path = parts[1];
    frame.class_name = parts[2];
    const size_t at = parts[0].rfind('@');
    if (at != std::string_view::npos) {
      for (const char c : parts[0].substr(at + 1)) {
        if (c < '0' || c > '9' || frame.call > 100'000'000) break;
        frame.call = frame.call * 10 + (c - '0');
      }
    }
    // The key of the root may come twice ("L__self__L__self__"), and so may its frame.
    const bool repeated = !stack.empty() && stack.back() == frame;
    if (!repeated && stack.size() < kMaxFrames) stack.push_back(std::move(frame));
  }
  return stack;
}

DType to_dtype(int64_t number) {
  const DType dtype = static_cast<DType>(number);
  return number > 0 && number < 256 && dtype_bytes(dtype) > 0 ? dtype : DType::kUnknown;
}

class ProgramReader {
 public:
  ProgramReader(const JsonReader& json, Draft& draft)
      : json_(json), draft_(draft), graph_(draft.graph) {}

  void run() {
    const Json root = json_.root();
    read_version(root);
    const Json graph_module = json_.at(root, "graph_module");
    const JsonReader::Scope in_module(json_, "graph_module");
    const Json graph = json_.at(graph_module, "graph");
    const Json signature = json_.at(graph_module, "signature");
    Names names;
    {
      const JsonReader::Scope scope(json_, "graph");
      names = read_names(graph);
      graph_.values.reserve(names.tensors.size() + names.ints.size());
      graph_.operators.reserve(json_.array(graph, "nodes").size());
    }
    {
      const JsonReader::Scope scope(json_, "signature");
      json_.each(signature, "input_specs", [&](Json spec) { read_input(spec, names); });
    }
    {
      const JsonReader::Scope scope(json_, "graph");
      read_nodes(graph, names, -1);
    }
    {
      const JsonReader::Scope scope(json_, "signature");
      json_.each(signature, "output_specs", [&](Json spec) { read_output(spec, names); });
    }
    read_symbols(root);
  }

 private:
  /// What the names of one graph of the archive mean; region bodies have their own.
  struct Names {
    std::unordered_map<std::string_view, ValueId> values;
    std::unordered_map<std::string_view, Json> tensors, ints, floats, bools;
    JsonReader::Steps place;
  };

  void read_version(Json root) {
    const Json version = json_.at(root, "schema_version");
    const JsonReader::Scope scope(json_, "schema_version");
    const int64_t major = json_.integer(version, "major");
    const int64_t minor = json_.integer(version, "minor");
    if (major != kSchemaMajor) {
      json_.fail(fmt::format(
          "is {}.{}, and {}.x is read; export the model with another version of PyTorch (2.13 is "
          "tested)",
          major, minor, kSchemaMajor));
    }
    const std::optional<Json> torch = json_.find(root, "torch_version");
    if (torch) graph_.torch_version = json_.string(root, "torch_version");
    if (minor > kSchemaMinor) {
      graph_.warnings.push_back(
          fmt::format("{} is {}.{}, newer than {}.{}, with which nnscaler is tested (PyTorch 2.13)",
                      json_.place(), major, minor, kSchemaMajor, kSchemaMinor));
    }
  }

  Names read_names(Json graph) {
    Names names;
    names.place = json_.steps();
    const auto read = [&](std::string_view key, std::unordered_map<std::string_view, Json>& into) {
      if (!json_.find(graph, key)) return;
      const auto fields = json_.fields(graph, key);
      into.reserve(fields.size());
      for (const auto& [name, value] : fields) into.emplace(name, value);
    };
    read("tensor_values", names.tensors);
    read("sym_int_values", names.ints);
    read("sym_float_values", names.floats);
    read("sym_bool_values", names.bools);
    const size_t count = names.tensors.size() + names.ints.size();
    names.values.reserve(count);
    name_counts_.reserve(name_counts_.size() + count);
    return names;
  }

  // --- Values ---

  /// The archive's name, or a fresh one where a region's body or another graph has it already.
  std::string unique_name(std::string_view name) {
    const auto [it, fresh] = name_counts_.emplace(name, 0);
    if (fresh) return it->first;
    while (true) {
      std::string candidate = fmt::format("{}_{}", name, ++it->second);
      if (name_counts_.emplace(candidate, 0).second) return candidate;
    }
  }

  ValueId add_value(std::string_view name, Value value, Names& names) {
    const ValueId id{static_cast<int32_t>(graph_.values.size())};
    if (!names.values.emplace(name, id).second) {
      json_.fail(fmt::format("value {} exists already", name));
    }
    value.name = unique_name(name);
    graph_.values.push_back(std::move(value));
    hints_.push_back(-1);
    return id;
  }

  ValueId lookup(std::string_view name, const Names& names) const {
    const auto found = names.values.find(name);
    if (found == names.values.end()) {
      json_.fail(fmt::format("reads {}, which nothing before it writes", name));
    }
    return found->second;
  }

  /// {"as_int": 8} or {"as_expr": {"expr_str": …, "hint": …}}
  Extent read_extent(Json json) {
    const auto [kind, value] = json_.only(json);
    if (kind == "as_int") {
      const JsonReader::Scope scope(json_, kind);
      return {json_.integer(value), ""};
    }
    if (kind != "as_expr") json_.fail(fmt::format("has a size of unknown kind {}", kind));
    const JsonReader::Scope scope(json_, kind);
    const SizeExpression& expression = read_expression(value);
    int64_t hint = -1;
    if (const std::optional<Json> known = json_.find(value, "hint")) {
      const JsonReader::Scope in_hint(json_, "hint");
      if (json_.find(*known, "as_int")) hint = json_.integer(*known, "as_int");
    }
    if (expression.number) return {*expression.number, ""};
    return {std::max<int64_t>(hint, -1), expression.text};
  }

  const SizeExpression& read_expression(Json json) {
    const std::string_view text = json_.string(json, "expr_str");
    const auto found = expressions_.find(text);
    if (found != expressions_.end()) return found->second;
    const JsonReader::Scope scope(json_, "expr_str");
    SizeExpression expression;
    try {
      expression = parse_srepr(text);
    } catch (const InputError& error) {
      json_.fail(error.what());
    }
    if (!expression.unknown.empty()) {
      graph_.warnings.push_back(fmt::format("{}: the size {} has a function that is not known, {}",
                                            json_.place(), expression.text, expression.unknown));
    }
    return expressions_.emplace(text, std::move(expression)).first->second;
  }

  DType read_dtype(Json object, std::string_view key) {
    const int64_t number = json_.integer(object, key);
    return checked_dtype(number, key);
  }

  DType checked_dtype(int64_t number, std::string_view key) const {
    const DType dtype = to_dtype(number);
    if (dtype == DType::kUnknown) {
      const JsonReader::Scope scope(json_, key);
      json_.fail(fmt::format("is {}, which is no number of an element type", number));
    }
    return dtype;
  }

  static std::string device_name(const DeviceArg& device) {
    return device.index ? fmt::format("{}:{}", device.type, *device.index) : device.type;
  }

  DeviceArg read_device(Json json) {
    DeviceArg device{std::string(json_.string(json, "type")), std::nullopt};
    if (!is_identifier(device.type)) json_.fail("has a device of no valid type");
    if (json_.find(json, "index")) device.index = json_.integer(json, "index");
    return device;
  }

  /// A Value with what `tensor_values` says of it.
  Value read_tensor(std::string_view name, const Names& names) {
    const auto found = names.tensors.find(name);
    if (found == names.tensors.end()) {
      json_.fail(fmt::format("tensor {} is not in tensor_values", name));
    }
    const Json meta = found->second;
    const JsonReader::Jump jump(json_, names.place);
    const JsonReader::Scope in_values(json_, "tensor_values");
    const JsonReader::Scope in_value(json_, name);
    Value value;
    value.dtype = read_dtype(meta, "dtype");
    int64_t bytes = dtype_bytes(value.dtype);
    json_.each(meta, "sizes", [&](Json size) {
      const Extent& extent = value.shape.emplace_back(read_extent(size));
      if (extent.value < 0 && !extent.is_symbolic()) {
        json_.fail(fmt::format("is {}, and sizes are not negative", extent.value));
      }
      const int64_t length = std::max<int64_t>(extent.value, 0);
      if (length > kMaxBytes / std::max<int64_t>(bytes, 1)) json_.fail("makes a tensor too large");
      bytes *= extent.value < 0 ? 1 : length;
    });
    json_.each(meta, "strides", [&](Json stride) { value.strides.push_back(read_extent(stride)); });
    if (value.strides.size() != value.shape.size()) {
      json_.fail(
          fmt::format("has {} sizes and {} strides", value.shape.size(), value.strides.size()));
    }
    const Json device = json_.at(meta, "device");
    value.device = device_name(read_device(device));
    value.requires_grad = json_.boolean(meta, "requires_grad");
    const int64_t layout = json_.integer(meta, "layout");
    if (layout != static_cast<int64_t>(LayoutArg::kStrided)) {
      json_.fail(fmt::format("has layout {}; only strided tensors can be read", layout));
    }
    return value;
  }

  /// A symbolic size. `kind`: "as_sym_int", "as_sym_float" or "as_sym_bool".
  ValueId add_symbol(std::string_view name, std::string_view kind, Names& names) {
    const bool is_int = kind == "as_sym_int", is_float = kind == "as_sym_float";
    const auto& metas = is_int ? names.ints : (is_float ? names.floats : names.bools);
    const auto found = metas.find(name);
    if (found == metas.end()) json_.fail(fmt::format("symbolic size {} has no value", name));
    Value value;
    value.is_symbol = true;
    value.dtype = is_int ? DType::kInt64 : (is_float ? DType::kFloat64 : DType::kBool);
    int64_t hint = -1;
    {
      const JsonReader::Jump jump(json_, names.place);
      const JsonReader::Scope in_values(
          json_, is_int ? "sym_int_values" : (is_float ? "sym_float_values" : "sym_bool_values"));
      const JsonReader::Scope in_value(json_, name);
      const auto [meta_kind, meta] = json_.only(found->second);
      const JsonReader::Scope in_kind(json_, meta_kind);
      if (meta_kind == "as_expr") {
        value.symbol = read_expression(meta).text;
        if (const std::optional<Json> known = json_.find(meta, "hint"); known && is_int) {
          const JsonReader::Scope in_hint(json_, "hint");
          hint = json_.integer(*known, "as_int");
        }
      } else if (is_int) {
        hint = json_.integer(meta);
        value.symbol = std::to_string(hint);
      } else if (is_float) {
        value.symbol = print_float(json_.number(meta));
      } else {
        value.symbol = json_.boolean(meta) ? "True" : "False";
      }
    }
    const ValueId id = add_value(name, std::move(value), names);
    hints_.back() = hint;
    return id;
  }

  // --- Signature ---

  void read_input(Json spec, Names& names) {
    const auto [kind, body] = json_.only(spec);
    const JsonReader::Scope scope(json_, kind);
    if (kind == "user_input") {
      const auto [arg_kind, arg] = json_.only(json_.at(body, "arg"));
      ValueId id;
      const JsonReader::Scope in_arg(json_, arg_kind);
      if (arg_kind == "as_tensor") {
        id = add_input(json_.string(arg, "name"), ValueKind::kInput, names);
      } else if (arg_kind.starts_with("as_sym_")) {
        id = add_symbol(json_.string(arg, "as_name"), arg_kind, names);
        graph_.value(id).kind = ValueKind::kInput;
      } else {
        json_.fail("is an input that is neither a tensor nor a size");
      }
      graph_.inputs.push_back(id);
      draft_.input_literals.emplace_back();
      return;
    }
    if (kind == "constant_input") {
      graph_.inputs.push_back(ValueId());
      draft_.input_literals.push_back(read_constant(json_.at(body, "value")));
      return;
    }
    static constexpr std::array<std::pair<std::string_view, ValueKind>, 3> kKinds = {{
        {"parameter", ValueKind::kParameter},
        {"buffer", ValueKind::kBuffer},
        {"tensor_constant", ValueKind::kConstant},
    }};
    const auto known = std::ranges::find(kKinds, kind, &decltype(kKinds)::value_type::first);
    if (known == kKinds.end()) {
      throw UnsupportedError(
          fmt::format("{}: models with a {} are not supported; keep it out of "
                      "the part that is parallelized",
                      json_.place(), kind));
    }
    const ValueId id = add_input(json_.string(json_.at(body, "arg"), "name"), known->second, names);
    Value& value = graph_.value(id);
    value.fqn = json_.string(body, fmt::format("{}_name", kind));
    if (kind == "buffer") value.persistent = json_.boolean(body, "persistent");
    if (!draft_.by_fqn.emplace(json_.string(body, fmt::format("{}_name", kind)), id).second) {
      json_.fail(fmt::format("is {} for the second time", value.fqn));
    }
  }

  ValueId add_input(std::string_view name, ValueKind kind, Names& names) {
    Value value = read_tensor(name, names);
    value.kind = kind;
    return add_value(name, std::move(value), names);
  }

  std::string read_constant(Json json) {
    const auto [kind, value] = json_.only(json);
    const JsonReader::Scope scope(json_, kind);
    if (kind == "as_none") return "None";
    if (kind == "as_int") return std::to_string(json_.integer(value));
    if (kind == "as_bool") return json_.boolean(value) ? "True" : "False";
    if (kind == "as_string") return quote(json_.string(value));
    if (kind == "as_float") return print_float(json_.number(value));
    json_.fail("is a constant of unknown kind");
  }

  void read_output(Json spec, const Names& names) {
    const auto [kind, body] = json_.only(spec);
    const JsonReader::Scope scope(json_, kind);
    if (kind != "user_output" && kind != "loss_output") {
      json_.fail(
          "is an output of an inference program; export the model with nnscaler.export, without "
          "run_decompositions");
    }
    const Json arg_json = json_.at(body, "arg");
    ValueId id;
    std::string literal;
    if (kind == "loss_output") {
      id = lookup(json_.string(arg_json, "name"), names);
    } else {
      const auto [arg_kind, arg] = json_.only(arg_json);
      const JsonReader::Scope in_arg(json_, arg_kind);
      if (arg_kind == "as_tensor") {
        id = lookup(json_.string(arg, "name"), names);
      } else if (arg_kind.starts_with("as_sym_") && json_.is_object(arg) &&
                 json_.find(arg, "as_name")) {
        id = lookup(json_.string(arg, "as_name"), names);
      } else {
        literal = read_constant(arg_json);
      }
    }
    graph_.outputs.push_back(id);
    draft_.output_literals.push_back(std::move(literal));
  }

  void read_symbols(Json root) {
    if (!json_.find(root, "range_constraints")) return;
    // The first size of an input, or input, that is a symbol alone.
    std::map<std::string_view, std::pair<ValueId, int>> origins;
    for (const ValueId id : graph_.inputs) {
      if (!id.valid()) continue;
      const Value& value = graph_.value(id);
      if (value.is_symbol) origins.try_emplace(value.symbol, id, -1);
      for (size_t dim = 0; dim < value.shape.size(); ++dim) {
        if (!value.shape[dim].is_symbolic()) continue;
        origins.try_emplace(value.shape[dim].symbol, id, static_cast<int>(dim));
      }
    }
    for (const auto& [name, range] : json_.fields(root, "range_constraints")) {
      const JsonReader::Scope scope(json_, "range_constraints");
      const JsonReader::Scope in_symbol(json_, name);
      SymbolInfo info;
      info.min = json_.find(range, "min_val") ? json_.integer(range, "min_val") : 0;
      if (json_.find(range, "max_val")) info.max = json_.integer(range, "max_val");
      const auto origin = origins.find(name);
      if (origin != origins.end()) {
        info.input = graph_.value(origin->second.first).name;
        info.dim = origin->second.second;
      }
      graph_.symbols.emplace(name, std::move(info));
    }
  }

  // --- Nodes ---

  void read_nodes(Json graph, Names& names, int region) {
    if (++depth_ > kMaxDepth) json_.fail("is nested too deeply");
    json_.each(graph, "nodes", [&](Json node) {
      std::string_view target = json_.string(node, "target");
      if (target.starts_with("torch.ops.")) target.remove_prefix(10);
      if (target.starts_with("higher_order.")) {
        read_region(node, target, names, region);
      } else if (is_assertion(target)) {
        draft_.dropped.emplace_back(node_name(node), static_cast<int>(graph_.operators.size()));
      } else {
        read_operator(node, target, names, region);
      }
    });
    --depth_;
  }

  std::string_view node_name(Json node) const {
    return json_.find(node, "name") ? json_.string(node, "name") : std::string_view();
  }

  void read_operator(Json node, std::string_view target, Names& names, int region) {
    Operator op;
    op.target = target;
    op.region = region;
    read_metadata(node, op);
    json_.each(node, "inputs", [&](Json input) {
      const Json arg = json_.at(input, "arg");
      const auto [kind, value] = json_.only(arg);
      const JsonReader::Scope in_arg(json_, "arg");
      const JsonReader::Scope in_kind(json_, kind);
      Argument& argument = op.args.emplace_back();
      argument.name = json_.string(input, "name");
      argument.keyword = json_.find(input, "kind") && json_.integer(input, "kind") == 2;
      argument.value = read_argument(kind, value, names, op);
    });
    const OpId id{static_cast<int32_t>(graph_.operators.size())};
    std::string_view first_output;
    const auto add_output = [&](ValueId value, std::string_view name) {
      if (first_output.empty()) first_output = name;
      graph_.value(value).producer = id;
      graph_.value(value).output_index = static_cast<int>(op.outputs.size());
      op.outputs.push_back(value);
    };
    const auto add_tensor = [&](Json tensor) {
      const std::string_view name = json_.string(tensor, "name");
      add_output(add_value(name, read_tensor(name, names), names), name);
    };
    const size_t num_outputs = json_.array(node, "outputs").size();
    json_.each(node, "outputs", [&](Json output) {
      const auto [kind, value] = json_.only(output);
      const JsonReader::Scope in_kind(json_, kind);
      if (kind == "as_tensor") {
        add_tensor(value);
      } else if (kind == "as_tensors" && num_outputs == 1) {
        op.output_is_list = true;
        for (const Json tensor : json_.elements(value)) add_tensor(tensor);
      } else if (kind == "as_none") {
        op.outputs.push_back(ValueId());
      } else if (kind.starts_with("as_sym_") && json_.is_object(value)) {
        const std::string_view name = json_.string(value, "as_name");
        add_output(add_symbol(name, kind, names), name);
      } else {
        unsupported(op, fmt::format("{} returns {}, which nnscaler cannot read", target, kind));
      }
    });
    draft_.nodes.push_back({node_name(node), first_output});
    graph_.operators.push_back(std::move(op));
  }

  void read_metadata(Json node, Operator& op) {
    const Json metadata = json_.at(node, "metadata");
    const JsonReader::Scope scope(json_, "metadata");
    if (json_.find(metadata, "stack_trace")) {
      const std::string_view text = json_.string(metadata, "stack_trace");
      const auto [it, fresh] = traces_.emplace(text, static_cast<int>(graph_.traces.size()));
      if (fresh) graph_.traces.push_back(parse_trace(text));
      op.trace = it->second;
    }
    if (json_.find(metadata, "nn_module_stack")) {
      const std::string_view text = json_.string(metadata, "nn_module_stack");
      const auto [it, fresh] = stacks_.emplace(text, -1);
      if (fresh) {
        ModuleStack stack = parse_stack(text);
        if (!stack.empty()) {
          it->second = static_cast<int>(graph_.stacks.size());
          graph_.stacks.push_back(std::move(stack));
        }
      }
      op.stack = it->second;
    }
    if (json_.find(metadata, "torch_fn")) {
      // "linear_3;builtin_function_or_method.linear"
      const std::string_view text = json_.string(metadata, "torch_fn");
      const size_t semicolon = text.find(';');
      const auto [it, fresh] =
          calls_.emplace(text.substr(0, semicolon), static_cast<int>(calls_.size()));
      op.torch_fn_call = it->second;
      if (semicolon != std::string_view::npos) op.torch_fn = text.substr(semicolon + 1);
    }
  }

  /// "model.py:12: " of the user's line, or the place in the archive where there is none.
  [[noreturn]] void unsupported(const Operator& op, std::string_view what) const {
    const SourceLine* source = graph_.source_of(op);
    throw UnsupportedError(fmt::format(
        "{}: {}", source ? fmt::format("{}:{}", source->file, source->line) : json_.place(), what));
  }

  ArgValue read_argument(std::string_view kind, Json json, const Names& names, const Operator& op) {
    if (kind == "as_tensor") return lookup(json_.string(json, "name"), names);
    if (kind == "as_none") return std::monostate();
    if (kind == "as_int") return json_.integer(json);
    if (kind == "as_float") return json_.number(json);
    if (kind == "as_bool") return json_.boolean(json);
    if (kind == "as_string") return std::string(json_.string(json));
    if (kind == "as_scalar_type") return checked_dtype(json_.integer(json), kind);
    if (kind == "as_device") return read_device(json);
    if (kind == "as_tensors") {
      return read_list<ValueId>(
          json, [&](Json item) { return lookup(json_.string(item, "name"), names); });
    }
    if (kind == "as_optional_tensor") {
      const ValueId id = read_optional_tensor(json, names);
      if (id.valid()) return id;
      return std::monostate();
    }
    if (kind == "as_optional_tensors") {
      return read_list<ValueId>(json, [&](Json item) { return read_optional_tensor(item, names); });
    }
    if (kind == "as_ints") {
      return read_list<SymInt>(json, [&](Json item) { return SymInt{json_.integer(item), {}}; });
    }
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      const auto [which, value] = json_.only(json);
      const JsonReader::Scope scope(json_, which);
      if (which == "as_name") return read_symbol(value, names);
      if (kind == "as_sym_int") return json_.integer(value);
      if (kind == "as_sym_float") return json_.number(value);
      return json_.boolean(value);
    }
    if (kind == "as_sym_ints") {
      return read_list<SymInt>(json, [&](Json item) {
        const auto [which, value] = json_.only(item);
        return which == "as_name" ? read_symbol(value, names) : SymInt{json_.integer(value), {}};
      });
    }
    if (kind == "as_floats") {
      return read_list<double>(json, [&](Json item) { return json_.number(item); });
    }
    if (kind == "as_bools") {
      return read_list<bool>(json, [&](Json item) { return json_.boolean(item); });
    }
    if (kind == "as_strings") {
      return read_list<std::string>(json,
                                    [&](Json item) { return std::string(json_.string(item)); });
    }
    if (kind == "as_complex") {
      return std::complex<double>(json_.number(json, "real"), json_.number(json, "imag"));
    }
    if (kind == "as_layout") {
      const int64_t number = json_.integer(json);
      if (number < 1 || number > 7) json_.fail(fmt::format("is {}, which is no layout", number));
      return static_cast<LayoutArg>(number);
    }
    if (kind == "as_memory_format") {
      const int64_t number = json_.integer(json);
      if (number < 1 || number > 4) {
        json_.fail(fmt::format("is {}, which is no memory format", number));
      }
      return static_cast<MemoryFormatArg>(number);
    }
    unsupported(op, fmt::format("{} takes an argument of kind {}, which nnscaler cannot read; keep "
                                "it out of the part that is parallelized",
                                op.target, kind));
  }

  template <typename T, typename Read>
  std::vector<T> read_list(Json json, Read&& read) {
    std::vector<T> list;
    for (const Json item : json_.elements(json)) list.push_back(read(item));
    return list;
  }

  ValueId read_optional_tensor(Json json, const Names& names) {
    const auto [kind, value] = json_.only(json);
    if (kind == "as_none") return ValueId();
    if (kind != "as_tensor") json_.fail(fmt::format("has an element of unknown kind {}", kind));
    return lookup(json_.string(value, "name"), names);
  }

  SymInt read_symbol(Json json, const Names& names) {
    const ValueId id = lookup(json_.string(json), names);
    return {hints_[static_cast<size_t>(id.index)], id};
  }

  // --- Regions ---

  void read_region(Json node, std::string_view target, Names& names, int parent) {
    const bool grad_mode = target == "higher_order.wrap_with_set_grad_enabled";
    if (!grad_mode && target != "higher_order.wrap_with_autocast") {
      Operator op;
      read_metadata(node, op);
      unsupported(op, fmt::format("torch.{} keeps graphs inside the graph, which nnscaler cannot "
                                  "parallelize; write it without, or keep it out of the part that "
                                  "is parallelized",
                                  target.substr(target.find('.') + 1)));
    }
    std::vector<Json> arguments;
    json_.each(node, "inputs", [&](Json input) { arguments.push_back(json_.at(input, "arg")); });
    const size_t num_settings = grad_mode ? 1 : 4;
    if (arguments.size() <= num_settings) json_.fail("has too few inputs for a region");

    const int region = static_cast<int>(graph_.regions.size());
    Region& settings = graph_.regions.emplace_back();
    settings.kind = grad_mode ? RegionKind::kGradMode : RegionKind::kAutocast;
    settings.parent = parent;
    {
      const JsonReader::Scope scope(json_, "inputs");
      if (grad_mode) {
        settings.enabled = json_.boolean(arguments[0], "as_bool");
      } else {
        settings.device_type = json_.string(arguments[0], "as_string");
        if (json_.find(arguments[1], "as_scalar_type")) {
          settings.dtype = read_dtype(arguments[1], "as_scalar_type");
        }
        settings.enabled = json_.boolean(arguments[2], "as_bool");
        if (json_.find(arguments[3], "as_bool")) {
          settings.cache_enabled = json_.boolean(arguments[3], "as_bool");
        }
      }
    }

    const Json graph_argument = json_.at(arguments[num_settings], "as_graph");
    const Json body = json_.at(graph_argument, "graph");
    const std::string_view body_name = json_.string(graph_argument, "name");
    const JsonReader::Scope in_body(json_, body_name);
    Names inner = read_names(body);
    size_t next = num_settings + 1;
    json_.each(body, "inputs", [&](Json input) {
      if (next >= arguments.size()) json_.fail("is an input that the caller does not pass");
      const auto [kind, value] = json_.only(arguments[next++]);
      const auto [inner_kind, inner_value] = json_.only(input);
      if (kind != "as_tensor" && !kind.starts_with("as_sym_")) return;  // A constant, baked in.
      if (inner_kind != kind) json_.fail(fmt::format("is {} but gets {}", inner_kind, kind));
      const std::string_view key = kind == "as_tensor" ? "name" : "as_name";
      const ValueId outer = lookup(json_.string(value, key), names);
      if (!inner.values.emplace(json_.string(inner_value, key), outer).second) {
        json_.fail("has the name of another input");
      }
    });

    Draft::Body record;
    record.name = node_name(node);
    record.begin = static_cast<int>(graph_.operators.size());
    read_nodes(body, inner, region);
    record.end = static_cast<int>(graph_.operators.size());

    const std::vector<Json> results = json_.array(body, "outputs");
    std::vector<Json> outputs;
    for (const Json output : json_.array(node, "outputs")) {
      const auto [kind, value] = json_.only(output);
      if (kind == "as_tensors") {
        for (const Json tensor : json_.elements(value)) outputs.push_back(tensor);
      } else {
        outputs.push_back(kind == "as_none" ? output : value);
      }
    }
    if (results.size() != outputs.size()) {
      json_.fail(fmt::format("returns {} values, and its caller names {}", results.size(),
                             outputs.size()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto [kind, value] = json_.only(results[i]);
      if (kind == "as_none") continue;
      if (kind != "as_tensor" && !kind.starts_with("as_sym_")) {
        json_.fail(fmt::format("returns {}, which is no tensor", kind));
      }
      const std::string_view key = kind == "as_tensor" ? "name" : "as_name";
      const std::string_view outer = json_.string(outputs[i], key);
      if (record.output.empty()) record.output = outer;
      if (!names.values.emplace(outer, lookup(json_.string(value, key), inner)).second) {
        json_.fail(fmt::format("value {} exists already", outer));
      }
    }
    draft_.bodies.push_back(record);
  }

  const JsonReader& json_;
  Draft& draft_;
  Graph& graph_;
  int depth_ = 0;
  std::vector<int64_t> hints_;  // One a value; of symbolic sizes.
  std::unordered_map<std::string, int> name_counts_;
  std::unordered_map<std::string_view, SizeExpression> expressions_;
  std::unordered_map<std::string_view, int> traces_, stacks_, calls_;
};

}  // namespace

void read_program(const JsonReader& json, Draft& draft) { ProgramReader(json, draft).run(); }

}  // namespace nnscaler
