#include "core/emit/classes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>

#include "core/base/error.h"
#include "core/emit/python.h"
#include "core/ops/spelling.h"

namespace nnscaler::emission {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

bool is_structure(std::string_view argument) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"dim",       "dims",        "dim0",      "dim1",        "dim2",         "axis",
       "axis0",     "axis1",       "start_dim", "end_dim",     "reduction",    "correction",
       "dimension", "diagonal",    "k",         "padding_idx", "ignore_index", "mode",
       "source",    "destination", "dims_self", "dims_other"});
  return std::find(kNames.begin(), kNames.end(), argument) != kNames.end();
}

void put(std::string& key, int64_t number) {
  std::array<char, 24> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  key.append(buffer.data(), end);
  key += ' ';
}

class Merger {
 public:
  explicit Merger(const Scopes& scopes) : scopes_(scopes), graph_(scopes.graph()) {
    classes_.scopes = &scopes;
    const size_t modules = scopes.modules.size();
    classes_.class_of.assign(modules, -1);
    classes_.method_of.assign(scopes.calls.size(), -1);
    classes_.numbers.resize(modules);
    classes_.arguments.resize(modules);
    classes_.child_numbers.assign(modules, -1);
    classes_.ties.resize(modules);
    classes_.op_numbers.assign(graph_.operators.size(), -1);
    classes_.slot_numbers.assign(graph_.values.size(), -1);
    classes_.is_tied.assign(graph_.values.size(), 0);
    state_.assign(modules, State::kNew);
    bodies_.resize(modules);
    hints_.resize(modules);
  }

