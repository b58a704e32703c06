#include "core/plan/choice.h"

#include <algorithm>
#include <charconv>

#include "core/base/error.h"

namespace nnscaler {

namespace {

/// The dim of the operand that splitting `name` shards, or -1.
int dim_of(const BoundOperand& operand, int name) {
  for (size_t dim = 0; dim < operand.dims.size(); ++dim) {
    const std::vector<int>& names = operand.dims[dim];
    if (std::find(names.begin(), names.end(), name) != names.end()) return static_cast<int>(dim);
  }
  return -1;
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

AxisLayout normalised(AxisLayout layout, bool requires_grad) {
  if (!requires_grad) {
    layout.gradient = layout.value.is_shard() ? layout.value : Placement::replicate();
  }
  return layout;
}

}  // namespace

std::string to_string(const AxisChoice& choice, const BoundRule& rule) {
  const auto numbered = [&](std::string text) {
    return choice.index > 0 ? text + ":" + std::to_string(choice.index) : text;
  };
  switch (choice.kind) {
    case ChoiceKind::kReplicate:
      return "replicate";
    case ChoiceKind::kSplit:
      return rule.names[static_cast<size_t>(choice.index)].name;
    case ChoiceKind::kPartial:
      return numbered("partial");
    case ChoiceKind::kPartialGradient:
      return numbered("partial gradient");
  }
  throw InternalError("internal error: unknown choice");
}

std::optional<AxisChoice> parse_choice(const std::string& text, const BoundRule& rule) {
  if (text == "replicate") return AxisChoice{};
  for (size_t i = 0; i < rule.names.size(); ++i) {
    if (rule.names[i].name == text) return AxisChoice{ChoiceKind::kSplit, static_cast<int>(i)};
  }
  for (const ChoiceKind kind : {ChoiceKind::kPartial, ChoiceKind::kPartialGradient}) {
    for (size_t i = 0; i < rule.linear.size(); ++i) {
      const AxisChoice choice{kind, static_cast<int>(i)};
      if (to_string(choice, rule) == text) return choice;
    }
  }
  return std::nullopt;
}

std::vector<Choice> all_choices(const BoundRule& rule, const Mesh& mesh, bool differentiable) {
  std::vector<AxisChoice> single = {AxisChoice{}};
  for (size_t i = 0; i < rule.names.size(); ++i) {
    if (rule.names[i].splittable) single.push_back({ChoiceKind::kSplit, static_cast<int>(i)});
  }
  for (size_t i = 0; i < rule.linear.size(); ++i) {
    single.push_back({ChoiceKind::kPartial, static_cast<int>(i)});
  }
  // A partial gradient that passes through is the same whichever group is meant.
  if (differentiable && !rule.linear.empty()) single.push_back({ChoiceKind::kPartialGradient, 0});

  std::vector<Choice> result = {{}};
  for (const MeshAxis& axis : mesh.axes) {
    std::vector<Choice> longer;
    for (const Choice& choice : result) {
      for (const AxisChoice& added : single) {
        if (axis.size == 1 && added.kind != ChoiceKind::kReplicate) continue;
        Choice next = choice;
        next.push_back(added);
        bool even = true;
        if (added.kind == ChoiceKind::kSplit) {
          int64_t parts = 1;
          for (const int a : axes_splitting(next, added.index))
            parts *= mesh.axes[static_cast<size_t>(a)].size;
          const int64_t extent = rule.names[static_cast<size_t>(added.index)].extent;
          even = extent > 0 && extent % parts == 0;
          // Two names of one dim can't both be split: only the outermost is contiguous.
          for (const AxisChoice& other : choice) {
            if (other.kind != ChoiceKind::kSplit || other.index == added.index) continue;
            for (const auto* operands : {&rule.inputs, &rule.outputs}) {
              for (const BoundOperand& operand : *operands) {
                const int dim = dim_of(operand, added.index);
                if (dim >= 0 && dim == dim_of(operand, other.index)) even = false;
              }
            }
          }
        }
        if (even) longer.push_back(std::move(next));
      }
    }
    result = std::move(longer);
  }
  return result;
}

Layout input_layout(const BoundRule& rule, const Choice& choice, size_t operand,
                    bool requires_grad) {
  const int input = static_cast<int>(operand);
  Layout layout;
  for (const AxisChoice& axis : choice) {
    AxisLayout placed;
    if (axis.kind == ChoiceKind::kSplit) {
      const BoundName& name = rule.names[static_cast<size_t>(axis.index)];
      const int dim = dim_of(rule.inputs[operand], axis.index);
      if (dim >= 0) {
        placed = {Placement::shard(dim), Placement::shard(dim)};
      } else if (contains(name.once, input)) {
        placed = {Placement::partial(), Placement::replicate()};
      } else if (!contains(rule.inputs[operand].no_gradient_sum, axis.index)) {
        placed = {Placement::replicate(), Placement::partial()};
      }
    } else if (axis.kind == ChoiceKind::kPartial) {
      const bool in_group = contains(rule.linear[static_cast<size_t>(axis.index)].inputs, input);
      placed = in_group ? AxisLayout{Placement::partial(), Placement::replicate()}
                        : AxisLayout{Placement::replicate(), Placement::partial()};
    } else if (axis.kind == ChoiceKind::kPartialGradient) {
      placed = {Placement::replicate(), Placement::partial()};
    }
    layout.push_back(normalised(placed, requires_grad));
  }
  return layout;
}

Layout output_layout(const BoundRule& rule, const Choice& choice, size_t operand,
                     bool requires_grad) {
  Layout layout;
  for (const AxisChoice& axis : choice) {
    AxisLayout placed;
    if (axis.kind == ChoiceKind::kSplit) {
      const BoundName& name = rule.names[static_cast<size_t>(axis.index)];
      const int dim = dim_of(rule.outputs[operand], axis.index);
      if (dim >= 0) {
        placed = {Placement::shard(dim), Placement::shard(dim)};
      } else if (name.partial) {
        placed = {Placement::partial(name.reduction), Placement::replicate()};
      }
    } else if (axis.kind == ChoiceKind::kPartial) {
      placed = {Placement::partial(), Placement::replicate()};
    } else if (axis.kind == ChoiceKind::kPartialGradient) {
      placed = {Placement::replicate(), Placement::partial()};
    }
    layout.push_back(normalised(placed, requires_grad));
  }
  return layout;
}

std::vector<int> axes_splitting(const Choice& choice, int name) {
  std::vector<int> axes;
  for (size_t axis = 0; axis < choice.size(); ++axis) {
    if (choice[axis].kind == ChoiceKind::kSplit && choice[axis].index == name)
      axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

int num_parts(const Choice& choice, const Mesh& mesh) {
  int parts = 1;
  for (size_t axis = 0; axis < choice.size(); ++axis) {
    if (choice[axis].kind == ChoiceKind::kSplit) parts *= mesh.axes[axis].size;
  }
  return parts;
}

std::vector<int64_t> local_shape(const Value& value, const Layout& layout, const Mesh& mesh) {
  std::vector<int64_t> shape;
  for (const Extent& extent : value.shape) shape.push_back(extent.value);
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].value.is_shard()) {
      int64_t& extent = shape[static_cast<size_t>(layout[axis].value.dim())];
      check(extent % mesh.axes[axis].size == 0, "uneven shard of " + value.name);
      extent /= mesh.axes[axis].size;
    }
  }
  return shape;
}

int64_t local_bytes(const Value& value, const Layout& layout, const Mesh& mesh) {
  int64_t bytes = value.bytes();
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].value.is_shard()) bytes /= mesh.axes[axis].size;
  }
  return bytes;
}

}  // namespace nnscaler
