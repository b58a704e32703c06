#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/cli.h"
#include "core/graph/archive.h"
#include "core/ops/rule.h"
#include "core/plan/constraints.h"

namespace nnscaler {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string archive, module;
  bool json = false, unfold = false;
};

/// What the operator table says of each operator.
struct Knowledge {
  std::vector<std::vector<std::string>> signatures;
  std::vector<std::string> annotations;  ///< "" where there is no rule.
  std::vector<std::string> mistakes;     ///< Of registered annotations; "" mostly.
};

Knowledge know(const Graph& graph) {
  Knowledge knowledge;
  for (const Operator& op : graph.operators) {
    knowledge.signatures.push_back(signatures_of(graph, op));
    std::string annotation, mistake;
    try {
      annotation = bind_rule(graph, op).annotation;
    } catch (const InputError& error) {
      // Whoever wrote an annotation that does not fit looks here to see the shapes.
      mistake = error.what();
    }
    knowledge.annotations.push_back(std::move(annotation));
    knowledge.mistakes.push_back(std::move(mistake));
  }
  return knowledge;
}

const char* kind_name(ValueKind kind) {
  static constexpr const char* kNames[] = {"parameter", "buffer", "literal", "input",
                                           "intermediate"};
  return kNames[static_cast<size_t>(kind)];
}

Json extents(const std::vector<Extent>& shape) {
  Json list = Json::array();
  for (const Extent& extent : shape) {
    if (extent.is_symbolic()) {
      list.push_back(extent.symbol);
    } else {
      list.push_back(extent.value);
    }
  }
  return list;
}

Json describe(const Value& value) {
  Json json{{"name", value.name}, {"kind", kind_name(value.kind)}};
  if (!value.fqn.empty()) json["fqn"] = value.fqn;
  json["dtype"] = dtype_name(value.dtype);
  if (value.is_symbol) {
    json["symbol"] = value.symbol;
  } else {
    json["shape"] = extents(value.shape);
  }
  json["requires_grad"] = value.requires_grad;
  return json;
}

Json describe(const Graph& graph, const Tree& tree, const std::vector<ValueId>& leaves) {
  if (tree.kind == Tree::Kind::kLiteral) return {{"literal", tree.literal}};
  if (tree.kind == Tree::Kind::kLeaf) {
    return describe(graph.value(leaves[static_cast<size_t>(tree.leaf)]));
  }
  Json children = Json::array();
  for (size_t i = 0; i < tree.children.size(); ++i) {
    Json child = describe(graph, tree.children[i], leaves);
    if (tree.keys.empty()) {
      children.push_back(std::move(child));
    } else {
      children.push_back(Json::array({tree.keys[i], std::move(child)}));
    }
  }
  static constexpr const char* kNames[] = {"", "", "tuple", "list", "dict", "fields"};
  Json json{{kNames[static_cast<size_t>(tree.kind)], std::move(children)}};
  if (!tree.type.empty()) json["type"] = tree.type;
  return json;
}

Json describe(const Region& region) {
  switch (region.kind) {
    case RegionKind::kGradMode:
      return {{"kind", region.enabled ? "enable_grad" : "no_grad"}};
    case RegionKind::kAutocast:
      return {{"kind", "autocast"},
              {"enabled", region.enabled},
              {"device", region.device_type},
              {"dtype", dtype_name(region.dtype)}};
    default:
      return {{"kind", "recompute"}, {"origin", region.origin}};
  }
}

Json describe(const Graph& graph, const Operator& op, size_t index, const Knowledge& knowledge) {
  Json json{{"index", index}};
  json["signature"] =
      knowledge.signatures[index].empty() ? op.target : knowledge.signatures[index][0];
  json["signatures"] = knowledge.signatures[index];
  json["annotation"] = knowledge.annotations[index];
  if (!knowledge.mistakes[index].empty()) json["mistake"] = knowledge.mistakes[index];
  json["target"] = op.target;
  json["module"] = graph.module_path(op);
  json["classes"] = Json::array();
  for (const Frame& frame : graph.stack_of(op)) json["classes"].push_back(frame.class_name);
  if (const SourceLine* source = graph.source_of(op)) {
    json["file"] = source->file;
    json["line"] = source->line;
    json["source"] = source->text;
  }
  json["inputs"] = Json::array();
  for (const ValueId id : op.tensor_inputs()) json["inputs"].push_back(describe(graph.value(id)));
  json["arguments"] = Json::array();
  for (const Argument& argument : op.args) {
    json["arguments"].push_back({{"name", argument.name},
                                 {"keyword", argument.keyword},
                                 {"value", print_argument(graph, argument)}});
  }
  json["outputs"] = Json::array();
  for (const ValueId id : op.outputs) {
    json["outputs"].push_back(id.valid() ? describe(graph.value(id)) : Json());
  }
  json["regions"] = Json::array();
  for (int r = op.region; r >= 0; r = graph.regions[static_cast<size_t>(r)].parent) {
    json["regions"].push_back(describe(graph.regions[static_cast<size_t>(r)]));
  }
  json["training_only"] = op.training_only;
  return json;
}

