#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/emit/scope.h"

namespace nnscaler::emission {

/// Names on the left of an assignment: "q, k = f(x)" -> {"q", "k"}, "x += 1" -> {"x"}; "" for a
/// target that is no plain name. Empty for other statements.
std::vector<std::string> assigned_names(std::string_view line);

/// What a value is called where the source does not tell: by its operator.
std::string operator_hint(const Scopes& scopes, int op, int output);

/// A name for a value by the source line that made it, as seen in `call` and in the calls below it;
/// "" where there is none. `innermost` first: for one of several results.
std::string source_hint(const Scopes& scopes, int value, int call, bool innermost = false);

/// Whether the operator hands on its first argument in another shape or type.
bool is_view(const Operator& op);

/// "layers" -> "layer"; `fallback` where the name is no plural.
std::string singular(const std::string& name, const std::string& fallback);

/// "GPT2Block" -> "block"
std::string last_word(const std::string& camel);

/// A name that Python accepts and that shadows no builtin.
std::string safe_name(const std::string& name);

}  // namespace nnscaler::emission
