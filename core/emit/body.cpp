#include "core/emit/body.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/emit/names.h"
#include "core/ops/spelling.h"

namespace nnscaler::emission {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

constexpr int kNever = std::numeric_limits<int>::max();

bool is_digits(std::string_view text) {
  return !text.empty() && text.size() < 8 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_torch_file(std::string_view file) {
  for (const std::string_view part : {"-packages/torch/", "/torch/nn/", "/torch/_", "/torch/utils/",
                                      "/torch/functional.py", "/torch/autograd/"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool same_line(const SourceLine* a, const SourceLine* b) {
  return a != nullptr && b != nullptr && a->line == b->line && a->file == b->file;
}

}  // namespace

const SourceLine* source_line(const Graph& graph, const Operator& op, int frame) {
  if (op.trace < 0 || op.stack < 0) return nullptr;
  const Trace& trace = graph.traces[at(op.trace)];
  const ModuleStack& stack = graph.stacks[at(op.stack)];
  // Every module's forward leaves a line, those of torch.nn perhaps not: so the k-th `forward` is
  // the k-th frame's. What follows it up to the next are its helpers.
  const auto in_torch = [](const Frame& each) { return each.class_name.starts_with("torch.nn."); };
  const auto forwards =
      static_cast<size_t>(std::count_if(trace.begin(), trace.end(), [](const SourceLine& line) {
        return line.function == "forward";
      }));
  size_t wanted = static_cast<size_t>(frame);
  if (forwards != stack.size()) {
    const auto torch = static_cast<size_t>(std::count_if(stack.begin(), stack.end(), in_torch));
    if (forwards + torch != stack.size()) {
      return wanted + 1 >= stack.size() ? graph.source_of(op) : nullptr;
    }
    if (wanted >= stack.size() || in_torch(stack[wanted])) return nullptr;
    wanted -= static_cast<size_t>(std::count_if(
        stack.begin(), stack.begin() + static_cast<std::ptrdiff_t>(wanted), in_torch));
  }
  const SourceLine* found = nullptr;
  size_t seen = 0;
  for (const SourceLine& line : trace) {
    if (line.function == "forward") ++seen;
    if (seen > wanted + 1) break;
    if (seen == wanted + 1 && !is_torch_file(line.file)) found = &line;
  }
  return found;
}

namespace {

/// The line of an operator, or of a call: that of the first operator in it that has one.
const SourceLine* node_line(const Scopes& scopes, const Node& node, int frame) {
  if (node.kind == Node::Kind::kOp) {
    return source_line(scopes.graph(), scopes.op(node.index), frame);
  }
  const Call& call = scopes.calls[at(node.index)];
  for (int p = call.begin; p < call.end; ++p) {
    const Operator& op = scopes.op(scopes.order[at(p)]);
    if (op.trace >= 0) return source_line(scopes.graph(), op, frame);
  }
  return nullptr;
}

}  // namespace

Function::Place Function::place_of(int value, bool inside) const {
  const auto element = [&]() -> Place {
    const auto found = element_of.find(value);
    return found == element_of.end() ? Place{} : Place{found->second.list, found->second.index};
  };
  if (!inside && element().variable >= 0) return element();
  for (auto next = canonical.find(value); next != canonical.end(); next = canonical.find(value)) {
    value = next->second;
    // The element of an inner loop's list.
    if (canonical.contains(value) && element().variable >= 0) return element();
  }
  const auto found = variable_of.find(value);
  if (found != variable_of.end()) return {found->second, -1};
  check(element().variable >= 0, "a statement reads a value without a name");
  return element();
}

/// Makes one function's statements.
class BodyBuilder {
 public:
  BodyBuilder(const Classes& classes, const std::vector<std::vector<Function>>& functions,
              Function& f)
      : classes_(classes),
        scopes_(*classes.scopes),
        functions_(functions),
        f_(f),
        call_(scopes_.calls[at(f.call)]) {}

  void run() {
    for (const Entity& input : call_.inputs) {
      const int variable = fresh();
      (input.is_module ? f_.variable_of_module : f_.variable_of)[input.index] = variable;
      f_.parameters.push_back(variable);
    }
    build(call_.items, f_.nodes);
    const Method& method = classes_.classes[at(f_.class_index)].methods[at(f_.method)];
    for (const Output& output : method.outputs) outputs_.push_back(value_at(f_.call, output));
    if (f_.call == 0) outputs_ = scopes_.outputs;
    for (const int value : outputs_) {
      if (value >= 0) read_at_[value].push_back(kNever);
    }
    spread_lists(f_.nodes);
    find_loops(f_.nodes);
    for (const auto& [value, readers] : read_at_) needed_.insert(canonical(value));
    // What an inner loop makes for the outer one's next iteration is handed on at the end.
    for (Loop& loop : f_.loops) {
      for (Loop::Carried& each : loop.carried) {
        if (each.separate || !f_.canonical.contains(each.value)) continue;
        each.separate = true;
        f_.variable_of.erase(each.value);
      }
    }
    make_variables(f_.nodes);
    give_hints(f_.nodes);
    group_results();
    for (const auto& [value, readers] : read_at_) {
      if (readers.size() == 1 && readers[0] != kNever && !read_later_.contains(value) &&
          !f_.element_of.contains(value)) {
        f_.read_once.insert(value);
      }
    }
  }

 private:
  int fresh() {
    f_.variables.emplace_back();
    return static_cast<int>(f_.variables.size()) - 1;
  }

  int value_at(int call, const Output& output) const {
    const int op = scopes_.order[at(scopes_.calls[at(call)].begin + output.offset)];
    return scopes_.op(op).outputs[at(output.index)].index;
  }

  const Function& callee(int call) const {
    const int index = classes_.class_of[at(scopes_.calls[at(call)].module)];
    return functions_[at(index)][at(classes_.method_of[at(call)])];
  }

  std::vector<std::string> path_to(int module, const std::string& attribute) const {
    const std::string& base = scopes_.modules[at(call_.module)].path;
    const std::string& path = scopes_.modules[at(module)].path;
    std::vector<std::string> parts;
    if (path.size() > base.size())
      parts = split(path.substr(base.empty() ? 0 : base.size() + 1), '.');
    if (!attribute.empty()) parts.push_back(attribute);
    return parts;
  }

  Use use_of(Entity entity) const {
    Use use;
    use.entity = entity;
    use.module = call_.module;
    if (entity.is_module) {
      if (scopes_.reaches(f_.call, entity.index)) {
        use.has_path = true;
        use.path = path_to(entity.index, "");
      }
      return use;
    }
    if (scopes_.owner[at(entity.index)] < 0) return use;
    use.entity.index = scopes_.tied(entity.index, f_.call);
    const int place = scopes_.owner[at(use.entity.index)];
    if (scopes_.reaches(f_.call, place)) {
      use.has_path = true;
      use.path = path_to(place, scopes_.attribute[at(use.entity.index)]);
    }
    return use;
  }

  void build(const std::vector<Item>& items, std::vector<Node>& nodes) {
    for (const Item& item : items) {
      Node node;
      node.index = item.index;
      node.first_leaf = leaves_;
      if (item.kind == Item::Kind::kBlock) {
        node.kind = Node::Kind::kBlock;
        build(scopes_.blocks[at(item.index)].items, node.children);
        node.num_leaves = leaves_ - node.first_leaf;
        nodes.push_back(std::move(node));
        continue;
      }
      if (item.kind == Item::Kind::kOp) {
        for (const Operand& operand : scopes_.operands[at(item.index)]) {
          node.uses.push_back(use_of({false, operand.value}));
        }
        for (const ValueId output : scopes_.op(item.index).outputs) {
          node.results.push_back(output.index);
        }
      } else {
        node.kind = Node::Kind::kCall;
        const Call& inner = scopes_.calls[at(item.index)];
        if (!inner.segment) node.uses.push_back(use_of({true, inner.module}));
        for (const Entity& input : inner.inputs) node.uses.push_back(use_of(input));
        const Method& method = classes_.classes[at(classes_.class_of[at(inner.module)])]
                                   .methods[at(classes_.method_of[at(item.index)])];
        for (const Output& output : method.outputs) {
          node.results.push_back(value_at(item.index, output));
        }
      }
      for (size_t i = 0; i < node.results.size(); ++i) {
        if (node.results[i] >= 0) made_[node.results[i]] = {leaves_, static_cast<int>(i)};
      }
      for (const Use& use : node.uses) {
        if (!use.has_path && !use.entity.is_module) read_at_[use.entity.index].push_back(leaves_);
      }
      ++leaves_;
      nodes.push_back(std::move(node));
    }
  }

  /// Long lists that an operator returns stay lists, as do those that a call returns.
  void spread_lists(const std::vector<Node>& nodes) {
    constexpr size_t kLong = 6;
    for (const Node& node : nodes) {
      spread_lists(node.children);
      if (node.kind == Node::Kind::kOp && scopes_.op(node.index).output_is_list &&
          node.results.size() > kLong) {
        add_list(node.results.begin(), node.results.end());
      }
      if (node.kind != Node::Kind::kCall) continue;
      auto next = node.results.begin();
      for (const ResultItem& item : callee(node.index).results) {
        const auto end = next + static_cast<std::ptrdiff_t>(item.outputs.size());
        if (item.is_list) add_list(next, end);
        next = end;
      }
    }
  }

  template <typename Iterator>
  void add_list(Iterator begin, Iterator end) {
    const int list = fresh();
    f_.variables[at(list)].size = static_cast<int>(end - begin);
    for (int i = 0; begin != end; ++begin, ++i) {
      if (*begin >= 0) f_.element_of[*begin] = {list, i};
    }
  }

  // Loops.

  struct Slot {
    enum class Kind : uint8_t { kFixed, kInternal, kCarried, kIndexed, kElement };
    Kind kind = Kind::kFixed;
    int place = 0;               ///< kIndexed: component of the path.
    std::pair<int, int> source;  ///< kCarried: statement of the iteration, result.
    bool operator==(const Slot&) const = default;
  };

  /// A block that repeats.
  struct Match {
    int count = 1;
    std::vector<Slot> slots;  ///< One for each use in the block.
    struct Start {
      Use initial;
      int last_old = -1;  ///< The last statement that reads what the iteration before made.
    };
    std::map<std::pair<int, int>, Start> carried;
    bool indexed = false;
    bool calls = false;
  };

  void add_signature(const Node& node, std::string& key) const {
    if (node.kind == Node::Kind::kBlock) {
      const Block& block = scopes_.blocks[at(node.index)];
      key += '{';
      key += std::to_string(static_cast<int>(block.kind));
      if (block.region >= 0) region_key(scopes_.graph().regions[at(block.region)], key);
      for (const int axis : block.axes) key += "," + std::to_string(axis);
      for (const Node& each : node.children) add_signature(each, key);
      key += '}';
      return;
    }
    if (node.kind == Node::Kind::kOp) {
      operator_key(scopes_, node.index, key,
                   [&](const Operand* operand) { key += operand == nullptr ? '-' : '?'; });
      const std::vector<Hole> holes = holes_of(scopes_.op(node.index));
      const std::vector<int>& arguments = classes_.classes[at(f_.class_index)].argument_of;
      for (size_t i = 0; i < holes.size(); ++i) {
        const int argument = arguments[at(classes_.op_numbers[at(node.index)]) + i];
        if (argument >= 0) {
          key += " a" + std::to_string(argument);
        } else if (const auto* integer = std::get_if<int64_t>(&holes[i].number)) {
          key += " " + std::to_string(*integer);
        } else {
          key += " " + python::number(std::get<double>(holes[i].number));
        }
      }
    } else {
      const Call& inner = scopes_.calls[at(node.index)];
      key += "call " + std::to_string(classes_.class_of[at(inner.module)]) + " " +
             std::to_string(classes_.method_of[at(node.index)]);
      if (inner.recompute >= 0) region_key(scopes_.graph().regions[at(inner.recompute)], key);
    }
    for (const Use& use : node.uses) {
      key += ' ';
      if (!use.has_path) key += 'v';
      if (use.has_path && use.variable >= 0) key += std::to_string(use.variable);
      for (const std::string& part : use.path) key += is_digits(part) ? ".#" : "." + part;
    }
    key += '\n';
  }

  /// Every use in a node, with its statement counted from `base`.
  static void collect_uses(const Node& node, int base,
                           std::vector<std::pair<const Use*, int>>& uses) {
    for (const Use& use : node.uses) uses.emplace_back(&use, node.first_leaf - base);
    for (const Node& each : node.children) collect_uses(each, base, uses);
  }

  /// Every result, with its statement counted from `base` and its place there.
  struct Result {
    int value;
    std::pair<int, int> place;
  };
  static void collect_results(const Node& node, int base, std::vector<Result>& results) {
    for (size_t i = 0; i < node.results.size(); ++i) {
      results.push_back({node.results[i], {node.first_leaf - base, static_cast<int>(i)}});
    }
    for (const Node& each : node.children) collect_results(each, base, results);
  }

  static bool has_calls(const Node& node) {
    return node.kind == Node::Kind::kCall ||
           std::any_of(node.children.begin(), node.children.end(), has_calls);
  }

  int child(int module, const std::string& name) const {
    for (const int each : scopes_.modules[at(module)].children) {
      if (scopes_.modules[at(each)].name == name) return each;
    }
    return -1;
  }

  /// The module that the path's component is, where it is an element of a list; -1 for another.
  int element_module(const Use& use, int place) const {
    int module = use.module;
    for (int i = 0; i < place && module >= 0; ++i) module = child(module, use.path[at(i)]);
    if (module < 0 || !scopes_.modules[at(module)].is_list) return -1;
    return child(module, use.path[at(place)]);
  }

  std::optional<std::pair<int, int>> made_in(int value, int begin, int length) const {
    const auto found = made_.find(value);
    if (found == made_.end() || found->second.first < begin ||
        found->second.first >= begin + length) {
      return std::nullopt;
    }
    return std::pair{found->second.first - begin, found->second.second};
  }

  /// How often nodes[i, i + k) repeats with indices that advance by one.
  Match match(const std::vector<Node>& nodes, const std::vector<int>& ids, size_t i,
              size_t k) const {
    Match result;
    for (size_t p = 0; p < k; ++p) {
      if (ids[i + p] != ids[i + k + p]) return result;
    }
    const int base = nodes[i].first_leaf;
    int length = 0;
    std::vector<std::pair<const Use*, int>> first;
    for (size_t p = 0; p < k; ++p) {
      collect_uses(nodes[i + p], base, first);
      length += nodes[i + p].num_leaves;
      result.calls |= has_calls(nodes[i + p]);
    }
    result.slots.resize(first.size());
    for (int t = 1; i + (static_cast<size_t>(t) + 1) * k <= nodes.size(); ++t) {
      const size_t start = i + static_cast<size_t>(t) * k;
      std::vector<std::pair<const Use*, int>> uses;
      bool same = true;
      for (size_t p = 0; p < k && same; ++p) {
        same = ids[start + p] == ids[i + p];
        if (same) collect_uses(nodes[start + p], base + t * length, uses);
      }
      if (!same || uses.size() != first.size()) break;
      for (size_t q = 0; q < uses.size() && same; ++q) {
        same = fits(*first[q].first, *uses[q].first, first[q].second, t, base, length,
                    result.slots[q], result);
      }
      if (!same) break;
      result.count = t + 1;
    }
    return result;
  }

  /// Whether a use of iteration t follows from the first iteration's; at t = 1 decides how.
  bool fits(const Use& first, const Use& other, int leaf, int t, int base, int length, Slot& slot,
            Match& match) const {
    Slot found;
    if (first.has_path != other.has_path || first.entity.is_module != other.entity.is_module) {
      return false;
    }
    if (first.has_path) {
      int place = -1;
      if (first.variable != other.variable || first.path.size() != other.path.size()) return false;
      for (size_t i = 0; i < first.path.size(); ++i) {
        if (first.path[i] == other.path[i]) continue;
        if (place >= 0 || !is_digits(first.path[i]) || !is_digits(other.path[i])) return false;
        place = static_cast<int>(i);
      }
      if (place >= 0) {
        if (std::stoi(other.path[at(place)]) != std::stoi(first.path[at(place)]) + t) return false;
        if (t == 1 && element_module(first, place) < 0) return false;
        found.kind = Slot::Kind::kIndexed;
        found.place = place;
        match.indexed = true;
      }
    } else if (first.entity.is_module) {
      if (!(first.entity == other.entity)) return false;
    } else if (other.variable >= 0) {
      if (first.variable != other.variable) return false;
    } else {
      // What an outer loop's variable holds may start what this one hands on.
      const int a = first.variable >= 0 ? -1 : first.entity.index;
      const int b = other.entity.index;
      const auto in_first = made_in(a, base, length);
      if (const auto inner = made_in(b, base + t * length, length)) {
        if (in_first != inner) return false;
        found.kind = Slot::Kind::kInternal;
      } else if (const auto before = made_in(b, base + (t - 1) * length, length)) {
        if (in_first) return false;
        found.kind = Slot::Kind::kCarried;
        found.source = *before;
        const auto [entry, fresh] =
            match.carried.emplace(*before, typename Match::Start{first, -1});
        const Use& initial = entry->second.initial;
        if (!(initial.entity == first.entity) || initial.variable != first.variable) return false;
        if (t > 1 && fresh) return false;
        entry->second.last_old = std::max(entry->second.last_old, leaf);
      } else if (a == b) {
        if (in_first) return false;
      } else {
        const Element* ea = element(f_, a);
        const Element* eb = element(f_, b);
        if (ea == nullptr || eb == nullptr || ea->list != eb->list || eb->index != ea->index + t) {
          return false;
        }
        found.kind = Slot::Kind::kElement;
        match.indexed = true;
      }
    }
    if (t == 1) slot = found;
    return slot == found;
  }

  bool read_outside(int value, int begin, int end) const {
    const auto found = read_at_.find(value);
    return read_later_.contains(value) ||
           (found != read_at_.end() &&
            std::any_of(found->second.begin(), found->second.end(),
                        [&](int leaf) { return leaf < begin || leaf >= end; }));
  }

  void find_loops(std::vector<Node>& nodes) {
    std::unordered_map<std::string, int> interned;
    std::vector<int> ids;
    for (const Node& node : nodes) {
      std::string key;
      add_signature(node, key);
      ids.push_back(interned.emplace(key, static_cast<int>(interned.size())).first->second);
    }
    std::vector<size_t> next(nodes.size(), nodes.size());
    std::vector<size_t> latest(interned.size(), nodes.size());
    for (size_t i = nodes.size(); i-- > 0;) {
      next[i] = latest[at(ids[i])];
      latest[at(ids[i])] = i;
    }
    constexpr int kPeriods = 32;
    std::vector<Node> result;
    for (size_t i = 0; i < nodes.size();) {
      // Of all periods the one that covers most: an outer loop before the inner one.
      std::vector<std::pair<size_t, size_t>> candidates;  // statements covered, period
      int tries = 0;
      for (size_t j = next[i]; j < nodes.size() && tries < kPeriods; j = next[j], ++tries) {
        const size_t k = j - i;
        if (j + k > nodes.size()) break;
        const Match found = match(nodes, ids, i, k);
        if (found.count < 2 || !(found.indexed || found.calls)) continue;
        candidates.emplace_back(k * static_cast<size_t>(found.count), k);
      }
      std::stable_sort(candidates.begin(), candidates.end(),
                       [](const auto& a, const auto& b) { return a.first > b.first; });
      size_t taken = 0;
      for (const auto& [covered, k] : candidates) {
        Node loop;
        if (!make_loop(nodes, i, k, match(nodes, ids, i, k), loop)) continue;
        result.push_back(std::move(loop));
        taken = covered;
        break;
      }
      if (taken == 0) {
        result.push_back(std::move(nodes[i]));
        taken = 1;
      }
      i += taken;
    }
    nodes = std::move(result);
    for (Node& node : nodes) find_loops(node.children);
  }

  bool make_loop(std::vector<Node>& nodes, size_t i, size_t k, const Match& found, Node& loop) {
    const int base = nodes[i].first_leaf;
    int length = 0;
    for (size_t p = 0; p < k; ++p) length += nodes[i + p].num_leaves;
    const int end = base + length * found.count;
    std::vector<std::vector<Result>> results(at(found.count));  // of each iteration
    for (int t = 0; t < found.count; ++t) {
      for (size_t p = 0; p < k; ++p) {
        collect_results(nodes[i + static_cast<size_t>(t) * k + p], base + t * length,
                        results[at(t)]);
      }
    }
    std::vector<size_t> collected;
    std::vector<int> later;
    for (size_t r = 0; r < results[0].size(); ++r) {
      bool collect = false;
      for (int t = 0; t < found.count; ++t) {
        const int value = results[at(t)][r].value;
        if (value < 0 || !read_outside(value, base, end)) continue;
        later.push_back(results[0][r].value);
        collect |= t + 1 < found.count;
        // A list of lists, or of what an outer loop hands on: left as it is.
        if (collect && (read_later_.contains(value) || f_.element_of.contains(value))) return false;
      }
      if (collect) collected.push_back(r);
    }

    Loop made;
    made.count = found.count;
    loop.kind = Node::Kind::kLoop;
    loop.index = static_cast<int>(f_.loops.size());
    loop.first_leaf = base;
    loop.num_leaves = end - base;
    for (size_t p = 0; p < k; ++p) loop.children.push_back(std::move(nodes[i + p]));
    read_later_.insert(later.begin(), later.end());
    std::map<std::pair<int, int>, int> value_of;
    for (const Result& each : results[0]) value_of[each.place] = each.value;
    for (int t = 1; t < found.count; ++t) {
      for (size_t r = 0; r < results[0].size(); ++r) {
        const int value = results[at(t)][r].value;
        if (value < 0) continue;
        f_.canonical[value] = results[0][r].value;
        f_.element_of.erase(value);
      }
    }
    for (const size_t r : collected) {
      const int list = fresh();
      f_.variables[at(list)].size = found.count;
      const int first = results[0][r].value;
      collected_.insert(first);
      for (int t = 0; t < found.count; ++t) {
        auto& elements = t + 1 < found.count ? f_.element_of : f_.also_element_of;
        elements[results[at(t)][r].value] = {list, t};
      }
      made.collected.push_back({first, list});
    }
    for (const auto& [place, start] : found.carried) {
      Loop::Carried carried;
      carried.value = value_of.at(place);
      carried.initial = start.initial;
      carried.separate = start.last_old > place.first;
      const auto variable = f_.variable_of.find(carried.value);
      if (carried.separate || variable == f_.variable_of.end()) {
        carried.variable = fresh();
      } else {
        carried.variable = variable->second;
      }
      if (!carried.separate) f_.variable_of[carried.value] = carried.variable;
      read_later_.insert(carried.value);
      made.carried.push_back(std::move(carried));
    }
    size_t slot = 0;
    for (Node& each : loop.children) rewrite(each, found, value_of, slot, made);
    f_.loops.push_back(std::move(made));
    return true;
  }

  /// Turns the first iteration's uses into those of any.
  void rewrite(Node& node, const Match& found, const std::map<std::pair<int, int>, int>& value_of,
               size_t& slot, Loop& loop) {
    for (Use& use : node.uses) {
      const Slot& kind = found.slots[slot++];
      switch (kind.kind) {
        case Slot::Kind::kFixed:
          break;
        case Slot::Kind::kInternal:
          use.inside = collected_.contains(use.entity.index);
          break;
        case Slot::Kind::kCarried: {
          const int value = value_of.at(kind.source);
          for (const Loop::Carried& carried : loop.carried) {
            if (carried.value == value) use.variable = carried.variable;
          }
          break;
        }
        case Slot::Kind::kIndexed: {
          Loop::Iterable iterable;
          iterable.base = use.variable;
          iterable.base_module = use.module;
          iterable.path.assign(use.path.begin(), use.path.begin() + kind.place);
          iterable.start = std::stoi(use.path[at(kind.place)]);
          iterable.module = element_module(use, kind.place);
          use.module = iterable.module;
          use.variable = keep(loop, std::move(iterable));
          use.path.erase(use.path.begin(), use.path.begin() + kind.place + 1);
          break;
        }
        case Slot::Kind::kElement: {
          Loop::Iterable iterable;
          const Element* first = element(f_, use.entity.index);
          iterable.list = first->list;
          iterable.start = first->index;
          use.variable = keep(loop, std::move(iterable));
          break;
        }
      }
    }
    for (Node& each : node.children) rewrite(each, found, value_of, slot, loop);
  }

  int keep(Loop& loop, Loop::Iterable iterable) {
    for (const Loop::Iterable& each : loop.iterables) {
      if (each.list == iterable.list && each.base == iterable.base && each.path == iterable.path &&
          each.start == iterable.start) {
        return each.variable;
      }
    }
    iterable.variable = fresh();
    loop.iterables.push_back(std::move(iterable));
    return loop.iterables.back().variable;
  }

  // Variables and their hints.

  int canonical(int value) const {
    for (auto found = f_.canonical.find(value); found != f_.canonical.end();
         found = f_.canonical.find(value)) {
      value = found->second;
    }
    return value;
  }

  void make_variables(std::vector<Node>& nodes) {
    for (Node& node : nodes) {
      for (int& value : node.results) {
        if (value < 0) continue;
        if (!needed_.contains(value)) {
          value = -1;
        } else if (!f_.variable_of.contains(value) &&
                   (!f_.element_of.contains(value) || collected_.contains(value))) {
          f_.variable_of[value] = fresh();
        }
      }
      make_variables(node.children);
    }
  }

  void hint(int value, const std::string& text) {
    const auto found = f_.variable_of.find(value);
    if (found != f_.variable_of.end() && f_.variables[at(found->second)].hint.empty()) {
      f_.variables[at(found->second)].hint = text;
    }
    const auto element = f_.element_of.find(value);
    if (element == f_.element_of.end()) return;
    std::string& list = f_.variables[at(element->second.list)].hint;
    const std::string one = text.starts_with("=") ? operator_fallback(value) : text;
    if (list.empty()) list = one + (one.ends_with("s") ? "_list" : "s");
  }

  /// Names by the line that made a value. What a line hands to others has the line's targets as its
  /// names, in order; what it keeps is named by the operator, or after what it is a view of.
  void give_hints(const std::vector<Node>& nodes) {
    for (size_t n = 0; n < nodes.size();) {
      const Node& node = nodes[n];
      if (node.kind == Node::Kind::kBlock || node.kind == Node::Kind::kLoop) {
        give_hints(node.children);
        if (node.kind == Node::Kind::kLoop) hint_loop(f_.loops[at(node.index)]);
        ++n;
        continue;
      }
      const SourceLine* line = line_of(node);
      size_t end = n + 1;
      while (end < nodes.size() &&
             (is_redistribution(nodes[end]) || same_line(line_of(nodes[end]), line))) {
        ++end;
      }
      hint_line(nodes, n, end, line);
      n = end;
    }
  }

  void hint_line(const std::vector<Node>& nodes, size_t begin, size_t end, const SourceLine* line) {
    std::vector<std::string> targets;
    if (line != nullptr) targets = assigned_names(line->text);
    std::erase_if(targets, [](const std::string& name) { return name.empty() || name == "_"; });
    const int first = nodes[begin].first_leaf;
    const int last = nodes[end - 1].first_leaf + 1;
    std::vector<int> leaving;
    std::set<int> moved;  // redistributions of what the line makes and nobody else reads
    for (size_t n = begin; n < end; ++n) {
      if (is_redistribution(nodes[n])) {
        const Use& source = nodes[n].uses[0];
        const auto made = made_.find(source.entity.index);
        if (source.has_path || source.variable >= 0 || made == made_.end() ||
            made->second.first < first || leaves(source.entity.index, first, last)) {
          continue;
        }
        moved.insert(nodes[n].index);
      }
      for (const int value : nodes[n].results) {
        if (value >= 0 && leaves(value, first, last)) leaving.push_back(value);
      }
    }
    for (size_t n = end; n-- > begin;) {
      const Node& node = nodes[n];
      const auto used = std::count_if(node.results.begin(), node.results.end(),
                                      [](int value) { return value >= 0; });
      if (is_redistribution(node) && !moved.contains(node.index)) {
        if (node.results[0] >= 0) hint(node.results[0], redistribution_hint(node));
        continue;
      }
      for (const int value : node.results) {
        if (value < 0) continue;
        std::string text;
        const auto place = std::find(leaving.begin(), leaving.end(), value);
        const auto index = static_cast<size_t>(place - leaving.begin());
        if (place != leaving.end()) {
          if (node.kind == Node::Kind::kCall && used > 1) {
            text = source_hint(scopes_, value, node.index, true);  // the order of results is ours
          } else if (leaving.size() <= targets.size()) {
            text = size_hint(node, line);
            if (text.empty()) text = targets[index];
          } else if (targets.size() == 1 && used == 1 && index + 1 == leaving.size()) {
            text = targets[0];
          }
        } else {
          text = handed_on(nodes, n, end, value);
        }
        if (text.empty()) {
          hint(value, fallback(node, value));
          continue;
        }
        hint(value, text);
        const auto own = f_.variable_of.find(value);
        if (own != f_.variable_of.end()) from_source_.insert(own->second);
      }
    }
  }

  /// `batch, length = x.shape`: by the dim.
  std::string size_hint(const Node& node, const SourceLine* line) const {
    if (node.kind != Node::Kind::kOp || scopes_.op(node.index).target != "aten.sym_size.int")
      return "";
    const Argument* dim = scopes_.op(node.index).find("dim");
    const std::vector<std::string> names = assigned_names(line->text);
    const auto* number = dim == nullptr ? nullptr : std::get_if<int64_t>(&dim->value);
    if (number == nullptr || *number < 0 || static_cast<size_t>(*number) >= names.size()) return "";
    return names.size() > 1 ? names[static_cast<size_t>(*number)] : "";
  }

  /// Whether anything but statements [first, last) reads a value.
  bool leaves(int value, int first, int last) const {
    const auto found = read_at_.find(value);
    return read_later_.contains(value) ||
           (found != read_at_.end() &&
            std::any_of(found->second.begin(), found->second.end(),
                        [&](int leaf) { return leaf < first || leaf >= last; }));
  }

  /// The name of a view of the value that the same line makes, when that is all the line does with
  /// it.
  std::string handed_on(const std::vector<Node>& nodes, size_t n, size_t end, int value) const {
    const auto readers = read_at_.find(value);
    if (readers == read_at_.end() || readers->second.size() != 1) return "";
    for (size_t m = n + 1; m < end; ++m) {
      const Node& reader = nodes[m];
      if (reader.first_leaf != readers->second[0]) continue;
      if (reader.kind != Node::Kind::kOp || !is_view(scopes_.op(reader.index)) ||
          reader.results.size() != 1 || reader.results[0] < 0 ||
          reader.uses[0].entity.index != value) {
        return "";
      }
      const auto next = f_.variable_of.find(reader.results[0]);
      return next != f_.variable_of.end() && from_source_.contains(next->second)
                 ? f_.variables[at(next->second)].hint
                 : "";
    }
    return "";
  }

  /// By the operator, or what it is a view of; of a call by what its own source calls it, or by its
  /// class.
  std::string fallback(const Node& node, int value) const {
    if (node.kind == Node::Kind::kCall) {
      const Call& inner = scopes_.calls[at(node.index)];
      const std::string own = source_hint(scopes_, value, node.index, true);
      if (!own.empty()) return own;
      if (!inner.segment) {
        Frame frame;
        frame.class_name = scopes_.modules[at(inner.module)].class_name;
        return last_word(frame.short_class());
      }
    } else if (is_view(scopes_.op(node.index)) && !node.uses.empty() && !node.uses[0].has_path &&
               node.uses[0].variable < 0 && !f_.element_of.contains(node.uses[0].entity.index)) {
      return "=" + std::to_string(node.uses[0].entity.index);
    }
    return operator_fallback(value);
  }
  std::string operator_fallback(int value) const {
    const Value& made = scopes_.value(value);
    return operator_hint(scopes_, made.producer.index, made.output_index);
  }

  bool is_redistribution(const Node& node) const {
    return node.kind == Node::Kind::kOp && scopes_.program->redistributions.contains(node.index);
  }

  std::string redistribution_hint(const Node& node) const {
    const Use& source = node.uses[0];
    // The source's name, which is known only when names are given.
    if (!source.has_path) return "=" + std::to_string(source.entity.index);
    const size_t count = source.path.size();
    std::string name = source.path.back();
    if (count > 1 && (name == "weight" || name == "bias") && !is_digits(source.path[count - 2])) {
      name = source.path[count - 2] + "_" + name;
    }
    return safe_name(name);
  }

  const SourceLine* line_of(const Node& node) const {
    if (node.kind != Node::Kind::kOp && node.kind != Node::Kind::kCall) return nullptr;
    return node_line(scopes_, node, call_.frame);
  }

  void hint_loop(const Loop& loop) {
    for (const Loop::Iterable& each : loop.iterables) {
      Variable& variable = f_.variables[at(each.variable)];
      if (each.list >= 0) {
        const std::string& list = f_.variables[at(each.list)].hint;
        variable.hint = list.empty() ? "item" : singular(list, "item");
        continue;
      }
      Frame frame;
      frame.class_name = scopes_.modules[at(each.module)].class_name;
      const std::string by_class =
          frame.class_name.empty() ? "module" : last_word(frame.short_class());
      const std::string name = each.path.empty() ? "" : each.path.back();
      variable.hint =
          name.empty() || is_digits(name) ? by_class : singular(safe_name(name), by_class);
    }
    for (const Loop::Carried& each : loop.carried) {
      std::string& carried = f_.variables[at(each.variable)].hint;
      if (!carried.empty()) continue;
      const auto value = f_.variable_of.find(each.value);
      if (value != f_.variable_of.end()) carried = f_.variables[at(value->second)].hint;
      if (carried.empty()) carried = operator_fallback(each.value);
    }
  }

  /// Results of the function: runs that fill a list become one.
  void group_results() {
    if (f_.call == 0) return;
    for (size_t i = 0; i < outputs_.size();) {
      const size_t length = list_run(f_, outputs_, i);
      ResultItem item;
      item.is_list = length > 0;
      for (size_t n = 0; n < std::max<size_t>(length, 1); ++n) {
        item.outputs.push_back(static_cast<int>(i + n));
      }
      f_.results.push_back(std::move(item));
      i += std::max<size_t>(length, 1);
    }
  }

 public:
  static const Element* element(const Function& f, int value) {
    if (value < 0) return nullptr;
    if (const auto found = f.element_of.find(value); found != f.element_of.end()) {
      return &found->second;
    }
    const auto found = f.also_element_of.find(value);
    return found == f.also_element_of.end() ? nullptr : &found->second;
  }

  /// How many of the values from i on are exactly the elements of one list; 0 for none.
  static size_t list_run(const Function& f, const std::vector<int>& values, size_t i) {
    const Element* first = element(f, values[i]);
    if (first == nullptr || first->index != 0) return 0;
    const auto size = static_cast<size_t>(f.variables[at(first->list)].size);
    if (i + size > values.size()) return 0;
    for (size_t n = 1; n < size; ++n) {
      const Element* other = element(f, values[i + n]);
      if (other == nullptr || other->list != first->list || other->index != static_cast<int>(n)) {
        return 0;
      }
    }
    return size;
  }

 private:
  const Classes& classes_;
  const Scopes& scopes_;
  const std::vector<std::vector<Function>>& functions_;
  Function& f_;
  const Call& call_;
  int leaves_ = 0;
  std::vector<int> outputs_;
  std::unordered_map<int, std::pair<int, int>> made_;  ///< Value -> statement, result.
  std::unordered_map<int, std::vector<int>> read_at_;  ///< Value -> statements.
  std::set<int> read_later_;  ///< Of a loop's first iteration: read by the next, or after the loop.
  std::set<int> collected_;   ///< Of a loop's first iteration: gathered in a list.
  std::set<int> from_source_;  ///< Variables that the user's source names.
  std::set<int> needed_;       ///< Values, as the first iteration makes them, that anybody reads.
};

// Names.

namespace {

/// Finds out when each variable is written first and read last.
class Lives {
 public:
  explicit Lives(Function& f) : f_(f) {}

  void run() {
    for (const int parameter : f_.parameters) define(parameter, 0);
    walk(f_.nodes);
    ++clock_;
  }

  void touch(int variable) {
    Variable& each = f_.variables[at(variable)];
    each.last = std::max(each.last, clock_);
    for (std::vector<int>& loop : loops_) loop.push_back(variable);
  }
  void read(int value) {
    if (value >= 0) touch(f_.place_of(value).variable);
  }

 private:
  void define(int variable, int when) {
    Variable& each = f_.variables[at(variable)];
    if (each.defined < 0) each.defined = when;
  }

  void touch(const Use& use) {
    if (use.variable >= 0) {
      touch(use.variable);
    } else if (!use.has_path) {
      touch(use.entity.is_module ? f_.variable_of_module.at(use.entity.index)
                                 : f_.place_of(use.entity.index, use.inside).variable);
    }
  }

  void walk(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      if (node.kind == Node::Kind::kBlock) {
        walk(node.children);
        continue;
      }
      ++clock_;
      if (node.kind != Node::Kind::kLoop) {
        for (const Use& use : node.uses) touch(use);
        for (const int value : node.results) {
          if (value < 0) continue;
          const auto own = f_.variable_of.find(value);
          define(own != f_.variable_of.end() ? own->second : f_.element_of.at(value).list, clock_);
        }
        continue;
      }
      const Loop& loop = f_.loops[at(node.index)];
      const int head = clock_;
      for (const Loop::Carried& each : loop.carried) touch(each.initial);
      for (const Loop::Iterable& each : loop.iterables) {
        if (each.list >= 0) touch(each.list);
        if (each.base >= 0) touch(each.base);
      }
      for (const Loop::Carried& each : loop.carried) define(each.variable, head);
      for (const Loop::Iterable& each : loop.iterables) define(each.variable, head);
      for (const Loop::Collected& each : loop.collected) define(each.variable, head);
      loops_.emplace_back();
      walk(node.children);
      ++clock_;
      for (const Loop::Collected& each : loop.collected) {
        touch(f_.place_of(each.value, true).variable);
        touch(each.variable);
      }
      for (const Loop::Carried& each : loop.carried) {
        touch(each.variable);
        if (each.separate) touch(f_.place_of(each.value, true).variable);
      }
      for (const Loop::Iterable& each : loop.iterables) {
        touch(each.variable);
        if (each.list >= 0) touch(each.list);
        if (each.base >= 0) touch(each.base);
      }
      // What was there before the loop is needed in every iteration.
      std::vector<int> touched = std::move(loops_.back());
      loops_.pop_back();
      for (const int variable : touched) {
        if (f_.variables[at(variable)].defined <= head) touch(variable);
      }
    }
  }

  Function& f_;
  int clock_ = 0;
  std::vector<std::vector<int>> loops_;
};

}  // namespace

Bodies::Bodies(const Classes& classes, Speller& speller, const std::vector<RootInput>& inputs,
               std::set<std::string> reserved)
    : classes_(classes),
      scopes_(*classes.scopes),
      speller_(speller),
      reserved_(std::move(reserved)) {
  for (size_t i = 0; i < scopes_.modules.size(); ++i) {
    module_ids_.emplace(scopes_.modules[i].path, static_cast<int>(i));
  }
  functions_.resize(classes.classes.size());
  std::vector<Function*> order;
  for (size_t i = 0; i < classes.classes.size(); ++i) {
    const Class& each = classes.classes[i];
    functions_[i].resize(each.methods.size());
    // Recomputed stretches, the inner ones last, come before the functions that call them.
    for (size_t m = each.methods.size(); m-- > 0;) {
      Function& f = functions_[i][m];
      f.class_index = static_cast<int>(i);
      f.method = static_cast<int>(m);
      f.call = each.methods[m].call;
      if (f.call == 0) {
        for (const RootInput& input : inputs) {
          f.variables.push_back({input.name, input.fixed ? input.name : "", -1, -1, 0});
          if (input.value < 0) continue;
          f.variable_of[input.value] = static_cast<int>(f.variables.size()) - 1;
          f.parameters.push_back(static_cast<int>(f.variables.size()) - 1);
        }
      }
      BodyBuilder(classes, functions_, f).run();
      order.push_back(&f);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](const Function* a, const Function* b) {
    const Call& ca = scopes_.calls[at(a->call)];
    const Call& cb = scopes_.calls[at(b->call)];
    return ca.begin != cb.begin ? ca.begin < cb.begin : ca.end > cb.end;
  });
  // Of functions that begin at the same operator the outer one comes first; equal runs by depth.
  const auto depth = [&](const Function* f) {
    int count = 0;
    for (int c = f->call; c >= 0; c = scopes_.calls[at(c)].parent) ++count;
    return count;
  };
  std::stable_sort(order.begin(), order.end(), [&](const Function* a, const Function* b) {
    const int ba = scopes_.calls[at(a->call)].begin, bb = scopes_.calls[at(b->call)].begin;
    return ba != bb ? ba < bb : depth(a) < depth(b);
  });
  for (Function* f : order) {
    name(*f);
    pass_names(*f, f->nodes);
  }
}

void Bodies::name(Function& f) {
  Lives lives(f);
  lives.run();
  if (f.call == 0) {
    for (const int value : scopes_.outputs) {
      if (value >= 0 && scopes_.owner[at(value)] < 0) lives.read(value);
    }
  } else {
    const Method& method = classes_.classes[at(f.class_index)].methods[at(f.method)];
    for (const ResultItem& item : f.results) {
      const Output& output = method.outputs[at(item.outputs[0])];
      const int op = scopes_.order[at(scopes_.calls[at(f.call)].begin + output.offset)];
      const int value = scopes_.op(op).outputs[at(output.index)].index;
      if (item.is_list) {
        const auto element = f.element_of.find(value);
        lives.touch(element->second.list);
      } else {
        lives.read(value);
      }
    }
  }
  std::vector<int> order(f.variables.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return f.variables[at(a)].defined < f.variables[at(b)].defined;
  });
  struct Holder {
    int defined, last;
  };
  std::unordered_map<std::string, Holder> holders;
  std::set<std::string> of_parameters;
  for (const Variable& each : f.variables) {
    if (each.name.empty()) continue;
    holders[each.name] = {0, each.last};
    of_parameters.insert(each.name);
  }
  // A loop's variable does not take a parameter's name, though nobody reads that any more.
  std::set<int> of_loops;
  for (const Loop& loop : f.loops) {
    for (const Loop::Iterable& each : loop.iterables) of_loops.insert(each.variable);
  }
  for (const int index : order) {
    Variable& variable = f.variables[at(index)];
    if (variable.defined < 0 || !variable.name.empty()) continue;
    std::string hint = variable.hint;
    if (hint.starts_with("=")) {  // after another value
      hint = f.variables[at(f.place_of(std::stoi(hint.substr(1)), true).variable)].name;
      while (!hint.empty() && hint.back() >= '0' && hint.back() <= '9') hint.pop_back();
      while (hint.size() > 1 && hint.back() == '_') hint.pop_back();
    }
    if (hint.empty()) hint = "x";
    hint = safe_name(hint);
    std::string candidate = hint;
    for (int count = 1;; ++count) {
      const auto holder = holders.find(candidate);
      const bool free = holder == holders.end() || (holder->second.last <= variable.defined &&
                                                    holder->second.defined < variable.defined);
      const bool taken = of_loops.contains(index) && of_parameters.contains(candidate);
      if (free && !taken && !reserved_.contains(candidate)) break;
      candidate = hint + "_" + std::to_string(count);
    }
    variable.name = candidate;
    if (variable.defined == 0) of_parameters.insert(candidate);
    holders[candidate] = {variable.defined, std::max(variable.last, variable.defined)};
  }
}

/// Parameters of a function are called what its first caller calls them.
void Bodies::pass_names(const Function& f, const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    pass_names(f, node.children);
    if (node.kind != Node::Kind::kCall) continue;
    const Call& inner = scopes_.calls[at(node.index)];
    Function& callee =
        functions_[at(classes_.class_of[at(inner.module)])][at(classes_.method_of[at(node.index)])];
    if (callee.call != node.index) continue;
    const size_t skip = inner.segment ? 0 : 1;
    for (size_t i = 0; i < callee.parameters.size(); ++i) {
      const Use& use = node.uses[i + skip];
      std::string hint;
      if (use.has_path && !use.path.empty()) {
        hint = use.path.back();
        if (is_digits(hint) || ((hint == "weight" || hint == "bias") && use.path.size() > 1)) {
          const std::string& before = use.path.size() > 1 ? use.path[use.path.size() - 2] : hint;
          hint = is_digits(hint) ? singular(before, before) : before + "_" + hint;
        }
      } else if (use.variable >= 0) {
        hint = f.variables[at(use.variable)].name;
      } else if (use.entity.is_module) {
        hint = f.variables[at(f.variable_of_module.at(use.entity.index))].name;
      } else {
        const int variable = f.place_of(use.entity.index, use.inside).variable;
        hint = f.variables[at(variable)].name;
        if (f.variables[at(variable)].size > 0) hint = singular(hint, hint);
      }
      // A number that only told two names apart in the caller says nothing here.
      const size_t mark = hint.find_last_not_of("0123456789");
      if (mark != std::string::npos && mark + 1 < hint.size() && mark > 0 && hint[mark] == '_') {
        hint = hint.substr(0, mark);
      }
      callee.variables[at(callee.parameters[i])].hint = hint;
    }
  }
}

std::vector<std::string> Bodies::parameters(int class_index, int method) const {
  const Function& f = function(class_index, method);
  std::vector<std::string> names;
  for (const int parameter : f.parameters) names.push_back(f.variables[at(parameter)].name);
  return names;
}

// Text.

std::string Bodies::path_text(const std::string& self, int module,
                              const std::vector<std::string>& path) const {
  std::string text = self;
  for (const std::string& part : path) {
    const bool list = module >= 0 && scopes_.modules[at(module)].is_list;
    if (list && is_digits(part)) {
      text += "[" + part + "]";
    } else if (python::is_identifier(part)) {
      text += "." + part;
    } else {
      text = "getattr(" + text + ", " + python::quote(part) + ")";
    }
    if (module < 0) continue;
    const std::string& base = scopes_.modules[at(module)].path;
    const auto found = module_ids_.find(base.empty() ? part : base + "." + part);
    module = found == module_ids_.end() ? -1 : found->second;
  }
  return text;
}

std::string Bodies::value_text(const Function& f, int value, bool inside) const {
  const int owner = scopes_.owner[at(value)];
  if (owner >= 0 && !f.variable_of.contains(value)) {
    std::vector<std::string> path;
    const int base = scopes_.calls[at(f.call)].module;
    const std::string& prefix = scopes_.modules[at(base)].path;
    const std::string& whole = scopes_.modules[at(owner)].path;
    if (whole.size() > prefix.size()) {
      path = split(whole.substr(prefix.empty() ? 0 : prefix.size() + 1), '.');
    }
    path.push_back(scopes_.attribute[at(value)]);
    return path_text("self", base, path);
  }
  const Function::Place place = f.place_of(value, inside);
  const std::string& name = f.variables[at(place.variable)].name;
  return place.index < 0 ? name : name + "[" + std::to_string(place.index) + "]";
}

std::string Bodies::text(const Function& f, const Use& use) const {
  if (use.variable >= 0) {
    const std::string& name = f.variables[at(use.variable)].name;
    return use.has_path ? path_text(name, use.module, use.path) : name;
  }
  if (use.has_path) return path_text("self", use.module, use.path);
  if (use.entity.is_module) {
    return f.variables[at(f.variable_of_module.at(use.entity.index))].name;
  }
  return value_text(f, use.entity.index, use.inside);
}

/// Text for values, where those that fill a list are that list, starred.
std::vector<std::string> Bodies::run_text(const Function& f, const std::vector<int>& values) const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < values.size();) {
    const size_t length = BodyBuilder::list_run(f, values, i);
    if (length == 0) {
      texts.push_back(values[i] < 0 ? "None" : value_text(f, values[i]));
      ++i;
      continue;
    }
    texts.push_back("*" + f.variables[at(BodyBuilder::element(f, values[i])->list)].name);
    i += length;
  }
  return texts;
}

