#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "core/emit/scope.h"

namespace nnscaler::emission {

/// A number that may differ between modules of one class.
using Number = std::variant<int64_t, double>;

/// Where a number stands in an operator: argument, and element of a list.
struct Hole {
  int argument = 0;
  int element = 0;
  Number number;
};
/// The numbers of an operator that may become constructor arguments, in a fixed order. Dims and
/// enumerations are structure and not among them.
std::vector<Hole> holes_of(const Operator& op);

/// Appends to `key` all that distinguishes an operator but its numbers and what it reads; for each
/// thing that it may read `read(operand)` is called, with nullptr for None.
void operator_key(const Scopes& scopes, int op, std::string& key,
                  const std::function<void(const Operand*)>& read);
/// Appends what distinguishes a region.
void region_key(const Region& region, std::string& key);

/// A value that a call hands out: its producer's position counted from the call's begin, and which
/// of its outputs.
struct Output {
  int offset = 0;
  int index = 0;
  auto operator<=>(const Output&) const = default;
};

/// A function of a class: forward, or a recomputed stretch of one.
struct Method {
  std::string name;             ///< "forward", "forward_1", "_recompute"
  int call = -1;                ///< The first call of it in the program: what is printed.
  std::vector<Output> outputs;  ///< United over all calls of all modules of the class.
};

struct ConstructorArgument {
  std::string name;
  bool in_forward = false;  ///< Kept as an attribute.
};

/// A module class of the generated file.
struct Class {
  std::string name;
  std::vector<int> members;  ///< Modules; the first is printed.
  std::vector<Method> methods;
  std::vector<ConstructorArgument> arguments;
  std::vector<int> argument_of;  ///< Of each number in `numbers`: the argument, -1 where all agree.
};

/// A tie that a class makes: `target` is another name of `source`.
struct Tie {
  int source = -1;
  int target = -1;
};

struct Classes {
  const Scopes* scopes = nullptr;
  std::vector<Class> classes;  ///< Those that a class builds come before it; the root is last.
  std::vector<int> class_of;   ///< Of each module; -1 for none.
  std::vector<int> method_of;  ///< Of each call: index into its class's methods.
  std::vector<std::vector<Number>> numbers;    ///< Of each module of a class.
  std::vector<std::vector<Number>> arguments;  ///< … and what its constructor is given.
  std::vector<int> op_numbers;     ///< Of each operator: where its numbers begin in its module's.
  std::vector<int> slot_numbers;   ///< Of each value that a module holds: likewise.
  std::vector<int> child_numbers;  ///< Of each module of a class: likewise in its builder's.
  std::vector<std::vector<Tie>> ties;  ///< Of each module of a class: those that it makes.
  std::vector<char> is_tied;           ///< Of each value: it is the target of a tie.

  /// The class module that builds `module`, itself for a class.
  int builder_of(int module) const;
};

/// Merges equal modules into classes.
Classes find_classes(const Scopes& scopes);

}  // namespace nnscaler::emission
