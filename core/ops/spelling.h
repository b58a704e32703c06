#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnscaler {

/// What an argument goes through on its way from ATen to Python.
enum class ArgumentForm : uint8_t {
  kPlain,
  kReduction,  ///< 0, 1, 2 -> "none", "mean", "sum"
  kSpread,     ///< a list of tensors as single arguments
  kTraining,   ///< True follows the module's mode where the graph's flags do
};

/// One argument of a Python call.
struct SpelledArgument {
  std::string_view aten;     ///< Name in the ATen schema; "" for a constant.
  std::string_view python;   ///< Keyword; "" prints it by position.
  std::string_view omit_if;  ///< Left out when it prints so.
  std::string_view constant;
  ArgumentForm form = ArgumentForm::kPlain;
};

/// How an ATen operator prints.
enum class SpellingStyle : uint8_t {
  kCall,       ///< name(arguments)
  kMethod,     ///< self.name(arguments)
  kInfix,      ///< self name other
  kReflected,  ///< other name self
  kPrefix,     ///< name self
  kIndex,      ///< self[...], or an assignment to it
  kAlias,      ///< self[...]
  kShape,      ///< self.shape[dim]
  kRaw,        ///< torch.ops.aten.name.overload(arguments): always right, never pretty
};

struct Spelling {
  SpellingStyle style = SpellingStyle::kRaw;
  std::string name;     ///< "F.embedding", "view", "+"
  bool listed = false;  ///< `arguments` says which, in which order; else they go as the archive has
                        ///< them.
  std::vector<SpelledArgument> arguments;
  bool spread = false;  ///< The last list of integers goes as single arguments: x.view(2, -1)
  bool number = false;  ///< A list `dim` of one goes as a number: x.mean(-1)
};

/// The Python for an ATen operator; `torch_fn` ("method_descriptor.softmax") chooses where the user
/// had a choice, and is otherwise ignored: it is wrong often. `arguments` are the names of those
/// that are present. kRaw for what the table lacks.
Spelling spelling_of(std::string_view target, std::string_view torch_fn,
                     const std::vector<std::string_view>& arguments);

/// Whether `target` writes its first argument and returns it: "aten.add_.Tensor".
bool is_in_place(std::string_view target);
/// "aten.add_.Tensor" -> "add_"
std::string_view base_name(std::string_view target);

/// Every target (without overload) with a row of its own, sorted; for tests.
std::vector<std::string> spelled_targets();

}  // namespace nnscaler
