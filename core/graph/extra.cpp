// extra/nnscaler.json, written by nnscaler.export: what the archive itself does not hold.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/python.h"
#include "core/graph/read.h"

namespace nnscaler {

namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kMaxDepth = 100;

/// Finds operators by the names that the archive gives them.
class NodeIndex {
 public:
  explicit NodeIndex(const Draft& draft) : draft_(draft) {
    for (size_t i = 0; i < draft.nodes.size(); ++i) {
      const int index = static_cast<int>(i);
      for (const std::string_view name : {draft.nodes[i].name, draft.nodes[i].output}) {
        std::vector<int>& ops = ops_[name];
        if (ops.empty() || ops.back() != index) ops.push_back(index);
        note_end(name, index + 1);
      }
    }
    for (size_t i = 0; i < draft.bodies.size(); ++i) {
      for (const std::string_view name : {draft.bodies[i].name, draft.bodies[i].output}) {
        bodies_.emplace(name, i);
        note_end(name, draft.bodies[i].end);
      }
    }
    for (const auto& [name, position] : draft.dropped) note_end(name, position);
  }

  /// Operators of that name, whatever they are.
  const std::vector<int>& operators(std::string_view name) const {
    static const std::vector<int> kNone;
    const auto found = ops_.find(name);
    return found == ops_.end() ? kNone : found->second;
  }

  const Draft::Body* body(std::string_view name) const {
    const auto found = bodies_.find(name);
    return found == bodies_.end() ? nullptr : &draft_.bodies[found->second];
  }

  /// How many operators come until a node is done; none for a node that does not exist.
  std::optional<int> end(std::string_view name) const {
    const auto found = ends_.find(name);
    return found == ends_.end() || name.empty() ? std::nullopt : std::optional(found->second);
  }

 private:
  void note_end(std::string_view name, int position) {
    int& end = ends_[name];
    end = std::max(end, position);
  }

  const Draft& draft_;
  std::unordered_map<std::string_view, std::vector<int>> ops_;
  std::unordered_map<std::string_view, size_t> bodies_;
  std::unordered_map<std::string_view, int> ends_;
};

class ExtraReader {
 public:
  ExtraReader(const JsonReader& json, Draft& draft)
      : json_(json), draft_(draft), graph_(draft.graph), nodes_(draft) {}

  void run() {
    const Json root = json_.root();
    const int64_t format = json_.integer(root, "format");
    if (format != kFormat) {
      const JsonReader::Scope scope(json_, "format");
      json_.fail(fmt::format("is {}, and {} is read; export the model with this nnscaler", format,
                             kFormat));
    }
    if (json_.find(root, "training")) graph_.training = json_.boolean(root, "training");
    if (json_.find(root, "module_class")) graph_.module_class = json_.string(root, "module_class");
    if (json_.find(root, "ties")) read_ties(root);
    read_flags(root, "parameters", ValueKind::kParameter, "requires_grad", &Value::requires_grad);
    read_flags(root, "buffers", ValueKind::kBuffer, "persistent", &Value::persistent);
    if (json_.find(root, "leaves")) {
      json_.each(root, "leaves", [&](Json leaf) { read_leaf(leaf); });
    }
    check_leaves();
    if (json_.find(root, "recompute")) {
      json_.each(root, "recompute", [&](Json region) { read_recompute(region); });
    }
    if (json_.find(root, "anchors")) {
      json_.each(root, "anchors", [&](Json anchor) { read_anchor(anchor); });
    }
    if (json_.find(root, "eval")) read_eval(json_.at(root, "eval"));
    if (json_.find(root, "symbols")) read_symbols(root);
    read_forward(json_.at(root, "forward"));
  }

 private:
  ValueId find_value(std::string_view fqn) const {
    const auto found = draft_.by_fqn.find(fqn);
    if (found == draft_.by_fqn.end()) {
      json_.fail(fmt::format("the model has no parameter or buffer {}", fqn));
    }
    return found->second;
  }

