#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nnscaler {

/// A size as the archive writes it: sympy's `srepr`, here as Python.
struct SizeExpression {
  std::string text;               ///< "2*s27", "s27//2 + 1"
  std::optional<int64_t> number;  ///< When it is a plain integer.
  std::string unknown;            ///< A function that Python has no spelling for, kept by its name.
};

/// Reads `Add(Mul(Integer(2), Symbol('s27', positive=True, integer=True)), Integer(1))`.
/// Raises InputError, naming the column, for anything that is not such an expression.
SizeExpression parse_srepr(std::string_view srepr);

/// Whether `text` names a Python variable: "x", "_fn".
bool is_identifier(std::string_view text);
/// Whether `text` is identifiers joined by dots: "pkg.mod.Class".
bool is_dotted_name(std::string_view text);

/// Whether `text` is a Python expression that computes nothing: numbers, strings, None, dotted
/// names
/// (`torch.float32`), tuples, lists, dicts, sets of those, and calls of `torch.device`,
/// `torch.Size`, `float`, `complex` and `slice`. What an archive says lands in generated code only
/// if it is one.
bool is_literal(std::string_view text);

/// A float as Python prints it: "2.0", "1e-05", `float("inf")`.
std::string print_float(double value);

/// `text` as a Python string literal in double quotes.
std::string quote(std::string_view text);

}  // namespace nnscaler
