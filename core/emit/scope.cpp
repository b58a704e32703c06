#include "core/emit/scope.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/emit/python.h"
#include "core/ops/spelling.h"

namespace nnscaler::emission {
namespace {

constexpr std::string_view kRedistribute = "nnscaler.redistribute";

size_t at(int index) { return static_cast<size_t>(index); }

bool is_digits(std::string_view text) {
  return !text.empty() && text.size() < 6 &&
         std::all_of(
             text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         (text.size() == 1 || text[0] != '0');
}

uint64_t pair_key(int a, int b) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32) | static_cast<uint32_t>(b);
}

class Builder {
 public:
  explicit Builder(const Program& program) : program_(program), graph_(program.graph) {
    scopes_.program = &program;
  }

  Scopes run() {
    hold_values();
    chain_frames();
    alias_values();
    hoist_sizes();
    list_operators();
    build_calls();
    drop_unread();
    build_calls();
    share_redistributions();
    level_redistributions();
    place_literals();
    number_modules();
    build_blocks();
    flow();
    return std::move(scopes_);
  }

 private:
  /// One level of an operator's chain: only what becomes a class.
  struct Level {
    int module;
    int call;
    int frame;
    bool operator==(const Level&) const = default;
  };

  Module& module(int index) { return scopes_.modules[at(index)]; }
  Call& call(int index) { return scopes_.calls[at(index)]; }

  int module_at(const std::string& path) {
    const auto found = module_ids_.find(path);
    if (found != module_ids_.end()) return found->second;
    const int id = static_cast<int>(scopes_.modules.size());
    scopes_.modules.emplace_back();
    module_ids_.emplace(path, id);
    module(id).path = path;
    if (!path.empty()) {
      const size_t dot = path.rfind('.');
      const int parent = module_at(dot == std::string::npos ? "" : path.substr(0, dot));
      module(id).name = dot == std::string::npos ? path : path.substr(dot + 1);
      module(id).parent = parent;
      module(parent).children.push_back(id);
    }
    return id;
  }

  void hold(int value, const std::string& fqn) {
    const size_t dot = fqn.rfind('.');
    const int owner = module_at(dot == std::string::npos ? "" : fqn.substr(0, dot));
    scopes_.owner[at(value)] = owner;
    scopes_.attribute[at(value)] = dot == std::string::npos ? fqn : fqn.substr(dot + 1);
    module(owner).slots.push_back(value);
  }

  /// The tree of modules from the names of what they hold; ties.
  void hold_values() {
    const size_t count = graph_.values.size();
    scopes_.owner.assign(count, -1);
    scopes_.attribute.assign(count, "");
    scopes_.tie.assign(count, -1);
    module_at("");
    module(0).is_class = true;
    module(0).class_name = graph_.module_class;
    std::unordered_map<std::string_view, int> by_fqn;
    for (const ValueKind kind : {ValueKind::kParameter, ValueKind::kBuffer, ValueKind::kConstant}) {
      for (size_t i = 0; i < count; ++i) {
        const Value& value = graph_.values[i];
        if (value.kind != kind) continue;
        by_fqn.emplace(value.fqn, static_cast<int>(i));
        // A literal whose contents are known is placed where it is used.
        if (kind == ValueKind::kConstant && is_literal(graph_, value)) continue;
        hold(static_cast<int>(i), value.fqn);
      }
    }
    for (const std::vector<std::string>& names : graph_.ties) {
      std::vector<int> group;
      for (const std::string& name : names) {
        const auto found = by_fqn.find(name);
        if (found != by_fqn.end()) group.push_back(found->second);
      }
      if (group.size() < 2) continue;
      for (const int value : group) scopes_.tie[at(value)] = static_cast<int>(scopes_.ties.size());
      scopes_.ties.push_back(std::move(group));
    }
  }