  void read_ties(Json root) {
    std::set<std::string_view> seen;
    json_.each(root, "ties", [&](Json group) {
      std::vector<std::string> names;
      for (const Json item : json_.elements(group)) {
        const std::string_view name = json_.string(item);
        const Value& value = graph_.value(find_value(name));
        const Value& first = names.empty() ? value : graph_.value(find_value(names[0]));
        if (!seen.insert(name).second) json_.fail(fmt::format("{} is tied twice", name));
        if (value.shape != first.shape || value.dtype != first.dtype) {
          json_.fail(fmt::format("{} and {} differ in shape or type", names[0], name));
        }
        names.emplace_back(name);
      }
      if (names.size() < 2) json_.fail("ties fewer than two names");
      graph_.ties.push_back(std::move(names));
    });
  }

  void read_flags(Json root, std::string_view key, ValueKind kind, std::string_view flag,
                  bool Value::* member) {
    if (!json_.find(root, key)) return;
    for (const auto& [fqn, entry] : json_.fields(root, key)) {
      const JsonReader::Scope scope(json_, key);
      const JsonReader::Scope in_entry(json_, fqn);
      Value& value = graph_.value(find_value(fqn));
      if (value.kind != kind) json_.fail("is of another kind");
      if (json_.find(entry, flag)) value.*member = json_.boolean(entry, flag);
    }
  }

  // --- Leaf functions ---

  void read_leaf(Json json) {
    LeafFunction leaf;
    leaf.target = json_.string(json, "target");
    leaf.signature = json_.string(json, "signature");
    leaf.module = json_.string(json, "module");
    leaf.qualname = json_.string(json, "qualname");
    for (const std::string* name : {&leaf.signature, &leaf.module, &leaf.qualname}) {
      if (!is_dotted_name(*name)) json_.fail(fmt::format("{} is no import path", quote(*name)));
    }
    if (json_.find(json, "autograd_function")) {
      leaf.autograd_function = json_.boolean(json, "autograd_function");
    }
    if (json_.find(json, "annotation")) leaf.annotation = json_.string(json, "annotation");
    if (graph_.leaf(leaf.target) != nullptr) {
      json_.fail(fmt::format("{} is there already", leaf.target));
    }
    for (const auto& [call, arguments] : json_.fields(json, "arguments")) {
      const JsonReader::Scope scope(json_, "arguments");
      const JsonReader::Scope in_call(json_, call);
      Operator& op = find_call(call, leaf.target);
      read_call(json_.elements(arguments), op);
      op.annotation = leaf.annotation;
      described_.insert(&op);
    }
    if (json_.find(json, "annotations")) {
      for (const auto& [call, annotation] : json_.fields(json, "annotations")) {
        const JsonReader::Scope scope(json_, "annotations");
        const JsonReader::Scope in_call(json_, call);
        find_call(call, leaf.target).annotation = json_.string(annotation);
      }
    }
    graph_.leaves.push_back(std::move(leaf));
  }

  Operator& find_call(std::string_view name, const std::string& target) {
    for (const int i : nodes_.operators(name)) {
      Operator& op = graph_.operators[static_cast<size_t>(i)];
      if (op.target == target) return op;
    }
    json_.fail(fmt::format("no operator {} calls {}", name, target));
  }

