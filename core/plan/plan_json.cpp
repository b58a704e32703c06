#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/plan/plan.h"
#include "core/version.h"

namespace nnscaler {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

std::string placement_text(Placement placement) { return placement.short_name(); }

/// "S0", or "R/P" where the gradient is placed otherwise.
std::string axis_text(const AxisLayout& axis) {
  std::string text = placement_text(axis.value);
  if (axis.gradient != axis.value) text += "/" + placement_text(axis.gradient);
  return text;
}

Json layout_json(const Layout& layout) {
  Json list = Json::array();
  for (const AxisLayout& axis : layout) list.push_back(axis_text(axis));
  return list;
}

Json steps_json(const Steps& steps, const Mesh& mesh) {
  Json list = Json::array();
  for (const Step& step : steps) {
    Json entry;
    entry["step"] = step_name(step.kind);
    entry["axis"] = mesh.axes[static_cast<size_t>(step.axis)].name;
    if (step.dim >= 0) entry["dim"] = step.dim;
    if (step.to_dim >= 0) entry["to_dim"] = step.to_dim;
    if (step.reduction != Reduction::kSum)
      entry["reduction"] = step.reduction == Reduction::kMax ? "max" : "min";
    list.push_back(std::move(entry));
  }
  return list;
}

Json choice_json(const Choice& choice, const BoundRule& rule) {
  Json list = Json::array();
  for (const AxisChoice& axis : choice) list.push_back(to_string(axis, rule));
  return list;
}

std::string source_text(const Graph& graph, const Operator& op) {
  const SourceLine* source = graph.source_of(op);
  return source ? fmt::format("{}:{}", source->file, source->line) : "";
}

/// Writes `"key": [` and one line an entry.
void write_list(std::string& text, const char* key, const std::vector<Json>& entries,
                bool last = false) {
  text += fmt::format("  \"{}\": [", key);
  for (size_t i = 0; i < entries.size(); ++i) {
    text += (i ? ",\n    " : "\n    ") +
            entries[i].dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  text += entries.empty() ? "]" : "\n  ]";
  text += last ? "\n" : ",\n";
}

void write_value(std::string& text, const char* key, const Json& value) {
  text += fmt::format("  \"{}\": {},\n", key,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

std::string to_json(const Plan& plan, const Prepared& prepared) {
  const Graph& graph = prepared.graph;
  const Mesh& mesh = plan.options.mesh;
  std::string text = "{\n";
  write_value(text, "format", kFormat);
  write_value(text, "nnscaler", kVersion);
  write_value(text, "archive", Json{{"path", plan.archive}, {"digest", plan.archive_digest}});
  write_value(text, "model", graph.module_class);
  write_value(text, "mesh", mesh.to_string());
  Json options;
  options["cluster"] = plan.options.cluster_name;
  options["device"] = plan.options.cluster.device.title;
  options["devices_per_node"] = plan.options.cluster.devices_per_node;
  options["optimizer"] = plan.options.optimizer;
  options["units"] = plan.options.units;
  options["microbatches"] = plan.options.microbatches;
  options["inference"] = plan.options.inference;
  options["recompute_modules"] = plan.options.recompute_modules;
  options["constraints"] = plan.options.constraints_path;
  options["memory_budget_bytes"] = plan.budget_bytes;
  options["given_partitions"] = !plan.options.forced.empty() || plan.options.others_replicate;
  write_value(text, "options", options);
  Json certificate;
  certificate["cost_ps"] = plan.cost;
  certificate["lower_bound_ps"] = plan.lower_bound;
  certificate["gap"] = plan.gap();
  certificate["method"] = plan.method;
  certificate["objective"] = plan.objective;
  certificate["core_nodes"] = plan.core_nodes;
  certificate["products"] = plan.num_products;
  certificate["distinct_products"] = plan.num_distinct_products;
  write_value(text, "certificate", certificate);
  write_value(text, "time_ps",
              Json{{"computation", plan.compute_ps},
                   {"redistribution", plan.communication_ps},
                   {"gradient_reduction", plan.gradient_ps}});
  write_value(text, "memory_bytes",
              Json{{"parameters", plan.memory.parameters},
                   {"gradients", plan.memory.gradients},
                   {"optimizer", plan.memory.optimizer},
                   {"buffers", plan.memory.buffers},
                   {"activations", plan.memory.activations},
                   {"transient", plan.memory.transient},
                   {"total", plan.memory.total()}});
  std::vector<Json> rows;
  for (const Constraint& constraint : plan.options.constraints) {
    rows.push_back(Json{{"where", constraint.where}, {"rule", constraint.text}});
  }
  write_list(text, "rules", rows);
  rows.clear();
  for (const std::string& warning : plan.warnings) rows.push_back(warning);
  write_list(text, "warnings", rows);
  rows.clear();
  for (size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    const BoundRule& rule = prepared.rules[i];
    Json row;
    row["op"] = i;
    row["output"] =
        op.outputs.empty() || !op.outputs[0].valid() ? "" : graph.value(op.outputs[0]).name;
    row["signature"] = rule.signature;
    row["module"] = graph.module_path(op);
    row["class"] = graph.stack_of(op).empty() ? "" : graph.stack_of(op).back().short_class();
    row["source"] = source_text(graph, op);
    row["annotation"] = rule.annotation;
    row["partition"] = choice_json(plan.choices[i], rule);
    row["ps"] = plan.operator_ps[i];
    if (plan.constraint_of[i] >= 0) row["rule"] = plan.constraint_of[i];
    if (prepared.constant[i]) row["constant"] = true;
    if (prepared.pinned[i]) row["in_place"] = true;
    if (prepared.recompute_group[i] >= 0) {
      row["recompute"] = prepared.recompute_group[i];
    } else if (graph.in_recompute_region(op)) {
      row["recompute"] = "checkpoint";
    }
    rows.push_back(std::move(row));
  }
  write_list(text, "operators", rows);
  rows.clear();
  for (const ValuePlan& entry : plan.values) {
    const Value& value = graph.value(ValueId{entry.value});
    Json row;
    row["value"] = value.name;
    if (!value.fqn.empty()) row["fqn"] = value.fqn;
    if (value.kind == ValueKind::kParameter) row["bytes"] = value.bytes();
    Json shape = Json::array();
    for (const Extent& extent : value.shape) {
      if (extent.is_symbolic()) {
        shape.push_back(extent.symbol);
      } else {
        shape.push_back(extent.value);
      }
    }
    row["shape"] = shape;
    row["dtype"] = dtype_name(value.dtype);
    row["layout"] = layout_json(entry.layout);
    rows.push_back(std::move(row));
  }
  write_list(text, "values", rows);
  rows.clear();
  for (const PlannedRedistribution& entry : plan.redistributions) {
    const Value& value = graph.value(ValueId{entry.value});
    Json row;
    row["value"] = value.name;
    if (!value.fqn.empty()) row["fqn"] = value.fqn;
    if (entry.reader >= 0) {
      row["reader"] = entry.reader;
      row["operand"] = entry.operand;
    } else {
      row["reader"] = entry.reader == PlannedRedistribution::kSharedCopy ? "shared" : "output";
    }
    row["from"] = layout_json(entry.from);
    row["to"] = layout_json(entry.to);
    row["forward"] = steps_json(entry.forward, mesh);
    row["backward"] = steps_json(entry.backward, mesh);
    row["ps"] = entry.forward_ps + entry.backward_ps;
    row["forward_bytes"] = entry.forward_bytes;
    row["backward_bytes"] = entry.backward_bytes;
    rows.push_back(std::move(row));
  }
  write_list(text, "redistributions", rows);
  rows.clear();
  for (const GradientReduction& entry : plan.reductions) {
    Json row;
    row["parameter"] = graph.value(ValueId{entry.value}).fqn;
    Json axes = Json::array();
    for (const int axis : entry.axes) axes.push_back(mesh.axes[static_cast<size_t>(axis)].name);
    row["axes"] = axes;
    row["units"] = plan.options.units;
    row["bytes"] = entry.bytes;
    row["sent_bytes"] = entry.sent_bytes;
    row["ps"] = entry.ps;
    rows.push_back(std::move(row));
  }
  write_list(text, "reductions", rows, true);
  return text + "}\n";
}

namespace {

/// Typed access to a JSON document, with the place in every message.
class Reader {
 public:
  Reader(const Json& json, std::string file, std::string place)
      : json_(json), file_(std::move(file)), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}{}; make the plan again with nnscaler plan", file_,
                                 place_.empty() ? "" : place_ + ": ", what));
  }

  Reader operator[](const char* key) const {
    if (!json_.is_object()) fail("an object is expected");
    const auto it = json_.find(key);
    if (it == json_.end()) fail(fmt::format("\"{}\" is missing", key));
    return Reader(*it, file_, place_.empty() ? key : place_ + "." + key);
  }
  bool has(const char* key) const { return json_.is_object() && json_.contains(key); }

  size_t size() const {
    if (!json_.is_array()) fail("a list is expected");
    return json_.size();
  }
  Reader at(size_t i) const { return Reader(json_[i], file_, fmt::format("{}[{}]", place_, i)); }

  std::string text() const {
    if (!json_.is_string()) fail("a text is expected");
    return json_.get<std::string>();
  }
  /// A count or an amount: six of them add up without overflow.
  int64_t integer() const {
    constexpr int64_t kMax = int64_t{1} << 60;
    if (!json_.is_number_integer() || (!json_.is_number_unsigned() && json_.get<int64_t>() < 0) ||
        json_.get<uint64_t>() > kMax) {
      fail(fmt::format("an integer from 0 to {} is expected", kMax));
    }
    return json_.get<int64_t>();
  }
  bool boolean() const {
    if (!json_.is_boolean()) fail("true or false is expected");
    return json_.get<bool>();
  }
  bool is_text() const { return json_.is_string(); }
  const std::string& file() const { return file_; }

 private:
  const Json& json_;
  std::string file_;
  std::string place_;
};

Placement parse_placement(const std::string& text, const Value& value, const Reader& reader) {
  if (text == "R") return Placement::replicate();
  if (text == "P") return Placement::partial();
  if (text == "Pmax") return Placement::partial(Reduction::kMax);
  if (text == "Pmin") return Placement::partial(Reduction::kMin);
  int dim = -1;
  if (text.size() > 1 && text[0] == 'S') {
    const auto [end, status] = std::from_chars(text.data() + 1, text.data() + text.size(), dim);
    if (status == std::errc() && end == text.data() + text.size() && dim >= 0 &&
        dim < static_cast<int>(value.shape.size())) {
      return Placement::shard(dim);
    }
  }
  reader.fail(fmt::format("\"{}\" is no placement of {}, which has {} dims", text, value.name,
                          value.shape.size()));
}

Layout parse_layout(const Reader& reader, const Value& value, const Mesh& mesh) {
  if (reader.size() != mesh.axes.size())
    reader.fail(fmt::format("one entry for each of {} mesh axes is expected", mesh.axes.size()));
  Layout layout;
  for (size_t i = 0; i < reader.size(); ++i) {
    const Reader entry = reader.at(i);
    const std::vector<std::string> parts = split(entry.text(), '/');
    if (parts.size() > 2) entry.fail(fmt::format("\"{}\" is no layout", entry.text()));
    AxisLayout axis;
    axis.value = parse_placement(parts[0], value, entry);
    axis.gradient = parse_placement(parts.back(), value, entry);
    layout.push_back(axis);
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!layout[i].value.is_shard()) continue;
    int64_t parts = 1;
    for (size_t k = 0; k < layout.size(); ++k) {
      if (layout[k].value == layout[i].value) parts *= mesh.axes[k].size;
    }
    const Extent& extent = value.shape[static_cast<size_t>(layout[i].value.dim())];
    if (extent.value % parts != 0) {
      reader.fail(fmt::format("dim {} of {} has length {}, which {} parts don't share evenly",
                              layout[i].value.dim(), value.name, extent.value, parts));
    }
  }
  return layout;
}

