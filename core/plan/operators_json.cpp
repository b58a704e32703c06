#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/plan/plan.h"

namespace nnscaler {

namespace {

using Json = nlohmann::ordered_json;

Json value_json(const Graph& graph, ValueId id) {
  if (!id.valid()) return nullptr;
  const Value& value = graph.value(id);
  Json json;
  json["name"] = value.name;
  static constexpr const char* kKinds[] = {"parameter", "buffer", "constant", "input",
                                           "intermediate"};
  json["kind"] = value.is_symbol ? "symbol" : kKinds[static_cast<size_t>(value.kind)];
  if (!value.fqn.empty()) json["fqn"] = value.fqn;
  if (value.is_symbol) return json;
  json["dtype"] = dtype_name(value.dtype);
  json["shape"] = Json::array();
  for (size_t d = 0; d < value.shape.size(); ++d) {
    json["shape"].push_back(value.shape[d].value);
    if (value.shape[d].is_symbolic()) json["dynamic"].push_back(d);
  }
  json["requires_grad"] = value.requires_grad;
  return json;
}

struct Literal {
  const Graph& graph;
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(ValueId) const { return nullptr; }
  Json operator()(const TensorList&) const { return nullptr; }
  Json operator()(int64_t value) const { return value; }
  Json operator()(double value) const {
    return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
  }
  Json operator()(bool value) const { return value; }
  Json operator()(const std::string& value) const { return value; }
  Json operator()(const SymInt& value) const {
    return value.symbol.valid() ? Json(graph.value(value.symbol).name) : Json(value.value);
  }
  Json operator()(const std::vector<SymInt>& values) const {
    Json list = Json::array();
    for (const SymInt& value : values) list.push_back((*this)(value));
    return list;
  }
  Json operator()(const std::vector<double>& values) const { return values; }
  Json operator()(const std::vector<bool>& values) const { return values; }
  Json operator()(const std::vector<std::string>& values) const { return values; }
  Json operator()(DType value) const { return fmt::format("torch.{}", dtype_name(value)); }
  template <typename T>
  Json operator()(const T&) const {
    return nullptr;
  }
};

}  // namespace

std::string operators_json(const Prepared& prepared) {
  const Graph& graph = prepared.graph;
  Json operators = Json::array();
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    const BoundRule& rule = prepared.rules[i];
    Json json;
    json["op"] = i;
    json["name"] =
        op.outputs.empty() || !op.outputs[0].valid() ? op.target : graph.value(op.outputs[0]).name;
    json["target"] = op.target;
    json["signature"] = rule.signature;
    json["module"] = graph.module_path(op);
    json["stack"] = Json::array();
    for (const Frame& frame : graph.stack_of(op))
      json["stack"].push_back({frame.path, frame.class_name});
    if (const SourceLine* source = graph.source_of(op)) {
      json["file"] = source->file;
      json["line"] = source->line;
      json["text"] = source->text;
    }
    json["annotation"] = rule.annotation;
    json["names"] = Json::array();
    for (const BoundName& name : rule.names) {
      Json entry{{"name", name.name}, {"extent", name.extent}, {"splittable", name.splittable}};
      if (!name.splittable) entry["why_not"] = name.why_not;
      json["names"].push_back(std::move(entry));
    }
    json["user_inputs"] = rule.user_inputs;  // [input][dim] -> indices of names, outermost first
    json["pinned"] = static_cast<bool>(prepared.pinned[i]);
    json["constant"] = static_cast<bool>(prepared.constant[i]);
    json["inputs"] = Json::array();
    for (const ValueId id : op.tensor_inputs()) json["inputs"].push_back(value_json(graph, id));
    json["outputs"] = Json::array();
    for (const ValueId id : op.outputs) json["outputs"].push_back(value_json(graph, id));
    json["kwargs"] = Json::object();
    for (const Argument& argument : op.args) {
      if (!std::holds_alternative<ValueId>(argument.value) &&
          !std::holds_alternative<TensorList>(argument.value)) {
        json["kwargs"][argument.name] = std::visit(Literal{graph}, argument.value);
      }
    }
    operators.push_back(std::move(json));
  }
  Json root;
  root["model"] = graph.module_class;
  root["digest"] = graph.digest;
  root["training"] = graph.training;
  root["eval"] = {{"mode", graph.eval_mode}, {"reason", graph.eval_reason}};
  root["outputs"] = Json::array();
  for (const ValueId id : graph.outputs) root["outputs"].push_back(value_json(graph, id));
  root["operators"] = std::move(operators);
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nnscaler