  /// Which frames become classes: the user's modules. torch.nn's containers dissolve, as do its
  /// small modules without modules of their own.
  void chain_frames() {
    std::vector<int> uses(graph_.stacks.size(), 0);
    for (const Operator& op : graph_.operators) {
      if (op.stack >= 0 && op.target != kRedistribute) ++uses[at(op.stack)];
    }
    struct Facts {
      int operators = 0;
      bool parent = false;
    };
    std::map<std::pair<std::string_view, int>, Facts> frames;
    std::map<std::string_view, Facts> classes;
    for (size_t i = 0; i < graph_.stacks.size(); ++i) {
      const ModuleStack& stack = graph_.stacks[i];
      for (size_t j = 0; j < stack.size(); ++j) {
        Facts& facts = frames[{stack[j].path, stack[j].call}];
        facts.operators += uses[i];
        if (j + 1 < stack.size()) facts.parent = true;
      }
    }
    for (const ModuleStack& stack : graph_.stacks) {
      for (const Frame& frame : stack) {
        const Facts& facts = frames[{frame.path, frame.call}];
        Facts& all = classes[frame.class_name];
        all.operators = std::max(all.operators, facts.operators);
        all.parent |= facts.parent;
      }
    }
    constexpr int kSmall = 6;
    const auto dissolves = [&](const Frame& frame) {
      if (!frame.class_name.starts_with("torch.nn.")) return false;
      if (frame.class_name.starts_with("torch.nn.modules.container.")) return true;
      const Facts& facts = classes[frame.class_name];
      return !facts.parent && facts.operators <= kSmall;
    };
    chains_.resize(graph_.stacks.size());
    for (size_t i = 0; i < graph_.stacks.size(); ++i) {
      const ModuleStack& stack = graph_.stacks[i];
      chains_[i].push_back({0, 0, 0});
      for (size_t j = 0; j < stack.size(); ++j) {
        const Frame& frame = stack[j];
        if (frame.path.empty() || dissolves(frame)) continue;
        const int id = module_at(frame.path);
        // A module that calls itself: its inner run is part of the outer one.
        if (std::any_of(chains_[i].begin(), chains_[i].end(),
                        [&](const Level& level) { return level.module == id; })) {
          continue;
        }
        module(id).is_class = true;
        module(id).class_name = frame.class_name;
        chains_[i].push_back({id, frame.call, static_cast<int>(j)});
      }
    }
    root_chain_ = {{0, 0, 0}};
  }

  const std::vector<Level>& chain(int op) const {
    if (const auto moved = moved_.find(op); moved != moved_.end()) return moved->second;
    const int stack = scopes_.op(op).stack;
    if (stack < 0 || hoisted_.contains(op)) return root_chain_;
    return chains_[at(stack)];
  }

  bool contiguous(const Value& value) const {
    int64_t expected = 1;
    for (size_t i = value.shape.size(); i-- > 0;) {
      if (value.shape[i].is_symbolic() || i >= value.strides.size()) return false;
      if (value.shape[i].value != 1 && value.strides[i].value != expected) return false;
      expected *= value.shape[i].value;
    }
    return true;
  }

  /// Operators that hand on their first argument: in place always, casts where there is nothing to
  /// do. While exporting, the result replaced the argument everywhere afterwards, also outside of
  /// the module that called it.
  void alias_values() {
    const size_t count = graph_.values.size();
    alias_.assign(count, -1);
    same_.assign(count, -1);
    scopes_.cloned.assign(graph_.operators.size(), 0);
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      const Operator& op = graph_.operators[i];
      if (base_name(op.target) == "broadcast_tensors") alias_broadcast(op, static_cast<int>(i));
      if (op.outputs.size() != 1 || !op.outputs[0].valid() || op.args.empty()) continue;
      const auto* source = std::get_if<ValueId>(&op.args[0].value);
      if (source == nullptr || !source->valid()) continue;
      const int output = op.outputs[0].index;
      const std::string_view base = base_name(op.target);
      if (is_in_place(op.target)) {
        alias_[at(output)] = source->index;
        continue;
      }
      const Value& from = graph_.value(*source);
      const Value& to = graph_.value(op.outputs[0]);
      const Argument* copy = op.find("copy");
      const bool copies = copy != nullptr && std::get_if<bool>(&copy->value) != nullptr &&
                          std::get<bool>(copy->value);
      const Argument* train = op.find("train");
      if ((base == "to" && !copies && from.dtype == to.dtype && from.device == to.device) ||
          (base == "contiguous" && contiguous(from)) ||
          (base == "dropout" && train != nullptr && std::get_if<bool>(&train->value) != nullptr &&
           !std::get<bool>(train->value))) {
        same_[at(output)] = source->index;
      }
    }
    // Literals: written ones are copied where they are made, the others are constants.
    std::unordered_set<int> written;
    for (const Operator& op : graph_.operators) {
      if (!is_in_place(op.target) || base_name(op.target) == "detach_" || op.args.empty()) continue;
      const auto* value = std::get_if<ValueId>(&op.args[0].value);
      int current = value == nullptr ? -1 : value->index;
      for (int steps = 0; current >= 0 && steps < 64; ++steps) {
        const OpId producer = graph_.values[at(current)].producer;
        if (!producer.valid()) break;
        const Operator& source = graph_.op(producer);
        if (base_name(source.target) == "lift_fresh_copy") {
          written.insert(producer.index);
          break;
        }
        const auto* next =
            source.args.empty() ? nullptr : std::get_if<ValueId>(&source.args[0].value);
        current = next == nullptr ? -1 : next->index;
      }
    }
    for (size_t i = 0; i < graph_.operators.size(); ++i) {
      const Operator& op = graph_.operators[i];
      const int index = static_cast<int>(i);
      if (base_name(op.target) == "lift_fresh_copy") {
        if (written.contains(index)) {
          scopes_.cloned[i] = 1;
        } else {
          alias_[at(op.outputs[0].index)] = std::get<ValueId>(op.args[0].value).index;
          silent_.insert(index);
        }
      } else if (base_name(op.target) == "detach_" && !op.args.empty()) {
        const auto* value = std::get_if<ValueId>(&op.args[0].value);
        if (value == nullptr) continue;
        const OpId producer = graph_.values[at(base(value->index))].producer;
        const bool literal =
            graph_.values[at(base(value->index))].kind == ValueKind::kConstant ||
            (producer.valid() && base_name(graph_.op(producer).target) == "lift_fresh_copy");
        if (literal) silent_.insert(index);
      }
    }
  }