Steps parse_steps(const Reader& reader, const Value& value, const Mesh& mesh,
                  std::vector<Placement> at, const std::vector<Placement>& to) {
  Steps steps;
  for (size_t i = 0; i < reader.size(); ++i) {
    const Reader entry = reader.at(i);
    Step step;
    const std::string name = entry["step"].text();
    bool known = false;
    for (const StepKind kind :
         {StepKind::kSlice, StepKind::kAllGather, StepKind::kAllToAll, StepKind::kAllReduce,
          StepKind::kReduceScatter, StepKind::kKeepFirst, StepKind::kPad}) {
      if (name == step_name(kind)) {
        step.kind = kind;
        known = true;
      }
    }
    if (!known) entry.fail(fmt::format("\"{}\" is no step of a redistribution", name));
    const std::string axis = entry["axis"].text();
    step.axis = -1;
    for (size_t a = 0; a < mesh.axes.size(); ++a) {
      if (mesh.axes[a].name == axis) step.axis = static_cast<int>(a);
    }
    if (step.axis < 0)
      entry.fail(fmt::format("the mesh {} has no axis \"{}\"", mesh.to_string(), axis));
    const auto dim = [&](const char* key) {
      const int64_t index = entry.has(key) ? entry[key].integer() : -1;
      if (index >= static_cast<int64_t>(value.shape.size())) {
        entry.fail(fmt::format("{} has no dim {}", value.name, index));
      }
      return static_cast<int>(index);
    };
    step.dim = dim("dim");
    step.to_dim = dim("to_dim");
    if (entry.has("reduction")) {
      const std::string reduction = entry["reduction"].text();
      if (reduction != "max" && reduction != "min")
        entry.fail(fmt::format("\"{}\" is no reduction", reduction));
      step.reduction = reduction == "max" ? Reduction::kMax : Reduction::kMin;
    }
    // Play the step: it must start from what the steps before left.
    Placement& now = at[static_cast<size_t>(step.axis)];
    const bool needs_dim = step.kind != StepKind::kAllReduce && step.kind != StepKind::kKeepFirst;
    if (needs_dim && step.dim < 0) entry.fail("\"dim\" is missing");
    if (step.kind == StepKind::kAllToAll && step.to_dim < 0) entry.fail("\"to_dim\" is missing");
    Placement needed = Placement::replicate();
    Placement next = Placement::replicate();
    switch (step.kind) {
      case StepKind::kSlice:
        next = Placement::shard(step.dim);
        break;
      case StepKind::kAllGather:
        needed = Placement::shard(step.dim);
        break;
      case StepKind::kAllToAll:
        needed = Placement::shard(step.dim);
        next = Placement::shard(step.to_dim);
        break;
      case StepKind::kAllReduce:
        needed = Placement::partial(step.reduction);
        break;
      case StepKind::kReduceScatter:
        needed = Placement::partial(step.reduction);
        next = Placement::shard(step.dim);
        break;
      case StepKind::kKeepFirst:
        next = Placement::partial();
        break;
      case StepKind::kPad:
        needed = Placement::shard(step.dim);
        next = Placement::partial();
        break;
    }
    if (now != needed) {
      entry.fail(fmt::format("{} of {} over {} starts from {}, not {}", name, value.name, axis,
                             needed.to_string(), now.to_string()));
    }
    now = next;
    steps.push_back(step);
  }
  if (at != to) reader.fail(fmt::format("the steps do not lead {} to its layout", value.name));
  return steps;
}