  Classes run() {
    place_ties();
    class_of(0);
    order_members();
    unite_outputs();
    find_arguments();
    name_classes();
    return std::move(classes_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kDone };

  const Module& module(int index) const { return scopes_.modules[at(index)]; }
  const Call& call(int index) const { return scopes_.calls[at(index)]; }

  int common(int a, int b) const {
    while (!scopes_.encloses(a, b)) a = module(a).parent;
    return a;
  }

  void place_ties() {
    for (const std::vector<int>& group : scopes_.ties) {
      for (size_t i = 1; i < group.size(); ++i) {
        const int where =
            classes_.builder_of(common(scopes_.owner[at(group[0])], scopes_.owner[at(group[i])]));
        classes_.ties[at(where)].push_back({group[0], group[i]});
        classes_.is_tied[at(group[i])] = 1;
      }
    }
  }

  /// The class of a module, made where no equal module has one.
  int class_of(int id) {
    if (state_[at(id)] == State::kDone) return classes_.class_of[at(id)];
    if (state_[at(id)] == State::kOpen) return -1;
    state_[at(id)] = State::kOpen;
    std::string key = module(id).class_name;
    key += '\n';
    // Bodies first: numbers of the bodies come before those of the parameters.
    std::vector<std::pair<std::string, int>> methods;  // key with numbers -> first call
    std::vector<Segment> outer;
    std::swap(outer, segments_);
    for (const int c : module(id).calls) {
      const size_t first = classes_.numbers[at(id)].size();
      segments_.clear();
      std::string body = body_key(c);
      std::string full = body;
      for (size_t i = first; i < classes_.numbers[at(id)].size(); ++i) {
        full += ' ';
        full += number_text(classes_.numbers[at(id)][i]);
      }
      const auto same = std::find_if(methods.begin(), methods.end(),
                                     [&](const auto& method) { return method.first == full; });
      if (same != methods.end()) {  // the module is called again, alike
        classes_.method_of[at(c)] = classes_.method_of[at(same->second)];
        const std::vector<Segment>& before =
            bodies_[at(id)][at(classes_.method_of[at(c)])].segments;
        for (size_t i = 0; i < segments_.size(); ++i) {
          twins_.emplace_back(segments_[i].call, before[i].call);
        }
        classes_.numbers[at(id)].resize(first);
        hints_[at(id)].resize(first);
        continue;
      }
      classes_.method_of[at(c)] = static_cast<int>(bodies_[at(id)].size());
      methods.emplace_back(std::move(full), c);
      bodies_[at(id)].push_back({c, segments_});
      key += "method ";
      key += body;
      key += '\n';
    }
    std::swap(outer, segments_);
    // Which stretches share a function is part of the class.
    std::map<std::string_view, size_t> alike;
    for (const Body& body : bodies_[at(id)]) {
      for (const Segment& segment : body.segments) {
        put(key, static_cast<int64_t>(alike.emplace(segment.key, alike.size()).first->second));
      }
    }
    describe(id, id, key);
    for (const Tie& tie : classes_.ties[at(id)]) {
      key += "tie " + path_from(id, tie.source) + " " + path_from(id, tie.target) + "\n";
    }
    const auto [found, fresh] = by_key_.emplace(key, static_cast<int>(classes_.classes.size()));
    if (fresh) classes_.classes.emplace_back();
    classes_.class_of[at(id)] = found->second;
    state_[at(id)] = State::kDone;
    return found->second;
  }

  std::string path_from(int base, int value) const {
    const std::string& owner = module(scopes_.owner[at(value)]).path;
    const std::string& prefix = module(base).path;
    std::string path = owner.substr(prefix.empty() ? 0 : std::min(prefix.size() + 1, owner.size()));
    if (!path.empty()) path += '.';
    return path + scopes_.attribute[at(value)];
  }

  static std::string number_text(const Number& number) {
    if (const auto* integer = std::get_if<int64_t>(&number)) return std::to_string(*integer);
    return python::number(std::get<double>(number));
  }

  void number(int id, const Number& value, std::string hint) {
    classes_.numbers[at(id)].push_back(value);
    hints_[at(id)].push_back(std::move(hint));
  }

  /// What `base` holds, down to the modules that have classes of their own.
  void describe(int base, int id, std::string& key) {
    for (const int value : module(id).slots) describe_slot(base, value, key);
    for (const int child : module(id).children) {
      key += child_name(child);
      if (module(child).is_class) {
        const int nested = class_of(child);
        key += nested < 0 ? " cycle " + module(child).path : " class ";
        put(key, nested);
        children_[base].push_back(child);
      } else {
        key += module(child).is_list ? " [" : " (";
        describe(base, child, key);
        key += ')';
      }
    }
    key += '\n';
  }

  std::string child_name(int id) const { return "." + module(id).name; }

  void describe_slot(int base, int index, std::string& key) {
    const Value& value = graph_.values[at(index)];
    key += scopes_.attribute[at(index)];
    key += value.kind == ValueKind::kParameter ? " parameter " : " buffer ";
    if (classes_.is_tied[at(index)]) {
      key += "tied\n";
      return;
    }
    put(key, static_cast<int64_t>(value.dtype));
    put(key, value.requires_grad);
    put(key, value.persistent);
    put(key, static_cast<int64_t>(value.shape.size()));
    if (const auto rest = scopes_.program->rest.find(index); rest != scopes_.program->rest.end()) {
      for (const int dim : rest->second.shard_dim) put(key, dim);
      key += '/';
      for (const int axis : rest->second.reduce_axes) put(key, axis);
    }
    if (is_literal(graph_, value)) {
      for (const Extent& extent : value.shape) put(key, extent.value);
      key += graph_.constants.at(value.fqn);
      key += '\n';
      return;
    }
    classes_.slot_numbers[at(index)] = static_cast<int>(classes_.numbers[at(base)].size());
    const std::string& holder = module(scopes_.owner[at(index)]).name;
    for (size_t i = 0; i < value.shape.size(); ++i) {
      std::string hint = scopes_.owner[at(index)] == base ? "" : holder + "_";
      hint += scopes_.attribute[at(index)] == "weight" && value.shape.size() >= 2 && i < 2
                  ? (i == 0 ? "out" : "in")
              : scopes_.attribute[at(index)] == "weight" || scopes_.attribute[at(index)] == "bias"
                  ? "size"
                  : scopes_.attribute[at(index)] + "_size";
      number(base, value.shape[i].value, std::move(hint));
    }
    key += '\n';
  }

  void operand_key(int c, int value, std::string& key) {
    const int producer = scopes_.produced_at(value);
    if (scopes_.owner[at(value)] >= 0) {
      value = scopes_.tied(value, c);
      if (scopes_.reaches(c, scopes_.owner[at(value)])) {
        key += 'p';
        key += path_from(call(c).module, value);
        key += ' ';
        return;
      }
    } else if (producer >= call(c).begin && producer < call(c).end) {
      key += 'r';
      put(key, producer - call(c).begin);
      put(key, graph_.values[at(value)].output_index);
      return;
    }
    key += 'i';
    put(key, c == 0 ? value : input_number(c, {false, value}));
  }

  int input_number(int c, Entity entity) {
    const uint64_t code = (static_cast<uint64_t>(static_cast<uint32_t>(c)) << 33) |
                          (static_cast<uint64_t>(static_cast<uint32_t>(entity.index)) << 1) |
                          (entity.is_module ? 1U : 0U);
    if (!numbered_.contains(c)) {
      numbered_.insert(c);
      int count = 0;
      for (const Entity& input : call(c).inputs) {
        inputs_[(static_cast<uint64_t>(static_cast<uint32_t>(c)) << 33) |
                (static_cast<uint64_t>(static_cast<uint32_t>(input.index)) << 1) |
                (input.is_module ? 1U : 0U)] = count++;
      }
    }
    const auto found = inputs_.find(code);
    check(found != inputs_.end(), "a call reads what it was not given");
    return found->second;
  }

  std::string body_key(int c) {
    std::string key;
    items_key(c, call(c).items, key);
    return key;
  }

  void items_key(int c, const std::vector<Item>& items, std::string& key) {
    for (const Item& item : items) {
      switch (item.kind) {
        case Item::Kind::kOp:
          op_key(c, item.index, key);
          break;
        case Item::Kind::kCall:
          call_key(c, item.index, key);
          break;
        case Item::Kind::kBlock:
          block_key(c, scopes_.blocks[at(item.index)], key);
          break;
      }
    }
  }

  void block_key(int c, const Block& block, std::string& key) {
    key += '{';
    put(key, static_cast<int64_t>(block.kind));
    if (block.region >= 0) region_key(graph_.regions[at(block.region)], key);
    for (const int axis : block.axes) put(key, axis);
    items_key(c, block.items, key);
    key += '}';
  }

  void call_key(int c, int inner, std::string& key) {
    const Call& callee = call(inner);
    key += "\ncall ";
    if (callee.recompute >= 0) region_key(graph_.regions[at(callee.recompute)], key);
    if (callee.segment) {
      const size_t place = segments_.size();
      segments_.push_back({inner, ""});
      const size_t first = classes_.numbers[at(callee.module)].size();
      std::string body = body_key(inner);
      key += "segment<" + body + ">";
      for (size_t i = first; i < classes_.numbers[at(callee.module)].size(); ++i) {
        body += " " + number_text(classes_.numbers[at(callee.module)][i]);
      }
      segments_[place].key = std::move(body);
    } else {
      const int nested = class_of(callee.module);
      // A module of a class that is still open calls itself in a roundabout way.
      key += nested < 0 ? "cycle " + module(callee.module).path + " " : "";
      put(key, nested);
      put(key, classes_.method_of[at(inner)]);
      if (scopes_.reaches(c, callee.module)) {
        const std::string& prefix = module(call(c).module).path;
        key += module(callee.module)
                   .path.substr(prefix.empty() ? 0
                                               : std::min(prefix.size() + 1,
                                                          module(callee.module).path.size()));
        key += ' ';
      } else {
        key += 'm';
        put(key, input_number(c, {true, callee.module}));
      }
    }
    for (const Entity& input : callee.inputs) entity_key(c, input, key);
  }

  void entity_key(int c, const Entity& entity, std::string& key) {
    if (!entity.is_module) return operand_key(c, entity.index, key);
    if (scopes_.reaches(c, entity.index)) {
      key += "module " + module(entity.index).path.substr(module(call(c).module).path.size());
    } else {
      key += 'm';
      put(key, input_number(c, entity));
    }
  }

  void op_key(int c, int index, std::string& key) {
    const int owner = call(c).module;
    operator_key(scopes_, index, key, [&](const Operand* operand) {
      if (operand == nullptr) {
        key += "none ";
      } else {
        operand_key(c, operand->value, key);
      }
    });
    classes_.op_numbers[at(index)] = static_cast<int>(classes_.numbers[at(owner)].size());
    const Operator& op = scopes_.op(index);
    for (const Hole& hole : holes_of(op)) {
      number(owner, hole.number, number_hint(op, hole.argument));
    }
  }

  /// What a number is called as a constructor's argument.
  static std::string number_hint(const Operator& op, int argument) {
    static const std::map<std::string_view, std::string> kOther = {
        {"mul", "scale"},   {"add", "offset"},      {"sub", "offset"},   {"rsub", "minuend"},
        {"div", "divisor"}, {"pow", "exponent"},    {"gt", "threshold"}, {"ge", "threshold"},
        {"lt", "limit"},    {"le", "limit"},        {"eq", "index"},     {"ne", "index"},
        {"mul_", "scale"},  {"remainder", "modulo"}};
    const std::string& name = op.args[at(argument)].name;
    const auto found = kOther.find(base_name(op.target));
    return found != kOther.end() && (name == "other" || name == "exponent") ? found->second : name;
  }

  /// Members in the order in which the program calls them; their methods.
  void order_members() {
    std::vector<char> seen(scopes_.modules.size(), 0);
    std::vector<int> calls(scopes_.calls.size());
    for (size_t i = 0; i < calls.size(); ++i) calls[i] = static_cast<int>(i);
    std::stable_sort(calls.begin(), calls.end(),
                     [&](int a, int b) { return call(a).begin < call(b).begin; });
    for (const int c : calls) {
      const int id = call(c).module;
      if (call(c).segment || seen[at(id)]) continue;
      seen[at(id)] = 1;
      classes_.classes[at(classes_.class_of[at(id)])].members.push_back(id);
    }
    for (Class& each : classes_.classes) {
      int forwards = 0, segments = 0;
      const std::vector<Body>& bodies = bodies_[at(each.members[0])];
      for (const Body& body : bodies) {
        each.methods.push_back(
            {forwards == 0 ? "forward" : "forward_" + std::to_string(forwards), body.call, {}});
        ++forwards;
      }
      // Equal stretches are one function; the first member tells which are.
      std::map<std::string, int> by_key;
      std::vector<int> method_of_segment;
      for (const Body& body : bodies) {
        for (const Segment& segment : body.segments) {
          const auto [found, fresh] =
              by_key.emplace(segment.key, static_cast<int>(each.methods.size()));
          if (fresh) {
            each.methods.push_back(
                {segments == 0 ? "_recompute" : "_recompute_" + std::to_string(segments),
                 segment.call,
                 {}});
            ++segments;
          }
          method_of_segment.push_back(found->second);
        }
      }
      for (const int member : each.members) {
        size_t next = 0;
        for (const Body& body : bodies_[at(member)]) {
          for (const Segment& segment : body.segments) {
            classes_.method_of[at(segment.call)] = method_of_segment[next++];
          }
        }
      }
    }
    for (const auto& [segment, twin] : twins_) {
      classes_.method_of[at(segment)] = classes_.method_of[at(twin)];
    }
  }

  void unite_outputs() {
    for (size_t i = 0; i < scopes_.calls.size(); ++i) {
      const Call& each = scopes_.calls[i];
      Method& method = classes_.classes[at(classes_.class_of[at(each.module)])]
                           .methods[at(classes_.method_of[i])];
      for (const int value : each.outputs) {
        method.outputs.push_back(
            {scopes_.produced_at(value) - each.begin, graph_.values[at(value)].output_index});
      }
    }
    for (Class& each : classes_.classes) {
      for (Method& method : each.methods) {
        std::sort(method.outputs.begin(), method.outputs.end());
        method.outputs.erase(std::unique(method.outputs.begin(), method.outputs.end()),
                             method.outputs.end());
      }
    }
  }

  /// Numbers that differ between the modules of a class become constructor arguments; equal columns
  /// share one. Classes that a class builds come first, so their arguments are known.
  void find_arguments() {
    for (Class& each : classes_.classes) {
      for (const int member : each.members) {
        for (const int child : children_[member]) {
          classes_.child_numbers[at(child)] = static_cast<int>(classes_.numbers[at(member)].size());
          const int nested = classes_.class_of[at(child)];
          for (size_t i = 0; i < classes_.arguments[at(child)].size(); ++i) {
            number(member, classes_.arguments[at(child)][i],
                   classes_.classes[at(nested)].arguments[i].name);
          }
        }
      }
      const size_t columns = classes_.numbers[at(each.members[0])].size();
      each.argument_of.assign(columns, -1);
      std::map<std::vector<Number>, int> by_column;
      std::set<std::string> taken = reserved(each);
      for (size_t j = 0; j < columns; ++j) {
        std::vector<Number> column;
        bool varies = false;
        for (const int member : each.members) {
          column.push_back(classes_.numbers[at(member)][j]);
          varies |= column.back() != column.front();
        }
        if (!varies) continue;
        const auto [found, fresh] =
            by_column.emplace(column, static_cast<int>(each.arguments.size()));
        each.argument_of[j] = found->second;
        if (!fresh) continue;
        each.arguments.push_back({unique(hints_[at(each.members[0])][j], taken), false});
        for (size_t m = 0; m < each.members.size(); ++m) {
          classes_.arguments[at(each.members[m])].push_back(column[m]);
        }
      }
      for (const Method& method : each.methods) mark_forward(each, call(method.call).items);
    }
  }

  void mark_forward(Class& each, const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kBlock) {
        mark_forward(each, scopes_.blocks[at(item.index)].items);
      } else if (item.kind == Item::Kind::kOp) {
        const size_t count = holes_of(scopes_.op(item.index)).size();
        for (size_t i = 0; i < count; ++i) {
          const int argument = each.argument_of[at(classes_.op_numbers[at(item.index)]) + i];
          if (argument >= 0) each.arguments[at(argument)].in_forward = true;
        }
      }
    }
  }

  /// Names that an argument may not have: what the module holds, and nn.Module's own.
  std::set<std::string> reserved(const Class& each) const {
    std::set<std::string> names = {
        "self",  "training", "forward", "children", "modules", "parameters", "buffers",
        "apply", "train",    "eval",    "type",     "float",   "double",     "half",
        "to",    "mesh",     "inputs",  "ties",     "torch",   "nn",         "rt"};
    for (const Method& method : each.methods) names.insert(method.name);
    const Module& first = module(each.members[0]);
    for (const int child : first.children) names.insert(module(child).name);
    for (const int value : first.slots) names.insert(scopes_.attribute[at(value)]);
    return names;
  }

  static std::string unique(const std::string& hint, std::set<std::string>& taken) {
    std::string base;
    for (const char c : hint) {
      base += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
    }
    if (base.empty() || (base[0] >= '0' && base[0] <= '9')) base = "n" + base;
    if (!python::is_identifier(base) || python::is_builtin(base)) base += "_";
    std::string name = base;
    for (int i = 1; taken.contains(name); ++i) name = base + "_" + std::to_string(i);
    taken.insert(name);
    return name;
  }

  void name_classes() {
    std::set<std::string> taken = {"GenModel", "MESH", "F", "nn", "rt", "torch"};
    std::vector<size_t> order(classes_.classes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const auto begin = [&](size_t i) { return call(classes_.classes[i].methods[0].call).begin; };
      return begin(a) < begin(b);
    });
    std::map<std::string, int> used;
    for (const size_t index : order) {
      Class& each = classes_.classes[index];
      if (each.members[0] == 0) {
        each.name = "GenModel";
        continue;
      }
      Frame frame;
      frame.class_name = module(each.members[0]).class_name;
      std::string base;
      for (const char c : frame.short_class()) {
        if (c == '[') break;
        base +=
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'
                ? c
                : '_';
      }
      if (!python::is_identifier(base) || python::is_builtin(base)) base = "Module" + base;
      std::string name = base;
      int& count = used[base];
      if (count > 0) name = base + std::to_string(count);
      while (taken.contains(name)) name = base + std::to_string(++count);
      ++count;
      taken.insert(name);
      each.name = name;
    }
  }

  struct Segment {
    int call = -1;
    std::string key;  ///< Its body's, with numbers.
  };
  struct Body {
    int call = -1;
    std::vector<Segment> segments;
  };

  const Scopes& scopes_;
  const Graph& graph_;
  Classes classes_;
  std::vector<State> state_;
  std::vector<std::vector<Body>> bodies_;        ///< Of each module.
  std::vector<std::vector<std::string>> hints_;  ///< Of each module's numbers.
  std::vector<Segment> segments_;                ///< Met while keying one body.
  std::vector<std::pair<int, int>> twins_;
  std::map<int, std::vector<int>> children_;  ///< Class modules that a class module builds.
  std::unordered_map<std::string, int> by_key_;
  std::unordered_map<uint64_t, int> inputs_;
  std::set<int> numbered_;
};

}  // namespace