  void read_call(const std::vector<Json>& arguments, Operator& op) {
    const std::vector<ValueId> tensors = op.tensor_inputs();
    const auto tensor = [&](int64_t index) {
      if (index < 0 || index >= static_cast<int64_t>(tensors.size())) {
        json_.fail(fmt::format("names tensor {}, and the call has {}", index, tensors.size()));
      }
      return tensors[static_cast<size_t>(index)];
    };
    std::vector<Argument> args;
    for (const Json json : arguments) {
      Argument argument;
      argument.name = json_.string(json, "name");
      if (!is_identifier(argument.name)) {
        json_.fail(fmt::format("{} is no name of a parameter", quote(argument.name)));
      }
      argument.keyword = json_.find(json, "keyword") && json_.boolean(json, "keyword");
      if (json_.find(json, "tensor")) {
        argument.value = tensor(json_.integer(json, "tensor"));
      } else if (json_.find(json, "tensors")) {
        TensorList list;
        for (const Json item : json_.array(json, "tensors")) {
          list.push_back(json_.is_null(item) ? ValueId() : tensor(json_.integer(item)));
        }
        argument.value = std::move(list);
        argument.is_tuple = json_.find(json, "type") && json_.string(json, "type") == "tuple";
      } else {
        argument.value = PySource{read_literal(json, "literal")};
      }
      args.push_back(std::move(argument));
    }
    op.args = std::move(args);
  }

  std::string read_literal(Json json, std::string_view key) {
    std::string text(json_.string(json, key));
    if (!is_literal(text)) {
      const JsonReader::Scope scope(json_, key);
      json_.fail(fmt::format("{} is no literal of Python", quote(text)));
    }
    return text;
  }

  void check_leaves() const {
    for (const Operator& op : graph_.operators) {
      if (op.target.starts_with("nnscaler_leaf.") && !described_.contains(&op)) {
        json_.fail(fmt::format(
            "leaves: no entry describes the call of {} that writes {}", op.target,
            op.outputs.empty() || !op.outputs[0].valid() ? "nothing"
                                                         : graph_.value(op.outputs[0]).name));
      }
    }
  }

  // --- Recompute regions ---

  std::string_view read_node_name(Json json) const {
    const std::string_view name = json_.string(json);
    if (!nodes_.end(name)) json_.fail(fmt::format("the model has no node {}", name));
    return name;
  }

  /// The operators between the first and the last of `names`. A region's body goes as a whole,
  /// unless all names lie within it.
  std::pair<int, int> find_range(Json json) {
    int begin = static_cast<int>(graph_.operators.size()), end = 0;
    std::vector<const Draft::Body*> bodies;
    const auto include = [&](int first, int last) {
      begin = std::min(begin, first);
      end = std::max(end, last);
    };
    json_.each(json, "nodes", [&](Json item) {
      const std::string_view name = read_node_name(item);
      const Draft::Body* body = nodes_.body(name);
      if (body != nullptr) bodies.push_back(body);
      // A body's last operator and the node that calls it share a name.
      for (const int i : nodes_.operators(name)) include(i, i + 1);
    });
    for (const Draft::Body* body : bodies) {
      const bool within = begin >= body->begin && end <= body->end && begin < end;
      if (!within && body->begin < body->end) include(body->begin, body->end);
    }
    return {begin, end};
  }

  void read_recompute(Json json) {
    const auto [begin, end] = find_range(json);
    if (begin >= end) return;  // Nothing but assertions.
    Region region;
    region.kind = RegionKind::kRecompute;
    region.origin = "torch.utils.checkpoint";
    if (json_.find(json, "preserve_rng_state")) {
      region.preserve_rng_state = json_.boolean(json, "preserve_rng_state");
    }
    const auto chain_of = [&](int i) {
      std::vector<int> chain;
      for (int r = graph_.operators[static_cast<size_t>(i)].region; r >= 0;
           r = graph_.regions[static_cast<size_t>(r)].parent) {
        chain.push_back(r);
      }
      if (chain.size() > kMaxDepth) json_.fail("is nested too deeply");
      std::ranges::reverse(chain);
      return chain;
    };
    // It goes below what encloses all of its operators …
    std::vector<int> common = chain_of(begin);
    for (int i = begin + 1; i < end; ++i) {
      const std::vector<int> chain = chain_of(i);
      const auto [at, unused] = std::ranges::mismatch(common, chain);
      common.erase(at, common.end());
    }
    region.parent = common.empty() ? -1 : common.back();
    const int id = static_cast<int>(graph_.regions.size());
    graph_.regions.push_back(region);
    // … and above the rest, of which it gets copies of its own.
    std::map<std::pair<int, int>, int> copies;
    for (int i = begin; i < end; ++i) {
      const std::vector<int> chain = chain_of(i);
      int current = id;
      for (size_t depth = common.size(); depth < chain.size(); ++depth) {
        const auto [it, fresh] = copies.emplace(std::pair(current, chain[depth]), 0);
        if (fresh) {
          it->second = static_cast<int>(graph_.regions.size());
          graph_.regions.push_back(graph_.regions[static_cast<size_t>(chain[depth])]);
          graph_.regions.back().parent = current;
        }
        current = it->second;
      }
      graph_.operators[static_cast<size_t>(i)].region = current;
    }
  }

