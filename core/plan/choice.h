#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/layout.h"
#include "core/ops/rule.h"

namespace nnscaler {

enum class ChoiceKind : uint8_t {
  kReplicate,        ///< every coordinate does all of it
  kSplit,            ///< along a name of the annotation
  kPartial,          ///< a partial sum passes through: operands of a linear group are Partial
  kPartialGradient,  ///< its dual: a partial gradient passes through
};

/// What one mesh axis does with an operator.
struct AxisChoice {
  ChoiceKind kind = ChoiceKind::kReplicate;
  int index =
      -1;  ///< kSplit: of BoundRule::names; kPartial, kPartialGradient: of BoundRule::linear.
  auto operator<=>(const AxisChoice&) const = default;
};

/// One AxisChoice a mesh axis.
using Choice = std::vector<AxisChoice>;

/// "replicate", "k", "partial", "partial:1", "partial gradient"
std::string to_string(const AxisChoice& choice, const BoundRule& rule);
/// The inverse; nothing for a text that names no choice of this rule.
std::optional<AxisChoice> parse_choice(const std::string& text, const BoundRule& rule);

/// Every choice that an operator has on a mesh, in a fixed order: replicated first, then splits in
/// the order of names. A name is split evenly or not at all, also by several axes together.
/// `differentiable` tells whether any tensor of the operator needs a gradient; without one, the
/// partial-gradient choices are the replicated ones and left out.
std::vector<Choice> all_choices(const BoundRule& rule, const Mesh& mesh, bool differentiable);

/// Layout that tensor input `operand` must have under a choice. Gradient placements of values
/// without a gradient are normalised (Shard as the value, else Replicate).
Layout input_layout(const BoundRule& rule, const Choice& choice, size_t operand,
                    bool requires_grad);
/// Layout in which output `operand` leaves.
Layout output_layout(const BoundRule& rule, const Choice& choice, size_t operand,
                     bool requires_grad);

/// Axes of the choice that split a name.
std::vector<int> axes_splitting(const Choice& choice, int name);
/// Product of the sizes of the axes that split the operator at all: the share of its work is one
/// over this.
int num_parts(const Choice& choice, const Mesh& mesh);

/// Shape of one rank's part; Extent::value only.
std::vector<int64_t> local_shape(const Value& value, const Layout& layout, const Mesh& mesh);
/// Bytes of one rank's part.
int64_t local_bytes(const Value& value, const Layout& layout, const Mesh& mesh);

}  // namespace nnscaler
