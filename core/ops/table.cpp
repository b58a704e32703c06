#include "core/ops/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/ops/spelling.h"

namespace nnscaler {

namespace {

/// "a{b,c}{,d}" -> ab, abd, ac, acd
void expand_braces(const std::string& text, std::vector<std::string>& into) {
  const size_t open = text.find('{');
  if (open == std::string::npos) {
    into.push_back(text);
    return;
  }
  const size_t close = text.find('}', open);
  for (const std::string& choice : split(text.substr(open + 1, close - open - 1), ',')) {
    expand_braces(text.substr(0, open) + choice + text.substr(close + 1), into);
  }
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> expanded;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) expand_braces(word, expanded);
  }
  return expanded;
}

/// "add_.Tensor" -> "add", "special_erf" -> "erf"; "__and__.Tensor" stays.
std::string own_name(const std::string& target) {
  std::string name = target.substr(0, target.find('.'));
  for (const std::string_view prefix : {"special_", "linalg_"}) {
    if (name.starts_with(prefix)) name = name.substr(prefix.size());
  }
  if (name.ends_with('_') && !name.starts_with('_')) name.pop_back();
  return name;
}

std::string full_signature(std::string text, const std::string& name) {
  if (const size_t star = text.find('*'); star != std::string::npos) text.replace(star, 1, name);
  for (const auto& [prefix, full] :
       {std::pair("F.", "torch.nn.functional."), std::pair("T.", "torch.Tensor."),
        std::pair("op.", "_operator.")}) {
    if (text.starts_with(prefix)) return full + text.substr(std::string_view(prefix).size());
  }
  return text;
}

void add_entries(const char* family, const Entries& entries, std::vector<TableTarget>& table) {
  for (const Entry& entry : entries) {
    const std::vector<std::string> targets = words(entry.targets);
    const auto has_in_place = [&](const std::string& name) {
      return std::ranges::any_of(targets, [&](const std::string& target) {
        return target.starts_with(name + "_") && own_name(target) == name;
      });
    };
    for (const std::string& target : targets) {
      TableTarget row;
      row.entry = &entry;
      row.family = family;
      const std::string name = own_name(target);
      if (target.starts_with(':')) {
        row.target = target.substr(1);
      } else if (target != "-") {
        row.target = "aten." + target + (target.find('.') == std::string::npos ? ".default" : "");
      }
      for (const std::string& group : split(entry.signatures, '|')) {
        std::vector<std::string> signatures;
        for (const std::string& word : words(group)) {
          if (word.ends_with("*_") && !has_in_place(name)) continue;
          signatures.push_back(full_signature(word, name));
        }
        if (!signatures.empty()) row.signatures.push_back(std::move(signatures));
      }
      if (!entry.rule.bind) row.annotation = parse_annotation(entry.rule.text);
      table.push_back(std::move(row));
    }
  }
}

std::vector<TableTarget> make_table() {
  std::vector<TableTarget> table;
  add_entries("pointwise", pointwise_entries(), table);
  add_entries("cast", cast_entries(), table);
  add_entries("product", product_entries(), table);
  add_entries("reduction", reduction_entries(), table);
  add_entries("normalization", normalization_entries(), table);
  add_entries("loss", loss_entries(), table);
  add_entries("attention", attention_entries(), table);
  add_entries("shape", shape_entries(), table);
  add_entries("indexing", indexing_entries(), table);
  add_entries("convolution", convolution_entries(), table);
  add_entries("creation", creation_entries(), table);
  add_entries("size", size_entries(), table);
  add_entries("leaf", leaf_entries(), table);
  return table;
}

struct Index {
  std::unordered_map<std::string_view, const TableTarget*> targets, leaves;
};

const Index& index() {
  static const Index index = [] {
    Index made;
    for (const TableTarget& row : table()) {
      if (row.target.empty()) {
        for (const auto& group : row.signatures) {
          for (const std::string& signature : group) made.leaves.emplace(signature, &row);
        }
      } else {
        check(made.targets.emplace(row.target, &row).second, row.target + " has two entries");
      }
    }
    return made;
  }();
  return index;
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

/// The user's names of one target; where several functions end there, those of the one called.
const std::vector<std::string>& called(const TableTarget& row, const Operator& op) {
  std::string_view wanted = last_part(op.torch_fn);
  if (wanted.size() > 4 && wanted.starts_with("__") && wanted.ends_with("__"))
    wanted = wanted.substr(2, wanted.size() - 4);  // __getitem__
  for (const std::vector<std::string>& group : row.signatures) {
    for (const std::string& signature : group) {
      if (last_part(signature) == wanted) return group;
    }
  }
  return row.signatures.front();
}

}  // namespace