  /// {"name": "start", "after": "add_3"}; "" is the start of the program.
  void read_anchor(Json json) {
    Anchor& anchor = graph_.anchors.emplace_back();
    anchor.name = json_.string(json, "name");
    if (json_.string(json, "after").empty()) return;
    anchor.position = *nodes_.end(read_node_name(json_.at(json, "after")));
  }

  // --- Training and evaluation ---

  void read_eval(Json json) {
    const JsonReader::Scope scope(json_, "eval");
    graph_.eval_mode = json_.string(json, "mode");
    if (graph_.eval_mode != "same" && graph_.eval_mode != "flags" &&
        graph_.eval_mode != "differs") {
      json_.fail(
          fmt::format("mode is {}; same, flags and differs are known", quote(graph_.eval_mode)));
    }
    if (json_.find(json, "reason")) graph_.eval_reason = json_.string(json, "reason");
    if (!json_.find(json, "training_only")) return;
    json_.each(json, "training_only", [&](Json item) {
      const std::string_view name = read_node_name(item);
      const std::vector<int>& ops = nodes_.operators(name);
      for (const int i : ops) graph_.operators[static_cast<size_t>(i)].training_only = true;
      const Draft::Body* body = nodes_.body(name);
      if (!ops.empty() || body == nullptr) return;
      for (int i = body->begin; i < body->end; ++i) {
        graph_.operators[static_cast<size_t>(i)].training_only = true;
      }
    });
  }

  void read_symbols(Json root) {
    for (const auto& [name, json] : json_.fields(root, "symbols")) {
      const JsonReader::Scope scope(json_, "symbols");
      const JsonReader::Scope in_symbol(json_, name);
      if (!is_identifier(name)) json_.fail("is no name of a symbol");
      SymbolInfo& info = graph_.symbols[std::string(name)];
      if (json_.find(json, "min")) info.min = json_.integer(json, "min");
      if (json_.find(json, "max")) info.max = json_.integer(json, "max");
      if (json_.find(json, "input")) info.input = json_.string(json, "input");
      if (json_.find(json, "dim")) {
        const int64_t dim = json_.integer(json, "dim");
        if (dim < 0 || dim > 1000) json_.fail(fmt::format("dim is {}", dim));
        info.dim = static_cast<int>(dim);
      }
    }
  }

  // --- forward ---