void region_key(const Region& region, std::string& key) {
  put(key, static_cast<int64_t>(region.kind));
  put(key, region.enabled);
  put(key, static_cast<int64_t>(region.dtype));
  put(key, region.cache_enabled);
  put(key, region.preserve_rng_state);
  key += region.device_type;
}

namespace {

/// Appends an argument's content but for its numbers.
void argument_key(const Argument& argument, const std::function<void(int)>& read,
                  std::string& key) {
  const ArgValue& content = argument.value;
  put(key, static_cast<int64_t>(content.index()));
  const bool structure = is_structure(argument.name);
  if (std::holds_alternative<ValueId>(content) || std::holds_alternative<SymInt>(content)) {
    read(0);
  } else if (const auto* tensors = std::get_if<TensorList>(&content)) {
    key += argument.is_tuple ? '(' : '[';
    for (size_t j = 0; j < tensors->size(); ++j) read(static_cast<int>(j));
    key += ']';
  } else if (const auto* integer = std::get_if<int64_t>(&content)) {
    if (structure) put(key, *integer);
  } else if (const auto* flag = std::get_if<bool>(&content)) {
    put(key, *flag);
  } else if (const auto* text = std::get_if<std::string>(&content)) {
    key += *text;
    key += ' ';
  } else if (const auto* complex = std::get_if<std::complex<double>>(&content)) {
    key += python::number(complex->real()) + " " + python::number(complex->imag());
  } else if (const auto* sizes = std::get_if<std::vector<SymInt>>(&content)) {
    key += '[';
    for (size_t j = 0; j < sizes->size(); ++j) {
      if ((*sizes)[j].symbol.valid()) {
        read(static_cast<int>(j));
      } else if (structure || (*sizes)[j].value < 0) {
        put(key, (*sizes)[j].value);
      } else {
        key += "# ";
      }
    }
    key += ']';
  } else if (const auto* reals = std::get_if<std::vector<double>>(&content)) {
    put(key, static_cast<int64_t>(reals->size()));
  } else if (const auto* flags = std::get_if<std::vector<bool>>(&content)) {
    for (const bool each : *flags) put(key, each);
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&content)) {
    for (const std::string& each : *texts) key += each + " ";
  } else if (const auto* dtype = std::get_if<DType>(&content)) {
    put(key, static_cast<int64_t>(*dtype));
  } else if (const auto* device = std::get_if<DeviceArg>(&content)) {
    key += device->type;
    put(key, device->index.value_or(-1));
  } else if (const auto* layout = std::get_if<LayoutArg>(&content)) {
    put(key, static_cast<int64_t>(*layout));
  } else if (const auto* format = std::get_if<MemoryFormatArg>(&content)) {
    put(key, static_cast<int64_t>(*format));
  } else if (const auto* source = std::get_if<PySource>(&content)) {
    key += source->text;
  }
}