Json parse_json(const std::string& text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: is not JSON: {}", file, parser_reason(error.what())));
  }
}

void check_format(const Reader& root) {
  if (root["format"].integer() != kFormat) {
    root["format"].fail(fmt::format("format {} is not known to nnscaler {}, which reads format {}",
                                    root["format"].integer(), kVersion, kFormat));
  }
}

std::vector<Placement> placements(const Layout& layout, bool gradient) {
  std::vector<Placement> result;
  for (const AxisLayout& axis : layout) result.push_back(gradient ? axis.gradient : axis.value);
  return result;
}

}  // namespace

std::string recompute_modules_of(const std::string& text, const std::string& file) {
  const Json json = parse_json(text, file);
  const Reader root(json, file, "");
  check_format(root);
  return root["options"]["recompute_modules"].text();
}

Plan plan_from_json(const std::string& text, const std::string& file, const Prepared& prepared) {
  const Json json = parse_json(text, file);
  const Reader root(json, file, "");
  const Graph& graph = prepared.graph;
  check_format(root);
  Plan plan;
  plan.archive = root["archive"]["path"].text();
  plan.archive_digest = root["archive"]["digest"].text();
  if (plan.archive_digest != graph.digest) {
    throw InputError(fmt::format(
        "{}: was made for another archive (digest {}, this one has {}); plan this archive, or "
        "give the one that the plan was made for ({})",
        file, plan.archive_digest, graph.digest, plan.archive));
  }
  PlanOptions& options = plan.options;
  try {
    options.mesh = parse_mesh(root["mesh"].text());
  } catch (const InputError& error) {
    root["mesh"].fail(error.what());
  }
  const Reader given = root["options"];
  options.cluster_name = given["cluster"].text();
  options.optimizer = given["optimizer"].text();
  options.units = static_cast<int>(std::min<int64_t>(given["units"].integer(), 1 << 30));
  options.microbatches =
      static_cast<int>(std::min<int64_t>(given["microbatches"].integer(), 1 << 30));
  if (options.units < 1 || options.microbatches < 1)
    given.fail("units and microbatches must be at least 1");
  options.inference = given["inference"].boolean();
  options.recompute_modules = given["recompute_modules"].text();
  options.constraints_path = given["constraints"].text();
  plan.budget_bytes = given["memory_budget_bytes"].integer();
  options.memory_bytes = plan.budget_bytes;
  plan.cost = root["certificate"]["cost_ps"].integer();
  plan.lower_bound = root["certificate"]["lower_bound_ps"].integer();
  plan.method = root["certificate"]["method"].text();
  plan.objective = root["certificate"]["objective"].text();
  const Reader time = root["time_ps"];
  plan.compute_ps = time["computation"].integer();
  plan.communication_ps = time["redistribution"].integer();
  plan.gradient_ps = time["gradient_reduction"].integer();
  const Reader memory = root["memory_bytes"];
  plan.memory = {memory["parameters"].integer(),  memory["gradients"].integer(),
                 memory["optimizer"].integer(),   memory["buffers"].integer(),
                 memory["activations"].integer(), memory["transient"].integer()};

  const Reader operators = root["operators"];
  if (operators.size() != graph.operators.size()) {
    operators.fail(fmt::format("the plan has {} operators and the archive {}", operators.size(),
                               graph.operators.size()));
  }
  for (size_t i = 0; i < operators.size(); ++i) {
    const Reader row = operators.at(i);
    const BoundRule& rule = prepared.rules[i];
    if (row["op"].integer() != static_cast<int64_t>(i) ||
        row["signature"].text() != rule.signature) {
      row.fail(fmt::format("operator {} is {} in the archive", i, rule.signature));
    }
    const Reader partition = row["partition"];
    if (partition.size() != options.mesh.axes.size()) {
      partition.fail(
          fmt::format("one entry for each of {} mesh axes is expected", options.mesh.axes.size()));
    }
    Choice choice;
    for (size_t axis = 0; axis < partition.size(); ++axis) {
      const std::string part = partition.at(axis).text();
      const std::optional<AxisChoice> parsed = parse_choice(part, rule);
      if (!parsed)
        partition.fail(fmt::format("\"{}\" names no partition of \"{}\"", part, rule.annotation));
      choice.push_back(*parsed);
    }
    const std::vector<Choice> all = all_choices(rule, options.mesh, true);
    if (std::find(all.begin(), all.end(), choice) == all.end()) {
      partition.fail(fmt::format("is not a partition that \"{}\" allows on the mesh {}",
                                 rule.annotation, options.mesh.to_string()));
    }
    if (prepared.pinned[i] && choice != Choice(choice.size())) {
      partition.fail("takes part in an in-place write, so it is replicated");
    }
    plan.choices.push_back(std::move(choice));
    plan.operator_ps.push_back(row["ps"].integer());
    plan.constraint_of.push_back(-1);
    if (row.has("rule")) {
      const int64_t rule_index = row["rule"].integer();
      if (rule_index >= static_cast<int64_t>(root["rules"].size()))
        row["rule"].fail("there is no such rule");
      plan.constraint_of.back() = static_cast<int>(rule_index);
    }
  }
  std::map<std::string, int> by_name;
  for (size_t v = 0; v < graph.values.size(); ++v)
    by_name.emplace(graph.values[v].name, static_cast<int>(v));
  const auto value_of = [&](const Reader& row) {
    const auto it = by_name.find(row["value"].text());
    if (it == by_name.end())
      row.fail(fmt::format("the archive has no value \"{}\"", row["value"].text()));
    return it->second;
  };
  const Reader values = root["values"];
  for (size_t i = 0; i < values.size(); ++i) {
    const int value = value_of(values.at(i));
    plan.values.push_back(
        {value, parse_layout(values.at(i)["layout"], graph.value(ValueId{value}), options.mesh)});
  }
  const Reader moves = root["redistributions"];
  for (size_t i = 0; i < moves.size(); ++i) {
    const Reader row = moves.at(i);
    PlannedRedistribution entry;
    entry.value = value_of(row);
    const Value& value = graph.value(ValueId{entry.value});
    if (row["reader"].is_text()) {
      const std::string reader = row["reader"].text();
      if (reader != "shared" && reader != "output")
        row.fail(fmt::format("\"{}\" is no reader", reader));
      entry.reader = reader == "shared" ? PlannedRedistribution::kSharedCopy
                                        : PlannedRedistribution::kModelOutput;
    } else {
      const int64_t reader = row["reader"].integer();
      if (reader < 0 || reader >= static_cast<int64_t>(graph.operators.size()))
        row.fail("there is no such reader");
      entry.reader = static_cast<int>(reader);
      const int64_t operand = row["operand"].integer();
      const std::vector<ValueId> inputs =
          graph.operators[static_cast<size_t>(reader)].tensor_inputs();
      if (operand < 0 || operand >= static_cast<int64_t>(inputs.size()) ||
          inputs[static_cast<size_t>(operand)].index != entry.value) {
        row.fail(fmt::format("operand {} of operator {} is not {}", operand, reader, value.name));
      }
      entry.operand = static_cast<int>(operand);
    }
    entry.from = parse_layout(row["from"], value, options.mesh);
    entry.to = parse_layout(row["to"], value, options.mesh);
    entry.forward = parse_steps(row["forward"], value, options.mesh, placements(entry.from, false),
                                placements(entry.to, false));
    if (value.requires_grad && !options.inference) {
      entry.backward = parse_steps(row["backward"], value, options.mesh, placements(entry.to, true),
                                   placements(entry.from, true));
    }
    entry.forward_ps = row["ps"].integer();
    entry.forward_bytes = row["forward_bytes"].integer();
    entry.backward_bytes = row["backward_bytes"].integer();
    plan.redistributions.push_back(std::move(entry));
  }
  return plan;
}

}  // namespace nnscaler
