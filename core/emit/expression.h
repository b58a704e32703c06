#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "core/emit/scope.h"

namespace nnscaler::emission {

/// How the parts of an operator read in the function where it is printed.
struct Context {
  std::function<std::string(int argument, int element)> operand;
  std::function<std::string(int argument, int element, const std::string& literal)> number;
  /// A list of tensors that is a Python list as it stands: its name.
  std::function<std::optional<std::string>(int argument)> list;
};

/// Python for operators; collects the modules to import.
class Speller {
 public:
  explicit Speller(const Program& program);

  struct Result {
    std::string text;
    bool statement = false;      ///< An assignment already: nothing may go before it.
    bool primary = false;        ///< A method call may follow it.
    bool takes_primary = false;  ///< Its first argument may be any primary expression.
  };
  /// Flat Python for the operator; redistributions included. Raises UnsupportedError, naming
  /// operator, file and line, for what cannot be printed.
  Result spell(const Scopes& scopes, int op, const Context& context);

  /// "torch.float32"
  static std::string dtype(DType dtype);
  /// An expression for a class or function by its full name; its module is imported.
  std::string import_name(const std::string& module, const std::string& qualname);
  /// A device's type as an expression: this rank's where it is the model's.
  std::string device_type(const std::string& type) const;
  const std::set<std::string>& imports() const { return imports_; }
  /// Whether an operator printed that some library of the user's defines.
  bool uses_custom_operators() const { return custom_; }
  /// "all_reduce(\"tp\")" lists of a redistribution.
  std::string steps(const Steps& steps) const;

 private:
  std::string argument(const Operator& op, int index, const Context& context) const;
  std::string index(const Scopes& scopes, int op, const Context& context, bool* statement) const;
  std::string device(const DeviceArg& device) const;

  const Program& program_;
  std::string
      device_type_;  ///< Of the model's own tensors: those literals mean this rank's device.
  std::set<std::string> imports_;
  bool custom_ = false;
};

/// "file.py:12: in forward", for messages; "an unknown place" where the archive does not tell.
std::string place_of(const Graph& graph, const Operator& op);

}  // namespace nnscaler::emission