  /// broadcast_tensors where nothing is to broadcast, as every loss calls it.
  void alias_broadcast(const Operator& op, int index) {
    const auto* sources = op.args.empty() ? nullptr : std::get_if<TensorList>(&op.args[0].value);
    if (sources == nullptr || sources->size() != op.outputs.size()) return;
    for (size_t j = 0; j < sources->size(); ++j) {
      if (!(*sources)[j].valid() || !op.outputs[j].valid() ||
          graph_.value((*sources)[j]).shape != graph_.value(op.outputs[j]).shape) {
        return;
      }
    }
    for (size_t j = 0; j < sources->size(); ++j) {
      alias_[at(op.outputs[j].index)] = (*sources)[j].index;
    }
    silent_.insert(index);
  }

  int base(int value) const {
    while (alias_[at(value)] >= 0) value = alias_[at(value)];
    return value;
  }

  static bool is_size_arithmetic(const Operator& op) {
    return op.target.starts_with("_operator.") || op.target.starts_with("torch.sym_") ||
           op.target.starts_with("math.");
  }

  /// Sizes known at the entry are computed there, once, and passed down.
  void hoist_sizes() {
    std::unordered_map<std::string, int> known;  // symbol or operation -> value
    std::unordered_set<int> at_entry;            // values
    for (const ValueId input : graph_.inputs) {
      if (!input.valid() || !graph_.value(input).is_symbol) continue;
      at_entry.insert(input.index);
      known.emplace(graph_.value(input).symbol, input.index);
    }
    const auto take = [&](int index, const std::string& key, int output) {
      const auto [found, fresh] = known.emplace(key, output);
      if (fresh) {
        hoisted_.insert(index);
        scopes_.entry.push_back(index);
        at_entry.insert(output);
      } else {
        alias_[at(output)] = found->second;
        silent_.insert(index);
      }
    };
    // First the sizes of inputs: they are what the others are known by.
    for (const bool inputs : {true, false}) {
      for (size_t i = 0; i < graph_.operators.size(); ++i) {
        const Operator& op = graph_.operators[i];
        const int index = static_cast<int>(i);
        if (op.outputs.size() != 1 || !op.outputs[0].valid()) continue;
        const Value& result = graph_.value(op.outputs[0]);
        if (!result.is_symbol || silent_.contains(index) || hoisted_.contains(index)) continue;
        const int output = op.outputs[0].index;
        if (op.target == "aten.sym_size.int") {
          const auto* source = std::get_if<ValueId>(&op.args[0].value);
          if (source == nullptr || result.symbol.empty()) continue;
          const bool of_input = graph_.value(*source).kind == ValueKind::kInput;
          if (of_input && inputs) take(index, result.symbol, output);
          if (!of_input && !inputs && known.contains(result.symbol)) {
            take(index, result.symbol, output);
          }
        } else if (!inputs && is_size_arithmetic(op)) {
          std::string key = op.target;
          bool all = true;
          for (const Argument& argument : op.args) {
            if (const auto* symbol = std::get_if<SymInt>(&argument.value);
                symbol != nullptr && symbol->symbol.valid()) {
              const int source = base(symbol->symbol.index);
              all &= at_entry.contains(source);
              key += " v" + std::to_string(source);
            } else if (const auto* number = std::get_if<int64_t>(&argument.value)) {
              key += " " + std::to_string(*number);
            } else if (const auto* real = std::get_if<double>(&argument.value)) {
              key += " " + python::number(*real);
            } else {
              all = false;
            }
          }
          if (all) take(index, key, output);
        }
      }
    }
  }

