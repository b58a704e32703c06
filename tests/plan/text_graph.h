#pragma once

#include <map>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/graph.h"

namespace nnscaler {

/// A graph from a few lines, for tests:
///
///     x: f32[8, 16] input            (or: param, buffer, and "grad" after input)
///     y: f32[8, 32] = aten.linear.default(input=x, weight=w) in fc1:Linear
///     return y
///
/// A value requires a gradient when it is a float and an operand does; parameters do.
inline Graph parse_graph(const std::string& text) {
  Graph graph;
  graph.module_class = "test.Model";
  graph.digest = digest(text);
  std::map<std::string, ValueId> names;
  const auto dtype_of = [](const std::string& name) {
    for (const DType type :
         {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kBool, DType::kBFloat16}) {
      if (name == dtype_short_name(type)) return type;
    }
    throw InternalError("unknown type " + name);
  };
  const auto find = [&](const std::string& name) {
    const auto it = names.find(strip(name));
    if (it == names.end()) throw InternalError("unknown value " + name);
    return it->second;
  };
  const auto argument = [&](const std::string& source) -> ArgValue {
    if (source == "None") return std::monostate{};
    if (source == "True" || source == "False") return source == "True";
    if (source.front() == '[') {
      std::vector<SymInt> ints;
      TensorList tensors;
      for (const std::string& part : split(source.substr(1, source.size() - 2), ',')) {
        const std::string entry = strip(part);
        if (names.count(entry)) {
          tensors.push_back(names.at(entry));
        } else {
          ints.push_back({std::stoll(entry), {}});
        }
      }
      if (!tensors.empty()) return tensors;
      return ints;
    }
    if (names.count(source)) return names.at(source);
    if (source.find('.') != std::string::npos) return std::stod(source);
    return static_cast<int64_t>(std::stoll(source));
  };
  std::istringstream lines(text);
  std::string line;
  graph.stacks.push_back({{"", 0, "test.Model"}});
  while (std::getline(lines, line)) {
    line = strip(line);
    if (line.empty() || line[0] == '#') continue;
    if (line.rfind("return ", 0) == 0) {
      for (const std::string& name : split(line.substr(7), ','))
        graph.outputs.push_back(find(name));
      continue;
    }
    Value value;
    const size_t colon = line.find(':');
    const size_t bracket = line.find('[');
    const size_t close = line.find(']', bracket);
    value.name = line.substr(0, colon);
    value.dtype = dtype_of(strip(line.substr(colon + 1, bracket - colon - 1)));
    if (close > bracket + 1) {
      for (const std::string& part : split(line.substr(bracket + 1, close - bracket - 1), ',')) {
        value.shape.push_back({std::stoll(part), ""});
      }
    }
    const std::string rest = strip(line.substr(close + 1));
    const ValueId id{static_cast<int>(graph.values.size())};
    if (rest[0] != '=') {
      const bool grad = rest.find("grad") != std::string::npos;
      if (rest.rfind("param", 0) == 0) {
        value.kind = ValueKind::kParameter;
        value.requires_grad = true;
      } else {
        value.kind = rest.rfind("buffer", 0) == 0 ? ValueKind::kBuffer : ValueKind::kInput;
        value.requires_grad = grad;
      }
      if (value.kind != ValueKind::kInput) value.fqn = value.name;
      if (value.kind == ValueKind::kInput) graph.inputs.push_back(id);
    } else {
      const size_t open = rest.find('(');
      Operator op;
      op.target = strip(rest.substr(1, open - 1));
      const size_t end = rest.rfind(')');
      std::string arguments = rest.substr(open + 1, end - open - 1);
      int depth = 0;
      for (char& c : arguments) {  // commas within brackets stay
        if (c == '[') ++depth;
        if (c == ']') --depth;
        if (c == ',' && depth == 0) c = ';';
      }
      for (const std::string& part : split(arguments, ';')) {
        const size_t equals = part.find('=');
        op.args.push_back(
            {strip(part.substr(0, equals)), false, argument(strip(part.substr(equals + 1)))});
      }
      const size_t in = rest.find(" in ", end);
      op.stack = 0;
      if (in != std::string::npos) {
        const std::vector<std::string> module = split(strip(rest.substr(in + 4)), ':');
        graph.stacks.push_back({{"", 0, "test.Model"}, {module[0], 0, "test." + module[1]}});
        op.stack = static_cast<int>(graph.stacks.size()) - 1;
      }
      op.outputs = {id};
      value.producer = OpId{static_cast<int>(graph.operators.size())};
      value.kind = ValueKind::kIntermediate;
      for (const ValueId input : op.tensor_inputs()) {
        value.requires_grad |= graph.value(input).requires_grad && is_differentiable(value.dtype);
      }
      graph.operators.push_back(std::move(op));
    }
    names[value.name] = id;
    graph.values.push_back(std::move(value));
  }
  return graph;
}

}  // namespace nnscaler