std::string Bodies::root_name(int value) const {
  const Function& f = function(classes_.class_of[0], 0);
  const Variable& variable = f.variables[at(f.variable_of.at(value))];
  return variable.last < 0 ? "" : variable.name;
}

std::vector<std::string> Bodies::root_values(const std::vector<int>& values) const {
  const int index = classes_.class_of[0];
  return run_text(function(index, 0), values);
}

/// The last statement, where all that it makes is what the function returns.
const Node* Bodies::returned(const Function& f) const {
  if (f.nodes.empty() || (f.call != 0 && f.results.empty())) return nullptr;
  const Node& node = f.nodes.back();
  if (node.kind != Node::Kind::kOp && node.kind != Node::Kind::kCall) return nullptr;
  const Method& method = classes_.classes[at(f.class_index)].methods[at(f.method)];
  if (node.kind == Node::Kind::kOp && node.results.size() != 1) return nullptr;
  std::vector<int> values;
  for (const Output& output : method.outputs) {
    const int op = scopes_.order[at(scopes_.calls[at(f.call)].begin + output.offset)];
    values.push_back(scopes_.op(op).outputs[at(output.index)].index);
  }
  if (f.call == 0) values = scopes_.outputs;
  return values == node.results ? &node : nullptr;
}

bool Bodies::print(python::Writer& writer, int class_index, int method, int indent, bool single) {
  const Function& f = function(class_index, method);
  last_source_ = nullptr;
  last_ = single ? returned(f) : nullptr;
  print_nodes(writer, f, f.nodes, indent);
  if (f.call == 0 || last_ != nullptr) return last_ != nullptr;
  std::vector<std::string> items;
  const Method& described = classes_.classes[at(class_index)].methods[at(method)];
  for (const ResultItem& item : f.results) {
    const Output& output = described.outputs[at(item.outputs[0])];
    const int op = scopes_.order[at(scopes_.calls[at(f.call)].begin + output.offset)];
    const int value = scopes_.op(op).outputs[at(output.index)].index;
    items.push_back(item.is_list ? f.variables[at(f.element_of.at(value).list)].name
                                 : value_text(f, value));
  }
  if (!items.empty()) writer.statement(indent, "return " + join(items, ", "));
  return true;
}