  void list_operators() {
    const size_t count = graph_.operators.size();
    scopes_.order.clear();
    scopes_.position.assign(count, -1);
    const auto add = [&](int op) {
      scopes_.position[at(op)] = static_cast<int>(scopes_.order.size());
      scopes_.order.push_back(op);
    };
    for (const int op : scopes_.entry) add(op);
    for (size_t i = 0; i < count; ++i) {
      const int op = static_cast<int>(i);
      if (!hoisted_.contains(op) && !silent_.contains(op)) add(op);
    }
  }

  /// The tree of calls from runs of equal chains.
  void build_calls() {
    scopes_.calls.clear();
    scopes_.call_of.assign(graph_.operators.size(), 0);
    for (Module& each : scopes_.modules) each.calls.clear();
    scopes_.calls.emplace_back();
    module(0).calls.push_back(0);
    std::vector<int> open = {0};
    std::vector<Level> levels = root_chain_;
    for (size_t p = 0; p < scopes_.order.size(); ++p) {
      const int op = scopes_.order[p];
      const std::vector<Level>& wanted = chain(op);
      size_t common = 1;
      while (common < levels.size() && common < wanted.size() &&
             levels[common].module == wanted[common].module &&
             levels[common].call == wanted[common].call) {
        ++common;
      }
      while (open.size() > common) {
        call(open.back()).end = static_cast<int>(p);
        open.pop_back();
      }
      levels.resize(common);
      for (size_t j = common; j < wanted.size(); ++j) {
        const int id = static_cast<int>(scopes_.calls.size());
        Call fresh;
        fresh.module = wanted[j].module;
        fresh.parent = open.back();
        fresh.frame = wanted[j].frame;
        fresh.begin = static_cast<int>(p);
        scopes_.calls.push_back(std::move(fresh));
        module(wanted[j].module).calls.push_back(id);
        open.push_back(id);
        levels.push_back(wanted[j]);
      }
      scopes_.call_of[at(op)] = open.back();
    }
    for (const int id : open) call(id).end = static_cast<int>(scopes_.order.size());
  }

  /// A redistribution that several modules read stands before the first of them, in their common
  /// caller, not within it.
  void share_redistributions() {
    if (program_.redistributions.empty()) return;
    resolve_operands();
    std::map<int, int> common;  // redistribution -> the call that encloses all readers
    for (const int op : scopes_.order) {
      for (const Operand& operand : scopes_.operands[at(op)]) {
        const OpId producer = graph_.values[at(operand.value)].producer;
        if (!producer.valid() || !program_.redistributions.contains(producer.index)) continue;
        const auto [found, fresh] =
            common.emplace(producer.index, scopes_.call_of[at(producer.index)]);
        while (!is_open_at(found->second, scopes_.call_of[at(op)])) {
          found->second = call(found->second).parent;
        }
      }
    }
    std::map<int, std::vector<int>> before;  // position -> redistributions to put there
    for (const auto& [op, where] : common) {
      int child = scopes_.call_of[at(op)];
      if (child == where || scopes_.operands[at(op)].empty()) continue;
      size_t levels = 0;
      for (int c = child; c != where; c = call(c).parent) {
        child = c;
        ++levels;
      }
      if (scopes_.produced_at(scopes_.operands[at(op)][0].value) >= call(child).begin) continue;
      before[call(child).begin].push_back(op);
      std::vector<Level> outer = chain(op);
      outer.resize(outer.size() - levels);
      moved_[op] = std::move(outer);
    }
    if (before.empty()) return;
    std::vector<int> order;
    for (size_t p = 0; p < scopes_.order.size(); ++p) {
      if (const auto found = before.find(static_cast<int>(p)); found != before.end()) {
        order.insert(order.end(), found->second.begin(), found->second.end());
      }
      if (!moved_.contains(scopes_.order[p])) order.push_back(scopes_.order[p]);
    }
    scopes_.order = std::move(order);
    for (size_t p = 0; p < scopes_.order.size(); ++p) {
      scopes_.position[at(scopes_.order[p])] = static_cast<int>(p);
    }
    build_calls();
  }

  /// A redistribution stands where its reader (or writer) is. At the border of a module it goes to
  /// the caller, unless all modules of the class have it: the first of equal layers shall be like
  /// the others.
  void level_redistributions() {
    if (program_.redistributions.empty()) return;
    constexpr int kDeepest = 16;
    for (int pass = 0; pass < kDeepest; ++pass) {
      std::map<std::string_view, std::vector<int>> groups;
      for (size_t c = 1; c < scopes_.calls.size(); ++c) {
        groups[module(scopes_.calls[c].module).class_name].push_back(static_cast<int>(c));
      }
      bool changed = false;
      for (const auto& [name, members] : groups) {
        for (const bool leading : {true, false}) {
          std::string first;
          bool alike = true;
          for (const int c : members) {
            std::string key;
            for (const int op : border(c, leading)) key += step_text(op);
            if (c == members[0]) first = key;
            alike &= key == first;
          }
          if (alike) continue;
          for (const int c : members) {
            for (const int op : border(c, leading)) {
              std::vector<Level> outer = chain(op);
              outer.pop_back();
              moved_[op] = std::move(outer);
              changed = true;
            }
          }
        }
      }
      if (!changed) return;
      build_calls();
    }
  }

