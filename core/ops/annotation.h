#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nnscaler {

/// Mark that follows a name in an annotation.
enum class Mark : uint8_t {
  kNone,    ///< splitting it splits every output that has it
  kSum,     ///< `+`: splitting it leaves outputs without it as partial sums
  kFrozen,  ///< `^`: may not be split
};

/// One name or number in a dimension: `k+`, `8`, `*`.
struct DimToken {
  std::string name;    ///< identifier, "*", or "" for a number
  int64_t number = 0;  ///< for a number
  Mark mark = Mark::kNone;
  int column = 0;  ///< 1-based, for messages
  bool operator==(const DimToken& other) const {
    return name == other.name && number == other.number && mark == other.mark;
  }
};

/// One dimension: a single token, or several in brackets, outermost first.
using DimExpr = std::vector<DimToken>;

struct ShapeExpr {
  bool opaque = false;  ///< `?`: not a tensor, or a tensor that is only ever replicated
  std::vector<DimExpr> dims;
  bool no_gradient_sum_any = false;          ///< `:/`, or `/` as the whole shape
  std::vector<std::string> no_gradient_sum;  ///< `: /m`
  bool operator==(const ShapeExpr&) const = default;
};

/// A dimension rule in nnScaler's language: `b m^ k+, n k+ -> b m^ n`.
struct Annotation {
  std::vector<ShapeExpr> inputs;
  std::vector<ShapeExpr> outputs;
  bool operator==(const Annotation&) const = default;
};

/// Reads an annotation. Raises InputError with the text, the column and what was expected. An
/// unmarked name that an output lacks is an error, as is one name with two marks, nested brackets,
/// `*` inside brackets, or `*` in outputs only.
Annotation parse_annotation(std::string_view text);

/// The text again, in canonical spacing; parse_annotation(to_string(a)) == a.
std::string to_string(const Annotation& annotation);

}  // namespace nnscaler