void Bodies::print_nodes(python::Writer& writer, const Function& f, const std::vector<Node>& nodes,
                         int indent) {
  for (size_t i = 0; i < nodes.size();) {
    const Node& node = nodes[i];
    switch (node.kind) {
      case Node::Kind::kOp:
        print_op(writer, f, nodes, i, indent);
        break;
      case Node::Kind::kCall:
        print_call(writer, f, node, indent);
        ++i;
        break;
      case Node::Kind::kBlock:
        print_block(writer, f, node, indent);
        ++i;
        break;
      case Node::Kind::kLoop:
        print_loop(writer, f, node, indent);
        ++i;
        break;
    }
  }
}

const SourceLine* Bodies::source_of(const Function& f, const Node& node) const {
  return node_line(scopes_, node, scopes_.calls[at(f.call)].frame);
}

void Bodies::print_source(python::Writer& writer, const Function& f, const Node& node, int indent) {
  const SourceLine* line = source_of(f, node);
  if (line == nullptr || line->text.empty()) return;
  if (last_source_ != nullptr && last_source_->file == line->file &&
      last_source_->line == line->line) {
    return;
  }
  last_source_ = line;
  std::string text;
  for (const char c : line->text) text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  // A comment of the user's might mean something to a tool.
  if (const size_t comment = text.find("  #"); comment != std::string::npos) text.resize(comment);
  writer.comment(indent,
                 line->file.substr(line->file.rfind('/') + 1) + ":" + std::to_string(line->line) +
                     ": " + strip(text),
                 true);
}