  /// The redistributions with which a call begins, or ends.
  std::vector<int> border(int id, bool leading) const {
    std::vector<int> ops;
    const Call& each = scopes_.calls[at(id)];
    for (int i = 0; i < each.end - each.begin; ++i) {
      const int op = scopes_.order[at(leading ? each.begin + i : each.end - 1 - i)];
      if (scopes_.call_of[at(op)] != id || !program_.redistributions.contains(op)) return ops;
      // What a module holds is its own business.
      const auto* source = std::get_if<ValueId>(&scopes_.op(op).args[0].value);
      if (source == nullptr || scopes_.owner[at(source->index)] >= 0) return ops;
      ops.push_back(op);
    }
    return {};  // nothing else would be left
  }

  std::string step_text(int op) const {
    const Redistribution& what = program_.redistributions.at(op);
    std::string text = what.reason;
    for (const Steps* steps : {&what.forward, &what.backward}) {
      for (const Step& step : *steps) {
        text += " " + std::to_string(static_cast<int>(step.kind)) + "," +
                std::to_string(step.axis) + "," + std::to_string(step.dim) + "," +
                std::to_string(step.to_dim);
      }
      text += ";";
    }
    return text;
  }

  /// The innermost region of an operator. A redistribution that went out of a recomputed module is
  /// not recomputed.
  int region_of(int op) const {
    if (hoisted_.contains(op)) return -1;
    int region = scopes_.op(op).region;
    if (moved_.contains(op)) {
      while (region >= 0 && graph_.regions[at(region)].kind == RegionKind::kRecompute) {
        region = graph_.regions[at(region)].parent;
      }
    }
    return region;
  }

  bool is_open_at(int ancestor, int id) const {
    while (id >= 0 && id != ancestor) id = scopes_.calls[at(id)].parent;
    return id == ancestor;
  }

  /// The value as `reader` sees it: results that are their operator's own argument are named by the
  /// argument outside of the module that made them.
  int seen_from(int value, int reader) const {
    value = base(value);
    while (same_[at(value)] >= 0) {
      const int producer = graph_.values[at(value)].producer.index;
      const int maker = scopes_.call_of[at(producer)];
      if (scopes_.position[at(producer)] >= 0 && is_open_at(maker, reader)) break;
      value = base(same_[at(value)]);
    }
    return value;
  }

  void resolve_operands() {
    scopes_.operands.assign(graph_.operators.size(), {});
    for (const int index : scopes_.order) {
      const Operator& op = scopes_.op(index);
      const int reader = scopes_.call_of[at(index)];
      std::vector<Operand>& list = scopes_.operands[at(index)];
      const auto add = [&](size_t argument, size_t element, ValueId value) {
        if (!value.valid()) return;
        list.push_back({static_cast<int>(argument), static_cast<int>(element),
                        seen_from(value.index, reader)});
      };
      for (size_t i = 0; i < op.args.size(); ++i) {
        const ArgValue& content = op.args[i].value;
        if (const auto* one = std::get_if<ValueId>(&content)) {
          add(i, 0, *one);
        } else if (const auto* tensors = std::get_if<TensorList>(&content)) {
          for (size_t j = 0; j < tensors->size(); ++j) add(i, j, (*tensors)[j]);
        } else if (const auto* symbol = std::get_if<SymInt>(&content)) {
          add(i, 0, symbol->symbol);
        } else if (const auto* sizes = std::get_if<std::vector<SymInt>>(&content)) {
          for (size_t j = 0; j < sizes->size(); ++j) add(i, j, (*sizes)[j].symbol);
        }
      }
    }
    scopes_.outputs.clear();
    for (const ValueId output : graph_.outputs) {
      scopes_.outputs.push_back(output.valid() ? seen_from(output.index, 0) : -1);
    }
  }

