#pragma once

// What the parts of the code generator share. Not for other folders: they include emit.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/lower/program.h"

namespace nnscaler::emission {

/// What a function of the generated code reads from outside: a value (its index), or a module.
struct Entity {
  bool is_module = false;
  int index = -1;
  bool operator==(const Entity&) const = default;
};

/// A module of the user's, whether it becomes a class, a list or a mere holder of parameters.
struct Module {
  std::string name;  ///< Last component of the path.
  std::string path;
  std::string class_name;  ///< Full; "" where the archive does not tell.
  int parent = -1;
  int enter = 0, leave = 0;   ///< Preorder interval: ancestors enclose descendants.
  std::vector<int> children;  ///< In the state dict's order, as far as the archive tells.
  std::vector<int> slots;     ///< Values: parameters, then buffers and constants, in order.
  bool is_class = false;      ///< Printed as a class of its own.
  bool is_list = false;       ///< Children are named 0, 1, 2, …
  std::vector<int> calls;     ///< Of a class, in order.
};

/// Part of a function's body.
struct Item {
  enum class Kind : uint8_t { kOp, kCall, kBlock };
  Kind kind = Kind::kOp;
  int index = -1;  ///< Operator, call or block.
};

/// Statements under a `with` or `if`.
struct Block {
  enum class Kind : uint8_t { kRegion, kTraining, kRandom };
  Kind kind = Kind::kRegion;
  int region = -1;        ///< kRegion
  std::vector<int> axes;  ///< kRandom
  std::vector<Item> items;
};

/// One run of a module's forward, or a stretch of it that is recomputed (a segment).
struct Call {
  int module = 0;
  int parent = -1;
  bool segment = false;
  int recompute = -1;      ///< The recompute region that is exactly this call.
  int frame = 0;           ///< Index of its frame in the operators' full module stacks.
  int begin = 0, end = 0;  ///< In Scopes::order.
  std::vector<Item> items;
  std::vector<Entity> inputs;  ///< Read from outside, by first use.
  std::vector<int> outputs;    ///< Values read outside, by position.
};

/// One tensor or symbolic size that an operator reads.
struct Operand {
  int argument = 0;
  int element = 0;  ///< Within a list.
  int value = -1;   ///< After aliases.
};

/// Whether a tensor constant prints as a literal: it is small and its contents are known.
bool is_literal(const Graph& graph, const Value& value);

/// The program as a tree of calls over a tree of modules.
struct Scopes {
  const Program* program = nullptr;
  std::vector<Module> modules;  ///< 0 is the root.
  std::vector<Call> calls;      ///< 0 is the root's.
  std::vector<Block> blocks;
  std::vector<int> order;     ///< Operators as printed: sizes hoisted, what needs no line left out.
  std::vector<int> position;  ///< Of each operator in `order`, -1 where it is left out.
  std::vector<int> call_of;   ///< Innermost call of each operator.
  std::vector<std::vector<Operand>> operands;  ///< Of each operator.
  std::vector<int> owner;              ///< Of each value that a module holds: the module, else -1.
  std::vector<std::string> attribute;  ///< … and its name there.
  std::vector<int> tie;                ///< Of each value: its group of ties, else -1.
  std::vector<std::vector<int>> ties;  ///< Values of each group.
  std::vector<char> cloned;  ///< Of each operator: a literal that is written to, so it is copied.
  std::vector<int> outputs;  ///< Of the graph, after aliases; -1 for none.
  std::vector<int> entry;    ///< Operators that were hoisted, in order.

  const Graph& graph() const { return program->graph; }
  const Operator& op(int index) const { return graph().operators[static_cast<size_t>(index)]; }
  const Value& value(int index) const { return graph().values[static_cast<size_t>(index)]; }
  bool encloses(int ancestor, int module) const {
    const Module& a = modules[static_cast<size_t>(ancestor)];
    const Module& m = modules[static_cast<size_t>(module)];
    return a.enter <= m.enter && m.leave <= a.leave;
  }
  /// Whether `call`'s body names what `module` holds by a path from `self`. A recomputed stretch is
  /// given what lies in a list, so that one serves all elements.
  bool reaches(int call, int module) const;
  /// Position of the value's producer, -1 for what no printed operator writes.
  int produced_at(int value) const;
  /// Of a group of ties the member that `call` can best name; the value itself without ties.
  int tied(int value, int call) const;
};

/// Passes: modules, chains of frames, sizes to the entry, aliases, calls, blocks, data flow.
Scopes find_scopes(const Program& program);

}  // namespace nnscaler::emission