std::string Bodies::number_text(const Function& f, int op, int argument, int element,
                                const std::string& literal) const {
  const std::vector<Hole> holes = holes_of(scopes_.op(op));
  for (size_t i = 0; i < holes.size(); ++i) {
    if (holes[i].argument != argument || holes[i].element != element) continue;
    const Class& each = classes_.classes[at(f.class_index)];
    const int index = each.argument_of[at(classes_.op_numbers[at(op)]) + i];
    return index < 0 ? literal : "self." + each.arguments[at(index)].name;
  }
  return literal;
}

/// `first` stands for the first argument, where it is an expression and no name.
Speller::Result Bodies::spell(const Function& f, const Node& node, const std::string* first) {
  const std::vector<Operand>& operands = scopes_.operands[at(node.index)];
  Context context;
  context.operand = [&](int argument, int element) {
    if (first != nullptr && argument == 0) return *first;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].argument == argument && operands[i].element == element) {
        return text(f, node.uses[i]);
      }
    }
    return std::string("None");
  };
  context.number = [&](int argument, int element, const std::string& literal) {
    return number_text(f, node.index, argument, element, literal);
  };
  context.list = [&](int argument) -> std::optional<std::string> {
    std::vector<int> values;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].argument != argument) continue;
      const Use& use = node.uses[i];
      values.push_back(use.has_path || use.variable >= 0 ? -1 : use.entity.index);
    }
    if (values.empty()) return std::nullopt;
    const size_t length = BodyBuilder::list_run(f, values, 0);
    if (length != values.size() || length == 0) return std::nullopt;
    return f.variables[at(f.element_of.at(values[0]).list)].name;
  };
  return speller_.spell(scopes_, node.index, context);
}

