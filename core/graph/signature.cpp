// The forward signature as torch.export writes it, for archives without extra/nnscaler.json.

#include <fmt/format.h>

#include <algorithm>

#include "core/graph/python.h"
#include "core/graph/read.h"

namespace nnscaler {

namespace {

constexpr int kMaxDepth = 100;

/// Builds trees from a pytree specification, JSON in a string:
/// `[1, {"type": "builtins.dict", "context": "[\"loss\"]", "children_spec": […]}]`.
class SpecReader {
 public:
  /// `leaves` and `literals`: the flat values, and the Python source of those that are constants.
  SpecReader(const JsonReader& spec, const std::vector<ValueId>& leaves,
             const std::vector<std::string>& literals, std::vector<std::string>& warnings)
      : spec_(spec), leaves_(leaves), literals_(literals), warnings_(warnings) {}

  Tree run() {
    const std::vector<Json> top = spec_.elements(spec_.root());
    if (top.size() != 2) spec_.fail("is no pair of version and tree");
    Tree tree = read(top[1], 0);
    if (next_ != leaves_.size()) {
      spec_.fail(fmt::format("has {} leaves, and the program {}", next_, leaves_.size()));
    }
    return tree;
  }

 private:
  Tree read(Json json, int depth) {
    if (depth > kMaxDepth) spec_.fail("is nested too deeply");
    Tree tree;
    if (!spec_.find(json, "type")) {
      if (next_ == leaves_.size()) spec_.fail("has more leaves than the program");
      if (leaves_[next_].valid()) {
        tree.leaf = static_cast<int>(next_);
      } else {
        tree.kind = Tree::Kind::kLiteral;
        tree.literal = literals_[next_];
      }
      ++next_;
      return tree;
    }
    const std::string_view type = spec_.string(json, "type");
    spec_.each(json, "children_spec",
               [&](Json child) { tree.children.push_back(read(child, depth + 1)); });
    if (type == "builtins.tuple" || type == "builtins.list") {
      tree.kind = type == "builtins.list" ? Tree::Kind::kList : Tree::Kind::kTuple;
      return tree;
    }
    const bool is_dict = type == "builtins.dict" || type == "collections.OrderedDict";
    tree.keys = read_keys(json, tree.children.size(), is_dict);
    if (!tree.keys.empty() || tree.children.empty()) {
      tree.kind = is_dict ? Tree::Kind::kDict : Tree::Kind::kObject;
      if (type != "builtins.dict" && is_dotted_name(type)) tree.type = type;
      return tree;
    }
    warnings_.push_back(
        fmt::format("{}: {} has no fields that nnscaler knows; its values are passed as a tuple",
                    spec_.place(), quote(type)));
    tree.kind = Tree::Kind::kTuple;
    return tree;
  }

  /// The context is JSON in a string again: keys of a dict, field names of a dataclass, which may
  /// stand in a list of two, `[["loss", "logits"], []]`.
  std::vector<std::string> read_keys(Json json, size_t count, bool is_dict) {
    const std::optional<Json> context = spec_.find(json, "context");
    if (!context) return {};
    const JsonReader reader(Buffer(spec_.string(*context)), spec_.place() + ".context");
    if (reader.is_null(reader.root()) || !reader.is_array(reader.root())) return {};
    std::vector<Json> items = reader.elements(reader.root());
    if (!items.empty() && reader.is_array(items[0])) items = reader.elements(items[0]);
    std::vector<std::string> keys;
    for (const Json item : items) {
      if (reader.is_string(item)) {
        const std::string_view key = reader.string(item);
        if (!is_dict && !is_identifier(key)) return {};
        keys.push_back(is_dict ? quote(key) : std::string(key));
      } else if (is_dict) {
        keys.push_back(std::to_string(reader.integer(item)));
      } else {
        return {};
      }
    }
    if (is_dict && keys.size() != count) {
      reader.fail(fmt::format("has {} keys for {} values", keys.size(), count));
    }
    return keys.size() == count ? keys : std::vector<std::string>();
  }

  const JsonReader& spec_;
  const std::vector<ValueId>& leaves_;
  const std::vector<std::string>& literals_;
  std::vector<std::string>& warnings_;
  size_t next_ = 0;
};

Tree read_spec(const JsonReader& json, Json signature, std::string_view key, Graph& graph,
               const std::vector<ValueId>& leaves, const std::vector<std::string>& literals) {
  const std::string_view text = json.string(signature, key);
  const JsonReader::Scope scope(json, key);
  const JsonReader spec(Buffer(text), json.place());
  return SpecReader(spec, leaves, literals, graph.warnings).run();
}

}  // namespace

void read_signature(const JsonReader& json, Draft& draft) {
  Graph& graph = draft.graph;
  const Json graph_module = json.at(json.root(), "graph_module");
  const JsonReader::Scope in_module(json, "graph_module");
  bool found = false;
  json.each(graph_module, "module_call_graph", [&](Json entry) {
    if (!json.string(entry, "fqn").empty() || found) return;
    found = true;
    const Json signature = json.at(entry, "signature");
    const JsonReader::Scope scope(json, "signature");
    const Tree inputs =
        read_spec(json, signature, "in_spec", graph, graph.inputs, draft.input_literals);
    graph.output =
        read_spec(json, signature, "out_spec", graph, graph.outputs, draft.output_literals);
    if (inputs.children.size() != 2 || inputs.children[1].kind != Tree::Kind::kDict) {
      json.fail("in_spec is no pair of arguments and keyword arguments");
    }
    std::vector<std::string> names;
    if (json.find(signature, "forward_arg_names")) {
      names = json.strings(signature, "forward_arg_names");
    }
    const Tree& positional = inputs.children[0];
    const Tree& keywords = inputs.children[1];
    for (size_t i = 0; i < positional.children.size(); ++i) {
      const bool named = i < names.size() && is_identifier(names[i]);
      graph.forward.push_back({named ? names[i] : fmt::format("arg{}", i), "positional",
                               std::nullopt, positional.children[i]});
    }
    for (size_t i = 0; i < keywords.children.size(); ++i) {
      const std::string& key = keywords.keys[i];
      const std::string name = key.substr(1, key.size() - 2);
      if (key[0] != '"' || !is_identifier(name)) {
        json.fail(fmt::format("in_spec: {} is no name of a parameter", key));
      }
      graph.forward.push_back({name, "keyword", std::nullopt, keywords.children[i]});
    }
  });
  if (!found) json.fail("module_call_graph has no entry for the root");
}

}  // namespace nnscaler