const std::vector<TableTarget>& table() {
  static const std::vector<TableTarget> rows = make_table();
  return rows;
}

const TableTarget* find_target(std::string_view target) {
  const auto found = index().targets.find(target);
  return found == index().targets.end() ? nullptr : found->second;
}

const TableTarget* find_leaf(std::string_view signature) {
  const auto found = index().leaves.find(signature);
  return found == index().leaves.end() ? nullptr : found->second;
}

namespace {

/// The arguments that an annotation's inputs stand for: leading ones, in order. Tensor inputs, or
/// -1 for what is no tensor.
std::vector<int> annotated_arguments(Binder& binder, const Annotation& annotation,
                                     const std::string& what) {
  const auto fail = [&](const std::string& why) {
    return InputError(fmt::format("{}: annotation \"{}\" does not fit the call: {}", what,
                                  to_string(annotation), why));
  };
  std::vector<int> annotated;
  std::vector<bool> covered(static_cast<size_t>(binder.num_inputs()), false);
  auto argument = binder.op.args.begin();
  for (size_t i = 0; i < annotation.inputs.size(); ++i, ++argument) {
    const bool opaque = annotation.inputs[i].opaque;
    const auto is_tensor = [](const Argument& each) {
      return std::holds_alternative<ValueId>(each.value);
    };
    if (argument == binder.op.args.end()) {
      for (size_t rest = i; rest < annotation.inputs.size(); ++rest) {
        if (!annotation.inputs[rest].opaque)
          throw fail(
              fmt::format("it has {} inputs and the call {} arguments; give the function an "
                          "annotation for each way it is called",
                          annotation.inputs.size(), binder.op.args.size()));
      }
      annotated.resize(annotation.inputs.size(), -1);
      break;
    }
    const auto [first, count] = binder.inputs_of(argument->name);
    if (!opaque && !is_tensor(*argument)) {
      throw fail(fmt::format("input {} ({}) is no tensor; write ? for it", i, argument->name));
    }
    for (int t = first; t < first + count; ++t) {
      covered[static_cast<size_t>(t)] = true;
      binder.opaque_in[static_cast<size_t>(t)] = opaque;
    }
    annotated.push_back(count == 1 ? first : -1);
    if (opaque && annotation.inputs[i].no_gradient_sum_any) {
      for (int t = first; t < first + count; ++t) binder.no_gradient(t);
    }
  }
  for (const Argument& each : binder.op.args) {
    const auto [first, count] = binder.inputs_of(each.name);
    for (int t = first; t < first + count; ++t) {
      if (!covered[static_cast<size_t>(t)])
        throw fail(
            fmt::format("argument {} is a tensor without a place in it; add one, or ? where it "
                        "is never split",
                        each.name));
    }
  }
  if (binder.num_outputs() != static_cast<int>(annotation.outputs.size())) {
    throw fail(fmt::format("it has {} outputs and the call {}; write one for each",
                           annotation.outputs.size(), binder.num_outputs()));
  }
  return annotated;
}

BoundRule bind_leaf(const Graph& graph, const Operator& op, const LeafFunction& leaf) {
  const std::string& text = op.annotation.empty() ? leaf.annotation : op.annotation;
  if (text.empty()) {
    const TableTarget* row = find_leaf(leaf.signature);
    Binder binder(graph, op, row ? row->entry : nullptr);
    if (row) {
      row->entry->rule.bind(binder);
    } else {
      binder.rule.known = false;
      bind_opaque(binder);
    }
    return binder.finish(leaf.signature);
  }
  const Annotation annotation = [&] {
    try {
      return parse_annotation(text);
    } catch (const InputError& error) {
      throw InputError(leaf.signature + ": " + error.what());
    }
  }();
  Binder binder(graph, op, nullptr);
  const std::vector<int> annotated = annotated_arguments(binder, annotation, leaf.signature);
  bind_annotation(binder, annotation, annotated, leaf.signature);
  binder.user_order = annotated;
  // An integer argument that is called like a name is its length, and follows a split.
  for (size_t n = 0; n < binder.rule.names.size(); ++n) {
    const BoundName& name = binder.rule.names[n];
    if (binder.integer(name.name, -1) != name.extent) continue;
    if (binder.rule.divide_name < 0) {
      binder.rule.divide_argument = name.name;
      binder.rule.divide_name = static_cast<int>(n);
    } else {
      binder.freeze(static_cast<int>(n),
                    fmt::format("argument {} would have to follow it, and only {} does", name.name,
                                binder.rule.divide_argument));
    }
  }
  return binder.finish(leaf.signature);
}

/// The tensor inputs that a table annotation's shapes stand for.
std::vector<int> table_arguments(const Binder& binder, const Annotation& annotation) {
  std::vector<int> annotated;
  for (const std::string& argument : split(binder.entry->arguments, ' ')) {
    if (!argument.empty()) annotated.push_back(binder.input(argument));
  }
  if (annotated.empty()) {
    for (int i = 0; i < binder.num_inputs(); ++i) annotated.push_back(i);
  }
  annotated.resize(annotation.inputs.size(), -1);
  return annotated;
}

void bind_unknown(Binder& binder) {
  binder.rule.known = false;
  bind_opaque(binder);
}

std::string unknown_signature(const Operator& op) {
  std::string name = op.target;
  if (name.starts_with("aten.")) {
    name = name.substr(5);
    return "torch.ops.aten." +
           (name.ends_with(".default") ? name.substr(0, name.size() - 8) : name);
  }
  return name;
}

}  // namespace