  /// Casts that nobody reads any more, and sizes likewise.
  void drop_unread() {
    resolve_operands();
    std::vector<int> reads(graph_.values.size(), 0);
    for (const std::vector<Operand>& list : scopes_.operands) {
      for (const Operand& operand : list) ++reads[at(operand.value)];
    }
    for (const int output : scopes_.outputs) {
      if (output >= 0) ++reads[at(output)];
    }
    for (size_t p = scopes_.order.size(); p-- > 0;) {
      const int index = scopes_.order[p];
      const Operator& op = scopes_.op(index);
      if (op.outputs.size() != 1 || !op.outputs[0].valid()) continue;
      const int output = op.outputs[0].index;
      const bool droppable = same_[at(output)] >= 0 || graph_.value(op.outputs[0]).is_symbol;
      if (!droppable || reads[at(output)] > 0 || base_name(op.target) == "item" ||
          base_name(op.target) == "_local_scalar_dense") {
        continue;
      }
      silent_.insert(index);
      for (const Operand& operand : scopes_.operands[at(index)]) --reads[at(operand.value)];
    }
    std::erase_if(scopes_.entry, [&](int op) { return silent_.contains(op); });
    list_operators();
  }

  /// Every literal becomes an attribute of the innermost module whose call encloses all its uses.
  void place_literals() {
    resolve_operands();
    // Where nothing is left of a module's calls, there is no class either.
    for (size_t i = 1; i < scopes_.modules.size(); ++i) {
      Module& each = scopes_.modules[i];
      each.is_class = each.is_class && !each.calls.empty();
    }
    std::map<int, int> place;  // value -> call
    const auto meet = [&](int a, int b) {
      while (!is_open_at(a, b)) a = call(a).parent;
      return a;
    };
    for (const int index : scopes_.order) {
      for (const Operand& operand : scopes_.operands[at(index)]) {
        const Value& value = graph_.values[at(operand.value)];
        if (value.kind != ValueKind::kConstant || scopes_.owner[at(operand.value)] >= 0) continue;
        const int reader = scopes_.call_of[at(index)];
        const auto [found, fresh] = place.emplace(operand.value, reader);
        if (!fresh) found->second = meet(found->second, reader);
      }
    }
    for (const int output : scopes_.outputs) {
      if (output >= 0 && graph_.values[at(output)].kind == ValueKind::kConstant &&
          scopes_.owner[at(output)] < 0) {
        place[output] = 0;
      }
    }
    std::map<int, int> counts;  // module -> literals
    for (const auto& [value, where] : place) {
      const int owner = call(where).module;
      const int count = counts[owner]++;
      scopes_.owner[at(value)] = owner;
      scopes_.attribute[at(value)] = "_constant" + (count == 0 ? "" : "_" + std::to_string(count));
      module(owner).slots.push_back(value);
    }
  }

  void number_modules() {
    for (Module& each : scopes_.modules) {
      if (each.children.empty()) continue;
      size_t largest = 0;
      const bool digits = std::all_of(each.children.begin(), each.children.end(), [&](int child) {
        const std::string& name = module(child).name;
        if (!is_digits(name)) return false;
        largest = std::max(largest, static_cast<size_t>(std::stoi(name)));
        return true;
      });
      each.is_list = digits && largest < 4 * each.children.size() + 16 && each.slots.empty() &&
                     each.parent >= 0;
      if (each.is_list) {
        std::sort(each.children.begin(), each.children.end(), [&](int a, int b) {
          return std::stoi(module(a).name) < std::stoi(module(b).name);
        });
      }
    }
    int counter = 0;
    const std::function<void(int)> visit = [&](int id) {
      module(id).enter = counter++;
      for (const int child : module(id).children) visit(child);
      module(id).leave = counter;
    };
    visit(0);
  }

  const std::vector<int>& region_chain(int region) {
    static const std::vector<int> none;
    if (region < 0) return none;
    std::vector<int>& chain = region_chains_[region];
    if (chain.empty()) {
      for (int r = region; r >= 0; r = graph_.regions[at(r)].parent) chain.push_back(r);
      std::reverse(chain.begin(), chain.end());
    }
    return chain;
  }

  /// The regions that all operators of a call share.
  const std::vector<int>& regions_of_call(int id) {
    const auto found = call_regions_.find(id);
    if (found != call_regions_.end()) return found->second;
    std::vector<int> common = region_chain(region_of(scopes_.order[at(call(id).begin)]));
    for (int p = call(id).begin + 1; p < call(id).end && !common.empty(); ++p) {
      const std::vector<int>& other = region_chain(region_of(scopes_.order[at(p)]));
      size_t length = 0;
      while (length < common.size() && length < other.size() && common[length] == other[length]) {
        ++length;
      }
      common.resize(length);
    }
    return call_regions_[id] = common;
  }