/// "x = text", "a, _ = text", "return text"
std::string Bodies::assigned(const Function& f, const Node& node, const std::string& text) const {
  const std::string whole =
      scopes_.op(node.index).output_is_list && node.results.size() == 1 ? text + "[0]" : text;
  if (&node == last_) return "return " + whole;
  std::vector<std::string> names;
  bool any = false;
  for (const int value : node.results) {
    const auto own = f.variable_of.find(value);
    if (value >= 0 && own == f.variable_of.end()) {  // all of them are elements of a list
      return f.variables[at(f.element_of.at(value).list)].name + " = " + text;
    }
    any |= value >= 0;
    names.push_back(value < 0 ? "_" : f.variables[at(own->second)].name);
  }
  return any ? join(names, ", ") + " = " + whole : text;
}

/// Prints nodes[next] and what can follow it in one line: `x = F.linear(x, w).view(2, -1)`.
void Bodies::print_op(python::Writer& writer, const Function& f, const std::vector<Node>& nodes,
                      size_t& next, int indent) {
  const Program& program = *scopes_.program;
  const auto note = [&](const Node& node) {
    return at(node.index) < program.calls.size() ? program.calls[at(node.index)].note : "";
  };
  const Node* node = &nodes[next++];
  const auto found = program.redistributions.find(node->index);
  const SourceLine* line = nullptr;
  if (found == program.redistributions.end()) {
    print_source(writer, f, *node, indent);
    line = source_of(f, *node);
  } else {
    std::string comment = found->second.reason;
    const int64_t forward = found->second.bytes_forward, backward = found->second.bytes_backward;
    if (forward > 0) comment += "; " + format_bytes(forward) + (backward > 0 ? " forward" : "");
    if (backward > 0) {
      comment += (forward > 0 ? ", " : "; ") + format_bytes(backward) + " backward";
    }
    writer.comment(indent, comment);
  }
  if (!note(*node).empty()) writer.comment(indent, note(*node));
  Speller::Result result = spell(f, *node, nullptr);
  while (next < nodes.size() && result.primary && !result.statement && line != nullptr) {
    const Node& reader = nodes[next];
    if (reader.kind != Node::Kind::kOp || node->results.size() != 1 ||
        !f.read_once.contains(node->results[0]) || program.redistributions.contains(reader.index) ||
        !note(reader).empty() || reader.uses.empty() || reader.uses[0].has_path ||
        reader.uses[0].variable >= 0 || reader.uses[0].entity.index != node->results[0] ||
        scopes_.operands[at(reader.index)][0].argument != 0 ||
        std::holds_alternative<TensorList>(scopes_.op(reader.index).args[0].value) ||
        scopes_.op(node->index).output_is_list || !same_line(source_of(f, reader), line)) {
      break;
    }
    const Speller::Result longer = spell(f, reader, &result.text);
    if (!longer.takes_primary || longer.statement ||
        !python::Writer::fits(indent, assigned(f, reader, longer.text))) {
      break;
    }
    node = &reader;
    ++next;
    result = longer;
  }
  if (result.statement) return writer.statement(indent, result.text);
  writer.statement(indent, assigned(f, *node, result.text));
}