BoundRule bind_rule(const Graph& graph, const Operator& op) {
  if (const LeafFunction* leaf = graph.leaf(op.target)) return bind_leaf(graph, op, *leaf);
  const TableTarget* row = find_target(op.target);
  const Entry* entry = row ? row->entry : nullptr;
  const std::string signature =
      row && !row->signatures.empty() ? called(*row, op).front() : unknown_signature(op);
  Binder binder(graph, op, entry);
  bool bound = true;
  if (!entry) {
    bind_unknown(binder);
  } else if (entry->rule.bind) {
    entry->rule.bind(binder);
  } else {
    try {
      bind_annotation(binder, *row->annotation, table_arguments(binder, *row->annotation),
                      signature);
    } catch (const InputError&) {
      bound = false;  // a shape that the entry does not foresee
    }
  }
  BoundRule rule;
  if (bound && binder.fits()) {
    rule = binder.finish(signature);
  } else {
    Binder whole(graph, op, entry);
    bind_opaque(whole);
    rule = whole.finish(signature);
  }
  if (is_in_place(op.target)) {
    rule.mutates = true;
    if (rule.mutated_inputs.empty() && !rule.inputs.empty()) rule.mutated_inputs = {0};
  }
  return rule;
}

std::vector<std::string> signatures_of(const Graph& graph, const Operator& op) {
  if (const LeafFunction* leaf = graph.leaf(op.target)) return {leaf->signature};
  const TableTarget* row = find_target(op.target);
  if (row && !row->signatures.empty()) return called(*row, op);
  std::vector<std::string> names = {unknown_signature(op)};
  if (op.target.starts_with("aten.")) {
    const std::string target = op.target.substr(5), name = own_name(target);
    for (const char* module : {"linalg", "special", "fft"}) {
      const std::string prefix = std::string(module) + "_";
      if (target.starts_with(prefix))
        names.push_back(fmt::format(
            "torch.{}.{}", module, target.substr(prefix.size(), target.find('.') - prefix.size())));
    }
    for (const char* place : {"torch.", "torch.Tensor.", "torch.nn.functional."})
      names.push_back(place + name);
  }
  return names;
}

std::vector<std::string> known_signatures() {
  std::vector<std::string> all;
  for (const TableTarget& row : table()) {
    for (const std::vector<std::string>& group : row.signatures)
      all.insert(all.end(), group.begin(), group.end());
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());  // subranges are beyond clang 14
  return all;
}

std::vector<TableRow> operator_table() {
  std::vector<TableRow> rows;
  for (const TableTarget& row : table()) {
    std::string signature;
    for (const std::vector<std::string>& group : row.signatures)
      signature += (signature.empty() ? "" : " | ") + join(group, " ");
    rows.push_back({row.family, row.target, signature, std::string(row.entry->rule.text)});
  }
  return rows;
}

}  // namespace nnscaler