  /// The item of `id`'s body at position p, and where the next begins.
  Item item_at(int id, int p, int* next) {
    const int op = scopes_.order[at(p)];
    int inner = scopes_.call_of[at(op)];
    if (inner == id) {
      *next = p + 1;
      return {Item::Kind::kOp, op};
    }
    while (call(inner).parent != id) inner = call(inner).parent;
    *next = call(inner).end;
    return {Item::Kind::kCall, inner};
  }

  std::vector<Item> build_items(int id, int begin, int end, size_t depth) {
    std::vector<Item> items;
    const auto regions = [&](const Item& item) -> const std::vector<int>& {
      return item.kind == Item::Kind::kCall ? regions_of_call(item.index)
                                            : region_chain(region_of(item.index));
    };
    for (int p = begin; p < end;) {
      int next = p;
      const Item item = item_at(id, p, &next);
      if (regions(item).size() <= depth) {
        items.push_back(item);
        if (item.kind == Item::Kind::kCall) {
          std::vector<Item> body =
              build_items(item.index, call(item.index).begin, call(item.index).end, depth);
          call(item.index).items = std::move(body);
        }
        p = next;
        continue;
      }
      const int region = regions(item)[depth];
      int stop = next;
      int members = 1;
      while (stop < end) {
        int after = stop;
        const Item other = item_at(id, stop, &after);
        if (regions(other).size() <= depth || regions(other)[depth] != region) break;
        stop = after;
        ++members;
      }
      if (graph_.regions[at(region)].kind != RegionKind::kRecompute) {
        const int block = static_cast<int>(scopes_.blocks.size());
        scopes_.blocks.push_back({Block::Kind::kRegion, region, {}, {}});
        std::vector<Item> body = build_items(id, p, stop, depth + 1);
        scopes_.blocks[at(block)].items = std::move(body);
        items.push_back({Item::Kind::kBlock, block});
      } else if (members == 1 && item.kind == Item::Kind::kCall && !call(item.index).segment) {
        call(item.index).recompute = region;
        std::vector<Item> body = build_items(item.index, p, stop, depth + 1);
        call(item.index).items = std::move(body);
        items.push_back(item);
      } else {
        items.push_back({Item::Kind::kCall, make_segment(id, p, stop, region, depth)});
      }
      p = stop;
    }
    return group_flags(items);
  }

  int make_segment(int id, int begin, int end, int region, size_t depth) {
    const int segment = static_cast<int>(scopes_.calls.size());
    Call fresh;
    fresh.module = call(id).module;
    fresh.parent = id;
    fresh.segment = true;
    fresh.recompute = region;
    fresh.frame = call(id).frame;
    fresh.begin = begin;
    fresh.end = end;
    scopes_.calls.push_back(fresh);
    for (int p = begin; p < end;) {
      int next = p;
      const Item item = item_at(id, p, &next);
      if (item.kind == Item::Kind::kOp) {
        scopes_.call_of[at(item.index)] = segment;
      } else {
        call(item.index).parent = segment;
      }
      p = next;
    }
    std::vector<Item> body = build_items(segment, begin, end, depth + 1);
    call(segment).items = std::move(body);
    return segment;
  }

  /// Puts runs of operators that only training has, and of those that draw random numbers alike,
  /// into blocks.
  std::vector<Item> group_flags(const std::vector<Item>& items) {
    const auto training = [&](const Item& item) {
      return item.kind == Item::Kind::kOp && scopes_.op(item.index).training_only;
    };
    const auto random = [&](const Item& item) -> const CallInfo* {
      if (item.kind != Item::Kind::kOp || at(item.index) >= program_.calls.size()) return nullptr;
      const CallInfo& info = program_.calls[at(item.index)];
      return info.random ? &info : nullptr;
    };
    std::vector<Item> result;
    for (size_t i = 0; i < items.size();) {
      size_t j = i + 1;
      if (training(items[i])) {
        while (j < items.size() && training(items[j])) ++j;
        const int block = static_cast<int>(scopes_.blocks.size());
        scopes_.blocks.push_back({Block::Kind::kTraining, -1, {}, {}});
        scopes_.blocks[at(block)].items.assign(items.begin() + static_cast<std::ptrdiff_t>(i),
                                               items.begin() + static_cast<std::ptrdiff_t>(j));
        result.push_back({Item::Kind::kBlock, block});
      } else if (const CallInfo* info = random(items[i])) {
        while (j < items.size() && !training(items[j]) && random(items[j]) != nullptr &&
               random(items[j])->random_axes == info->random_axes) {
          ++j;
        }
        const int block = static_cast<int>(scopes_.blocks.size());
        scopes_.blocks.push_back({Block::Kind::kRandom, -1, info->random_axes, {}});
        scopes_.blocks[at(block)].items.assign(items.begin() + static_cast<std::ptrdiff_t>(i),
                                               items.begin() + static_cast<std::ptrdiff_t>(j));
        result.push_back({Item::Kind::kBlock, block});
      } else {
        result.push_back(items[i]);
      }
      i = j;
    }
    return result;
  }