void Bodies::print_call(python::Writer& writer, const Function& f, const Node& node, int indent) {
  print_source(writer, f, node, indent);
  const Call& inner = scopes_.calls[at(node.index)];
  const int class_index = classes_.class_of[at(inner.module)];
  const int method = classes_.method_of[at(node.index)];
  const std::string& method_name = classes_.classes[at(class_index)].methods[at(method)].name;
  const Function& callee = function(class_index, method);
  std::string what = inner.segment ? "self" : text(f, node.uses[0]);
  if (method_name != "forward") what += "." + method_name;
  std::vector<std::string> arguments;
  for (size_t i = inner.segment ? 0 : 1; i < node.uses.size(); ++i) {
    arguments.push_back(text(f, node.uses[i]));
  }
  if (inner.recompute >= 0) {
    arguments.insert(arguments.begin(), what);
    if (!scopes_.graph().regions[at(inner.recompute)].preserve_rng_state) {
      arguments.emplace_back("preserve_rng_state=False");
    }
    what = "rt.checkpoint";
  }
  std::vector<std::string> targets;
  bool any = false;
  size_t next = 0;
  for (const ResultItem& item : callee.results) {
    std::string target = "_";
    for (size_t i = 0; i < item.outputs.size(); ++i) {
      const int value = node.results[next + i];
      if (value < 0) continue;
      any = true;
      target = item.is_list ? f.variables[at(f.element_of.at(value).list)].name
                            : f.variables[at(f.variable_of.at(value))].name;
    }
    next += item.outputs.size();
    targets.push_back(target);
  }
  const std::string call = what + "(" + join(arguments, ", ") + ")";
  if (&node == last_) return writer.statement(indent, "return " + call);
  writer.statement(indent, any ? join(targets, ", ") + " = " + call : call);
}