void steps_key(const Steps& steps, std::string& key) {
  for (const Step& step : steps) {
    put(key, static_cast<int64_t>(step.kind));
    put(key, step.axis);
    put(key, step.dim);
    put(key, step.to_dim);
    put(key, static_cast<int64_t>(step.reduction));
  }
  key += '/';
}

}  // namespace

void operator_key(const Scopes& scopes, int index, std::string& key,
                  const std::function<void(const Operand*)>& read) {
  const Operator& op = scopes.op(index);
  const Program& program = *scopes.program;
  key += '\n';
  key += op.target;
  key += ' ';
  if (scopes.cloned[at(index)]) key += "copied ";
  put(key, op.training_only);
  const std::vector<Operand>& operands = scopes.operands[at(index)];
  size_t next = 0;
  for (size_t i = 0; i < op.args.size(); ++i) {
    key += op.args[i].name;
    key += op.args[i].keyword ? '=' : ':';
    argument_key(
        op.args[i],
        [&](int element) {
          const bool present = next < operands.size() &&
                               operands[next].argument == static_cast<int>(i) &&
                               operands[next].element == element;
          read(present ? &operands[next++] : nullptr);
        },
        key);
  }
  for (const ValueId output : op.outputs) key += output.valid() ? 'o' : '-';
  key += op.output_is_list ? "list " : " ";
  const std::string_view base = base_name(op.target);
  if (base == "slice" || base == "select") {  // their dim prints by the rank
    const auto* source = std::get_if<ValueId>(&op.args[0].value);
    if (source != nullptr)
      put(key, static_cast<int64_t>(scopes.graph().value(*source).shape.size()));
  }
  if (at(index) < program.calls.size()) {
    const CallInfo& info = program.calls[at(index)];
    key += info.callee;
    for (const auto& [name, text] : info.keywords) key += name + "=" + text + ",";
    put(key, info.divide_result);
    put(key, info.random);
    for (const int axis : info.random_axes) put(key, axis);
    key += info.note;
  }
  if (const auto found = program.redistributions.find(index);
      found != program.redistributions.end()) {
    steps_key(found->second.forward, key);
    steps_key(found->second.backward, key);
    key += found->second.reason;
    put(key, found->second.bytes_forward);
    put(key, found->second.bytes_backward);
  }
}