  void build_blocks() {
    std::vector<Item> items = build_items(0, 0, static_cast<int>(scopes_.order.size()), 0);
    call(0).items = std::move(items);
    // What a recomputed stretch makes is seen from outside as from outside of a module.
    if (scopes_.calls.back().segment) resolve_operands();
  }

  /// What each call reads from outside and what is read of it outside.
  void flow() {
    const auto need = [&](int id, Entity entity) {
      const int code = entity.is_module ? -2 - entity.index : entity.index;
      if (needed_.insert(pair_key(id, code)).second) call(id).inputs.push_back(entity);
    };
    const auto give = [&](int maker, int reader, int value) {
      for (int c = maker; c != reader; c = call(c).parent) {
        if (given_.insert(pair_key(c, value)).second) call(c).outputs.push_back(value);
      }
    };
    const auto read = [&](int value, int reader) {
      const int producer = scopes_.produced_at(value);
      int c = reader;
      if (scopes_.owner[at(value)] >= 0) {
        value = scopes_.tied(value, reader);
        while (!scopes_.reaches(c, scopes_.owner[at(value)])) {
          need(c, {false, value});
          c = call(c).parent;
        }
      } else if (producer < 0) {
        for (; c != 0; c = call(c).parent) need(c, {false, value});
      } else {
        while (producer < call(c).begin || producer >= call(c).end) {
          need(c, {false, value});
          c = call(c).parent;
        }
        give(scopes_.call_of[at(scopes_.order[at(producer)])], c, value);
      }
    };
    for (size_t p = 0; p < scopes_.order.size(); ++p) {
      const int op = scopes_.order[p];
      // A call of a module from a place that cannot name it.
      for (int c = scopes_.call_of[at(op)]; c != 0 && call(c).begin == static_cast<int>(p);
           c = call(c).parent) {
        for (int from = call(c).parent; !scopes_.reaches(from, call(c).module);
             from = call(from).parent) {
          need(from, {true, call(c).module});
        }
      }
      for (const Operand& operand : scopes_.operands[at(op)]) {
        read(operand.value, scopes_.call_of[at(op)]);
      }
    }
    for (const int output : scopes_.outputs) {
      if (output >= 0) read(output, 0);
    }
    for (Call& each : scopes_.calls) {
      std::sort(each.outputs.begin(), each.outputs.end(), [&](int a, int b) {
        const int pa = scopes_.produced_at(a), pb = scopes_.produced_at(b);
        return pa != pb ? pa < pb
                        : graph_.values[at(a)].output_index < graph_.values[at(b)].output_index;
      });
    }
  }

  const Program& program_;
  const Graph& graph_;
  Scopes scopes_;
  std::unordered_map<std::string, int> module_ids_;
  std::vector<std::vector<Level>> chains_;
  std::vector<Level> root_chain_;
  std::vector<int> alias_;  ///< Of each value: what it is another name of, everywhere.
  std::vector<int> same_;   ///< … and outside of the call that made it.
  std::unordered_map<int, std::vector<Level>> moved_;  ///< Redistributions that went to the caller.
  std::unordered_set<int> silent_, hoisted_;
  std::unordered_map<int, std::vector<int>> region_chains_, call_regions_;
  std::unordered_set<uint64_t> needed_, given_;
};

}  // namespace

bool is_literal(const Graph& graph, const Value& value) {
  constexpr int64_t kLongest = 64;
  return value.kind == ValueKind::kConstant && value.num_elements() <= kLongest &&
         graph.constants.contains(value.fqn);
}

bool Scopes::reaches(int call, int module) const {
  const Call& from = calls[at(call)];
  if (!encloses(from.module, module)) return false;
  if (!from.segment) return true;
  for (int m = module; m != from.module; m = modules[at(m)].parent) {
    if (modules[at(modules[at(m)].parent)].is_list) return false;
  }
  return true;
}

int Scopes::produced_at(int index) const {
  const OpId producer = value(index).producer;
  return producer.valid() ? position[at(producer.index)] : -1;
}

int Scopes::tied(int index, int call) const {
  const int group = tie[at(index)];
  if (group < 0) return index;
  for (int c = call; c >= 0; c = calls[at(c)].parent) {
    for (const int member : ties[at(group)]) {
      if (reaches(c, owner[at(member)])) return member;
    }
  }
  return index;
}

Scopes find_scopes(const Program& program) { return Builder(program).run(); }

}  // namespace nnscaler::emission