void Bodies::print_loop(python::Writer& writer, const Function& f, const Node& node, int indent) {
  const Loop& loop = f.loops[at(node.index)];
  for (const Loop::Carried& each : loop.carried) {
    const std::string& name = f.variables[at(each.variable)].name;
    const std::string initial = text(f, each.initial);
    if (name != initial) writer.statement(indent, name + " = " + initial);
  }
  for (const Loop::Collected& each : loop.collected) {
    writer.statement(indent, f.variables[at(each.variable)].name + " = []");
  }
  std::vector<std::string> names, lists;
  for (const Loop::Iterable& each : loop.iterables) {
    names.push_back(f.variables[at(each.variable)].name);
    std::string list;
    int size = 0;
    if (each.list >= 0) {
      list = f.variables[at(each.list)].name;
      size = f.variables[at(each.list)].size;
    } else {
      list = path_text(each.base < 0 ? "self" : f.variables[at(each.base)].name, each.base_module,
                       each.path);
      const Module& holder = scopes_.modules[at(scopes_.modules[at(each.module)].parent)];
      size = std::stoi(scopes_.modules[at(holder.children.back())].name) + 1;
    }
    const int stop = each.start + loop.count;
    if (each.start > 0 || stop < size) {
      list += "[" + (each.start > 0 ? std::to_string(each.start) : "") + ":" +
              (stop < size ? std::to_string(stop) : "") + "]";
    }
    lists.push_back(list);
  }
  std::string head;
  if (lists.empty()) {
    head = "_ in range(" + std::to_string(loop.count) + ")";
  } else if (lists.size() == 1) {
    head = names[0] + " in " + lists[0];
  } else {
    head = join(names, ", ") + " in zip(" + join(lists, ", ") + ")";
  }
  writer.statement(indent, "for " + head + ":");
  print_nodes(writer, f, node.children, indent + 4);
  for (const Loop::Collected& each : loop.collected) {
    writer.statement(indent + 4, f.variables[at(each.variable)].name + ".append(" +
                                     value_text(f, each.value, true) + ")");
  }
  for (const Loop::Carried& each : loop.carried) {
    if (!each.separate) continue;
    writer.statement(indent + 4,
                     f.variables[at(each.variable)].name + " = " + value_text(f, each.value, true));
  }
}