  void read_forward(Json json) {
    const JsonReader::Scope scope(json_, "forward");
    static constexpr std::string_view kKinds[] = {"positional", "keyword", "var_positional",
                                                  "var_keyword"};
    std::vector<char> seen(graph_.inputs.size(), 0);
    json_.each(json, "parameters", [&](Json item) {
      ForwardParameter& parameter = graph_.forward.emplace_back();
      parameter.name = json_.string(item, "name");
      if (!is_identifier(parameter.name)) {
        json_.fail(fmt::format("{} is no name of a parameter", quote(parameter.name)));
      }
      parameter.kind = json_.string(item, "kind");
      if (std::ranges::find(kKinds, parameter.kind) == std::end(kKinds)) {
        json_.fail(fmt::format("is of unknown kind {}", quote(parameter.kind)));
      }
      if (json_.find(item, "default")) parameter.fallback = read_literal(item, "default");
      if (json_.find(item, "tree")) {
        const JsonReader::Scope in_tree(json_, "tree");
        parameter.tree = read_tree(json_.at(item, "tree"), graph_.inputs, seen, 0);
      }
    });
    for (size_t i = 0; i < seen.size(); ++i) {
      if (graph_.inputs[i].valid() && !seen[i]) {
        json_.fail(fmt::format("no parameter holds input {} ({})", i,
                               graph_.value(graph_.inputs[i]).name));
      }
    }
    seen.assign(graph_.outputs.size(), 0);
    const JsonReader::Scope in_output(json_, "output");
    graph_.output = read_tree(json_.at(json, "output"), graph_.outputs, seen, 0);
  }

  Tree read_tree(Json json, const std::vector<ValueId>& leaves, std::vector<char>& seen,
                 size_t depth) {
    if (depth > kMaxDepth) json_.fail("is nested too deeply");
    Tree tree;
    if (json_.find(json, "leaf")) {
      const int64_t leaf = json_.integer(json, "leaf");
      if (leaf < 0 || leaf >= static_cast<int64_t>(leaves.size())) {
        json_.fail(fmt::format("leaf is {}, and there are {}", leaf, leaves.size()));
      }
      if (!leaves[static_cast<size_t>(leaf)].valid()) {
        json_.fail(fmt::format("leaf {} is a constant", leaf));
      }
      seen[static_cast<size_t>(leaf)] = 1;
      tree.leaf = static_cast<int>(leaf);
      return tree;
    }
    if (json_.find(json, "literal")) {
      tree.kind = Tree::Kind::kLiteral;
      tree.literal = read_literal(json, "literal");
      return tree;
    }
    const auto add_child = [&](Json child) {
      tree.children.push_back(read_tree(child, leaves, seen, depth + 1));
    };
    if (json_.find(json, "type")) tree.type = read_type(json, "type");
    if (json_.find(json, "tuple")) {
      tree.kind = Tree::Kind::kTuple;
      json_.each(json, "tuple", add_child);
    } else if (json_.find(json, "list")) {
      tree.kind = Tree::Kind::kList;
      json_.each(json, "list", add_child);
    } else if (json_.find(json, "dict") || json_.find(json, "object")) {
      const bool is_dict = json_.find(json, "dict").has_value();
      tree.kind = is_dict ? Tree::Kind::kDict : Tree::Kind::kObject;
      if (!is_dict) tree.type = read_type(json, "object");
      json_.each(json, is_dict ? "dict" : "fields", [&](Json item) {
        const std::vector<Json> pair = json_.elements(item);
        if (pair.size() != 2) json_.fail("is no pair of key and value");
        const std::string_view key = json_.string(pair[0]);
        if (is_dict ? !is_literal(key) : !is_identifier(key)) {
          json_.fail(fmt::format("{} is no {}", quote(key),
                                 is_dict ? "literal of Python" : "name of a field"));
        }
        tree.keys.emplace_back(key);
        add_child(pair[1]);
      });
    } else {
      json_.fail("is no leaf, literal, tuple, list, dict or object");
    }
    return tree;
  }

  std::string read_type(Json json, std::string_view key) {
    std::string type(json_.string(json, key));
    if (!is_dotted_name(type)) {
      json_.fail(fmt::format("{} is no import path of a class", quote(type)));
    }
    return type;
  }

  const JsonReader& json_;
  Draft& draft_;
  Graph& graph_;
  NodeIndex nodes_;
  std::set<const Operator*> described_;
};

}  // namespace

void read_extra(const JsonReader& json, Draft& draft) { ExtraReader(json, draft).run(); }

}  // namespace nnscaler