Json describe(const Graph& graph, const Knowledge& knowledge,
              const std::function<bool(const Operator&)>& keep) {
  Json json{{"model", graph.module_class},
            {"digest", graph.digest},
            {"torch", graph.torch_version},
            {"training", graph.training},
            {"eval", {{"mode", graph.eval_mode}, {"reason", graph.eval_reason}}},
            {"warnings", graph.warnings}};
  json["forward"] = Json::array();
  for (const ForwardParameter& parameter : graph.forward) {
    Json item{{"name", parameter.name}, {"kind", parameter.kind}};
    if (parameter.fallback) item["default"] = *parameter.fallback;
    if (parameter.tree) item["sample"] = describe(graph, *parameter.tree, graph.inputs);
    json["forward"].push_back(std::move(item));
  }
  json["output"] = describe(graph, graph.output, graph.outputs);
  json["symbols"] = Json::object();
  for (const auto& [name, info] : graph.symbols) {
    Json item{{"min", info.min}, {"max", info.max ? Json(*info.max) : Json()}};
    if (!info.input.empty()) item["input"] = info.input;
    if (info.dim >= 0) item["dim"] = info.dim;
    json["symbols"][name] = std::move(item);
  }
  json["ties"] = graph.ties;
  json["leaves"] = Json::array();
  for (const LeafFunction& leaf : graph.leaves) {
    json["leaves"].push_back({{"signature", leaf.signature},
                              {"annotation", leaf.annotation},
                              {"autograd_function", leaf.autograd_function}});
  }
  json["anchors"] = Json::array();
  for (const Anchor& anchor : graph.anchors) {
    json["anchors"].push_back({{"name", anchor.name}, {"before", anchor.position}});
  }
  json["values"] = Json::array();
  for (const Value& value : graph.values) {
    if (value.producer.valid()) continue;
    Json item = describe(value);
    item["bytes"] = value.bytes();
    if (value.kind == ValueKind::kBuffer) item["persistent"] = value.persistent;
    json["values"].push_back(std::move(item));
  }
  json["operators"] = Json::array();
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    if (keep && !keep(graph.operators[i])) continue;
    json["operators"].push_back(describe(graph, graph.operators[i], i, knowledge));
  }
  return json;
}

int run(const Options& given) {
  const Graph graph = read_archive(given.archive);
  const Knowledge knowledge = know(graph);
  const auto index = [&](const Operator& op) {
    return static_cast<size_t>(&op - graph.operators.data());
  };
  PrintOptions options;
  options.fold = !given.unfold;
  if (!given.module.empty()) {
    options.keep = [&](const Operator& op) {
      return match_module(given.module, graph.stack_of(op)).matches;
    };
    if (std::ranges::none_of(graph.operators, options.keep)) {
      std::set<std::string> paths;
      for (const ModuleStack& stack : graph.stacks) {
        for (const Frame& frame : stack) paths.insert(frame.path);
      }
      throw InputError(fmt::format("--module {}: no operator of {} is in such a module{}",
                                   given.module, given.archive,
                                   did_you_mean(given.module, {paths.begin(), paths.end()})));
    }
  }
  if (given.json) {
    fmt::print("{}\n", describe(graph, knowledge, options.keep).dump(1));
    return 0;
  }
  options.name = [&](const Operator& op) {
    const std::vector<std::string>& names = knowledge.signatures[index(op)];
    return names.empty() ? op.target : names[0];
  };
  options.note = [&](const Operator& op) {
    const std::string& mistake = knowledge.mistakes[index(op)];
    return mistake.empty() ? knowledge.annotations[index(op)] : mistake;
  };
  fmt::print("{}", print_graph(graph, options));
  return 0;
}

}  // namespace

std::function<int()> add_inspect(CLI::App& app) {
  auto given = std::make_shared<Options>();
  app.add_option("archive", given->archive, "model.pt2, from nnscaler export")->required();
  app.add_option("--module", given->module,
                 "only operators in these modules: a path or classes, * for one component "
                 "(layers.0.mlp, DecoderLayer.Attention)");
  app.add_flag("--unfold", given->unfold, "show every layer, equal ones too");
  app.add_flag("--json", given->json, "one JSON object on standard output");
  return [given] { return run(*given); };
}

}  // namespace nnscaler