void Bodies::print_block(python::Writer& writer, const Function& f, const Node& node, int indent) {
  const Block& block = scopes_.blocks[at(node.index)];
  const Program& program = *scopes_.program;
  std::string head;
  switch (block.kind) {
    case Block::Kind::kTraining:
      head = "if self.training:";
      break;
    case Block::Kind::kRandom: {
      std::vector<std::string> axes;
      for (const int axis : block.axes) {
        axes.push_back(python::quote(program.mesh.axes[at(axis)].name));
      }
      head = "with MESH.rng(" + join(axes, ", ") + "):";
      break;
    }
    case Block::Kind::kRegion: {
      const Region& region = scopes_.graph().regions[at(block.region)];
      if (region.kind == RegionKind::kGradMode) {
        head = region.enabled ? "with torch.enable_grad():" : "with torch.no_grad():";
        break;
      }
      std::vector<std::string> arguments = {speller_.device_type(region.device_type)};
      if (region.enabled && region.dtype != DType::kUnknown) {
        arguments.push_back("dtype=" + Speller::dtype(region.dtype));
      }
      if (!region.enabled) arguments.emplace_back("enabled=False");
      if (!region.cache_enabled) arguments.emplace_back("cache_enabled=False");
      head = "with torch.autocast(" + join(arguments, ", ") + "):";
      break;
    }
  }
  writer.statement(indent, head);
  print_nodes(writer, f, node.children, indent + 4);
}

}  // namespace nnscaler::emission