std::vector<Hole> holes_of(const Operator& op) {
  std::vector<Hole> holes;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (is_structure(op.args[i].name)) continue;
    const ArgValue& content = op.args[i].value;
    const int argument = static_cast<int>(i);
    if (const auto* integer = std::get_if<int64_t>(&content)) {
      holes.push_back({argument, 0, *integer});
    } else if (const auto* real = std::get_if<double>(&content)) {
      holes.push_back({argument, 0, *real});
    } else if (const auto* sizes = std::get_if<std::vector<SymInt>>(&content)) {
      for (size_t j = 0; j < sizes->size(); ++j) {
        if ((*sizes)[j].symbol.valid() || (*sizes)[j].value < 0) continue;
        holes.push_back({argument, static_cast<int>(j), (*sizes)[j].value});
      }
    } else if (const auto* reals = std::get_if<std::vector<double>>(&content)) {
      for (size_t j = 0; j < reals->size(); ++j) {
        holes.push_back({argument, static_cast<int>(j), (*reals)[j]});
      }
    }
  }
  return holes;
}

int Classes::builder_of(int module) const {
  while (!scopes->modules[at(module)].is_class) module = scopes->modules[at(module)].parent;
  return module;
}

Classes find_classes(const Scopes& scopes) { return Merger(scopes).run(); }

}  // namespace nnscaler::emission
