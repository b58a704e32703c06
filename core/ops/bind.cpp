#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/ops/table.h"

namespace nnscaler {

namespace {

size_t slot(int i) { return static_cast<size_t>(i); }

/// Calls `visit` on each part of `text` between separators, without blanks around it.
template <typename Visit>
void each_part(std::string_view text, char separator, Visit&& visit) {
  while (!text.empty()) {
    const size_t end = text.find(separator);
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) visit(part);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> as_integer(const ArgValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* size = std::get_if<SymInt>(&value); size && !size->symbol.valid())
    return size->value;
  if (const auto* source = std::get_if<PySource>(&value)) {
    int64_t number = 0;
    const char* end = source->text.data() + source->text.size();
    const auto [stop, error] = std::from_chars(source->text.data(), end, number);
    if (error == std::errc() && stop == end) return number;
  }
  return std::nullopt;
}

}  // namespace

Binder::Binder(const Graph& g, const Operator& o, const Entry* e) : graph(g), op(o), entry(e) {
  for (const Argument& argument : op.args) {
    const int first = num_inputs();
    if (const auto* id = std::get_if<ValueId>(&argument.value)) {
      inputs_.push_back(*id);
    } else if (const auto* list = std::get_if<TensorList>(&argument.value)) {
      for (const ValueId each : *list) {
        if (each.valid()) inputs_.push_back(each);
      }
    }
    if (num_inputs() > first) groups_.push_back({argument.name, first, num_inputs() - first});
  }
  rule.inputs.resize(inputs_.size());
  for (int i = 0; i < num_inputs(); ++i) rule.inputs[slot(i)].dims.resize(in_shape(i).size());
  rule.outputs.resize(op.outputs.size());
  for (int i = 0; i < num_outputs(); ++i) {
    if (has_out(i)) rule.outputs[slot(i)].dims.resize(out_shape(i).size());
  }
  opaque_in.resize(inputs_.size());
  opaque_out.resize(op.outputs.size());
}

const Value& Binder::none() {
  static const Value value;
  return value;
}

int Binder::input(std::string_view argument) const { return inputs_of(argument).first; }

std::pair<int, int> Binder::inputs_of(std::string_view argument) const {
  for (const Group& group : groups_) {
    if (group.argument == argument) return {group.first, group.count};
  }
  return {-1, 0};
}

bool Binder::has_out(int o) const {
  return o < num_outputs() && op.outputs[slot(o)].valid() && !out(o).is_symbol;
}

bool Binder::out_needs_gradient() const {
  return std::ranges::any_of(
      op.outputs, [&](ValueId id) { return id.valid() && graph.value(id).requires_grad; });
}

bool Binder::is_present(std::string_view argument) const {
  const Argument* found = op.find(argument);
  return found && !std::holds_alternative<std::monostate>(found->value);
}

int64_t Binder::integer(std::string_view argument, int64_t fallback) const {
  const Argument* found = op.find(argument);
  return found ? as_integer(found->value).value_or(fallback) : fallback;
}

bool Binder::flag(std::string_view argument, bool fallback) const {
  const Argument* found = op.find(argument);
  if (!found) return fallback;
  if (const auto* value = std::get_if<bool>(&found->value)) return *value;
  return integer(argument, fallback) != 0;
}

double Binder::number(std::string_view argument, double fallback) const {
  const Argument* found = op.find(argument);
  if (!found) return fallback;
  if (const auto* value = std::get_if<double>(&found->value)) return *value;
  if (const auto* value = std::get_if<bool>(&found->value)) return *value ? 1 : 0;
  const std::optional<int64_t> whole = as_integer(found->value);
  return whole ? static_cast<double>(*whole) : fallback;
}

std::optional<std::vector<int64_t>> Binder::integers(std::string_view argument) const {
  const Argument* found = op.find(argument);
  if (!found) return std::nullopt;
  if (const auto single = as_integer(found->value)) return std::vector<int64_t>{*single};
  const auto* list = std::get_if<std::vector<SymInt>>(&found->value);
  if (!list) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const SymInt& each : *list) {
    if (each.symbol.valid()) return std::nullopt;
    numbers.push_back(each.value);
  }
  return numbers;
}

int Binder::dim(std::string_view argument, int64_t fallback, int rank) const {
  int64_t dim = integer(argument, fallback);
  if (dim < 0) dim += rank;
  return dim < 0 || dim >= rank ? -1 : static_cast<int>(dim);
}

std::vector<bool> Binder::dims(std::string_view argument, int rank) const {
  const auto list = integers(argument);
  if (!list || list->empty()) return std::vector<bool>(slot(rank), true);
  std::vector<bool> marked(slot(rank), false);
  for (int64_t dim : *list) {
    if (dim < 0) dim += rank;
    if (dim >= 0 && dim < rank) marked[static_cast<size_t>(dim)] = true;
  }
  return marked;
}

int Binder::name(std::string_view text, const Extent& extent) {
  BoundName bound;
  bound.name = text;
  bound.extent = extent.value;
  rule.names.push_back(std::move(bound));
  symbolic_.push_back(extent.is_symbolic());
  frozen_.push_back(false);
  return static_cast<int>(rule.names.size()) - 1;
}

int Binder::fresh(const Extent& extent) {
  for (;;) {
    std::string text;
    if (next_letter_ <= 'z') {
      text = std::string(1, next_letter_++);
    } else {
      text = "d" + std::to_string(next_number_++);
    }
    const bool taken = std::ranges::find(rule.names, text, &BoundName::name) != rule.names.end() ||
                       std::ranges::find(reserved, text) != reserved.end();
    if (!taken) return name(text, extent);
  }
}

void Binder::freeze(int name, std::string_view why) {
  if (!at(name).splittable) return;
  at(name).splittable = false;
  at(name).why_not = why;
  frozen_[slot(name)] = true;
}

void Binder::sum(int name, Reduction reduction) {
  at(name).partial = true;
  at(name).reduction = reduction;
}

void Binder::mean(int name) {
  sum(name);
  at(name).rescale = true;
}

std::vector<int> Binder::fresh_dims(const std::vector<Extent>& shape) {
  std::vector<int> names;
  names.reserve(shape.size());
  for (const Extent& extent : shape) names.push_back(fresh(extent));
  return names;
}

namespace {

void put(BoundOperand& operand, const std::vector<int>& dims) {
  operand.dims.assign(dims.size(), {});
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) operand.dims[d] = {dims[d]};
  }
}

}  // namespace

void Binder::set_in(int i, const std::vector<int>& dims) {
  if (i >= 0 && i < num_inputs()) put(rule.inputs[slot(i)], dims);
}
void Binder::set_out(int o, const std::vector<int>& dims) {
  if (has_out(o)) put(rule.outputs[slot(o)], dims);
}
void Binder::set_in(int i, Dims dims) {
  if (i >= 0 && i < num_inputs()) rule.inputs[slot(i)].dims = std::move(dims);
}
void Binder::set_out(int o, Dims dims) {
  if (has_out(o)) rule.outputs[slot(o)].dims = std::move(dims);
}
void Binder::set_outs(const std::vector<int>& dims) {
  for (int o = 0; o < num_outputs(); ++o) set_out(o, dims);
}

void Binder::broadcast_in(int i, const std::vector<int>& dims) {
  if (i < 0 || i >= num_inputs()) return;
  const std::vector<Extent>& shape = in_shape(i);
  std::vector<int> own(shape.size(), kFixed);
  const size_t shared = std::min(shape.size(), dims.size());
  for (size_t back = 1; back <= shared; ++back) {
    const Extent& extent = shape[shape.size() - back];
    const int name = dims[dims.size() - back];
    if (name < 0) continue;
    const bool stretched = extent.value == 1 && !extent.is_symbolic() && at(name).extent != 1;
    if (stretched) continue;
    own[shape.size() - back] = name;
  }
  set_in(i, own);
}

void Binder::give_up() {
  rule.names.clear();
  symbolic_.clear();
  frozen_.clear();
  for (auto* operands : {&rule.inputs, &rule.outputs}) {
    for (BoundOperand& operand : *operands) operand.no_gradient_sum.clear();
  }
  for (int i = 0; i < num_inputs(); ++i) rule.inputs[slot(i)].dims.assign(in_shape(i).size(), {});
  for (int o = 0; o < num_outputs(); ++o) {
    if (has_out(o)) rule.outputs[slot(o)].dims.assign(out_shape(o).size(), {});
  }
  opaque_in.assign(opaque_in.size(), true);
  opaque_out.assign(opaque_out.size(), true);
}

void Binder::no_gradient(int i) {
  if (i < 0 || i >= num_inputs()) return;
  BoundOperand& operand = rule.inputs[slot(i)];
  operand.no_gradient_sum.clear();
  for (size_t n = 0; n < rule.names.size(); ++n)
    operand.no_gradient_sum.push_back(static_cast<int>(n));
}

void Binder::flops(double forward, double backward) {
  rule.forward_flops = forward;
  rule.backward_flops = backward;
  flops_set_ = true;
}

void Binder::product_flops(double forward, std::initializer_list<int> operands) {
  double backward = 0;
  for (const int i : operands) {
    if (i >= 0 && in(i).requires_grad) backward += forward;
  }
  flops(forward, backward);
}

bool Binder::fits() const {
  const auto operand_fits = [&](const BoundOperand& operand, const std::vector<Extent>& shape) {
    if (operand.dims.size() != shape.size()) return false;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d].is_symbolic()) continue;
      uint64_t product = 1;  // of contradictory lengths it may overflow
      for (const int name : operand.dims[d]) {
        if (!symbolic_[slot(name)])
          product *= static_cast<uint64_t>(std::max<int64_t>(rule.names[slot(name)].extent, 0));
      }
      const auto extent = static_cast<uint64_t>(std::max<int64_t>(shape[d].value, 0));
      const bool divides =
          shape[d].value >= 0 && (product == 0 ? extent == 0 : extent % product == 0);
      if (!operand.dims[d].empty() && !divides) return false;
    }
    return true;
  };
  for (int i = 0; i < num_inputs(); ++i) {
    if (!operand_fits(rule.inputs[slot(i)], in_shape(i))) return false;
  }
  for (int o = 0; o < num_outputs(); ++o) {
    if (has_out(o) && !operand_fits(rule.outputs[slot(o)], out_shape(o))) return false;
  }
  return true;
}

void Binder::settle_names() {
  // A dim with a symbolic length stays whole, whatever it is made of.
  const auto symbols = [&](const BoundOperand& each, const std::vector<Extent>& shape) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (!shape[d].is_symbolic()) continue;
      for (const int name : each.dims[d]) set_symbolic(name);
    }
  };
  for (int i = 0; i < num_inputs(); ++i) symbols(rule.inputs[slot(i)], in_shape(i));
  for (int o = 0; o < num_outputs(); ++o) {
    if (has_out(o)) symbols(rule.outputs[slot(o)], out_shape(o));
  }
  std::vector<bool> in_input(rule.names.size(), false);
  const auto operand = [&](const BoundOperand& each, bool is_input) {
    std::vector<int> seen;
    for (const std::vector<int>& dim : each.dims) {
      const BoundName* outer = nullptr;
      for (const int name : dim) {
        if (is_input) in_input[slot(name)] = true;
        if (outer) {
          freeze(name,
                 fmt::format(
                     "only the outermost part of a dimension can be split, and {} stands before it",
                     outer->name));
        }
        if (std::ranges::find(seen, name) != seen.end())
          freeze(name, "it stands for two dimensions of one tensor");
        seen.push_back(name);
        if (!outer && (at(name).extent != 1 || symbolic_[slot(name)])) outer = &at(name);
      }
    }
  };
  for (size_t n = 0; n < rule.names.size(); ++n) {
    BoundName& name = rule.names[n];
    if (!name.splittable) continue;
    if (symbolic_[n]) {
      name.splittable = false;
      name.why_not = "its length is symbolic";
    } else if (name.extent <= 1) {
      name.splittable = false;
      name.why_not = fmt::format("its length is {}", name.extent);
    }
  }
  for (const BoundOperand& each : rule.inputs) operand(each, true);
  for (const BoundOperand& each : rule.outputs) operand(each, false);
  if (entry && entry->splits_outputs) return;
  for (size_t n = 0; n < rule.names.size(); ++n) {
    if (!in_input[n]) freeze(static_cast<int>(n), "no input has it");
  }
}

void Binder::linear(std::vector<int> inputs) {
  for (int o = 0; o < num_outputs(); ++o) {
    if (has_out(o) && !is_differentiable(out(o).dtype)) return;
  }
  for (const int i : inputs) {
    if (i < 0 || i >= num_inputs() || in(i).is_symbol || !is_differentiable(in(i).dtype)) return;
  }
  if (!inputs.empty()) rule.linear.push_back({std::move(inputs)});
}

void Binder::settle_linear() {
  if (!entry) return;
  each_part(entry->linear, ',', [&](std::string_view group) {
    std::vector<int> inputs;
    bool valid = true;
    each_part(group, '+', [&](std::string_view argument) {
      if (argument.starts_with('-')) {
        valid = valid && !is_present(argument.substr(1));
        return;
      }
      const auto [first, count] = inputs_of(argument);
      valid = valid && count > 0;
      for (int i = first; i < first + count; ++i) inputs.push_back(i);
    });
    if (valid) linear(std::move(inputs));
  });
}

void Binder::settle_saved() {
  if (!entry) {
    for (int i = 0; i < num_inputs(); ++i) rule.saved_inputs.push_back(i);
    return;
  }
  if (rule.fused) return;
  each_part(entry->saved, ' ', [&](std::string_view item) {
    if (item.starts_with("result")) {
      const int o = item.size() > 6 ? item[6] - '0' : 0;
      if (o < num_outputs()) rule.saved_outputs.push_back(o);
      return;
    }
    const size_t condition = item.find('?');
    if (condition != std::string_view::npos) {
      const int other = input(item.substr(condition + 1));
      if (other < 0 || !in(other).requires_grad) return;
    }
    const auto [first, count] = inputs_of(item.substr(0, condition));
    for (int i = first; i < first + count; ++i) rule.saved_inputs.push_back(i);
  });
}

void Binder::settle_user_inputs() {
  if (!user_order) {
    user_order.emplace();
    if (!entry || entry->arguments.empty()) {
      for (int i = 0; i < num_inputs(); ++i) user_order->push_back(i);
    } else {
      each_part(entry->arguments, ' ', [&](std::string_view argument) {
        const auto [first, count] = inputs_of(argument);
        for (int i = first; i < first + count; ++i) user_order->push_back(i);
        if (count == 0 && op.find(argument)) user_order->push_back(-1);
      });
    }
  }
  for (const int i : *user_order) {
    rule.user_inputs.push_back(i < 0 ? Dims() : rule.inputs[slot(i)].dims);
  }
}

void Binder::settle_text() {
  std::string text;
  const auto append = [&](const BoundOperand& operand, const std::vector<Extent>& shape) {
    if (operand.dims.empty()) text += '1';
    for (size_t d = 0; d < operand.dims.size(); ++d) {
      if (d) text += ' ';
      const std::vector<int>& dim = operand.dims[d];
      const int64_t extent = std::max<int64_t>(shape[d].value, 0);
      int64_t product = 1;
      for (const int name : dim) product *= std::max<int64_t>(at(name).extent, 1);
      // A dim may have a part without a name, its innermost.
      const bool rest = product > 0 && extent / product > 1 && !dim.empty();
      if (dim.empty()) {
        text += std::to_string(extent);
        continue;
      }
      const bool group = dim.size() > 1 || rest;
      if (group) text += '(';
      for (size_t n = 0; n < dim.size(); ++n) {
        const BoundName& name = at(dim[n]);
        if (n) text += ' ';
        text += name.name;
        if (frozen_[slot(dim[n])]) {
          text += '^';
        } else if (name.partial) {
          text += '+';
        }
      }
      if (rest) text += ' ' + std::to_string(extent / product);
      if (group) text += ')';
    }
  };
  bool first = true;
  for (const int i : *user_order) {
    if (!first) text += ", ";
    first = false;
    if (i < 0 || opaque_in[slot(i)] || in(i).is_symbol) {
      text += '?';
    } else {
      append(rule.inputs[slot(i)], in_shape(i));
    }
  }
  if (!text.empty()) text += ' ';
  text += "->";
  first = true;
  for (int o = 0; o < num_outputs(); ++o) {
    text += first ? " " : ", ";
    first = false;
    if (!has_out(o) || opaque_out[slot(o)]) {
      text += '?';
    } else {
      append(rule.outputs[slot(o)], out_shape(o));
    }
  }
  rule.annotation = std::move(text);
}

void Binder::settle_flops() {
  if (flops_set_) return;
  double elements = 0;
  for (int o = 0; o < num_outputs(); ++o) {
    if (has_out(o)) elements = std::max(elements, static_cast<double>(out(o).num_elements()));
  }
  if (entry && entry->flops > 0 && num_inputs() > 0 && has_out(0) &&
      out(0).num_elements() < in(0).num_elements()) {
    elements = static_cast<double>(in(0).num_elements());  // a reduction
  }
  rule.forward_flops = elements * (entry ? entry->flops : 1);
  if (!out_needs_gradient()) return;
  for (int i = 0; i < num_inputs(); ++i) {
    if (in(i).requires_grad) rule.backward_flops += rule.forward_flops;
  }
}

BoundRule Binder::finish(std::string signature) {
  rule.signature = std::move(signature);
  if (entry) {
    rule.view = entry->view;
    rule.random = rule.random || entry->random;
    if (rule.size_argument.empty()) rule.size_argument = entry->size_argument;
    if (!entry->once.empty()) {
      const int bias = input(entry->once);
      for (size_t n = 0; bias >= 0 && n < rule.names.size(); ++n) {
        if (rule.names[n].partial) rule.names[n].once.push_back(bias);
      }
    }
    if (entry->after) entry->after(*this);
  }
  settle_names();
  settle_linear();
  settle_saved();
  settle_user_inputs();
  settle_text();
  settle_flops();
  return std::move(rule);
}

// Annotations

namespace {

class AnnotationBinder {
 public:
  AnnotationBinder(Binder& binder, const Annotation& annotation, const std::vector<int>& annotated,
                   const std::string& what)
      : binder_(binder), annotation_(annotation), annotated_(annotated), what_(what) {}

  void bind() {
    reserve();
    // Whole dims first: they settle names that groups need.
    for (size_t i = 0; i < annotation_.inputs.size(); ++i) {
      const ShapeExpr& shape = annotation_.inputs[i];
      const int input = annotated_[i];
      if (shape.opaque && input >= 0) binder_.opaque_in[slot(input)] = true;
      if (input < 0 || shape.opaque) continue;
      Operand operand{&shape, &binder_.in_shape(input), "input " + std::to_string(i), input, true,
                      {}};
      align(operand);
      operands_.push_back(std::move(operand));
    }
    for (size_t o = 0; o < annotation_.outputs.size(); ++o) {
      const ShapeExpr& shape = annotation_.outputs[o];
      const int output = static_cast<int>(o);
      if (shape.opaque && output < binder_.num_outputs()) binder_.opaque_out[o] = true;
      if (!binder_.has_out(output) || shape.opaque) continue;
      Operand operand{
          &shape, &binder_.out_shape(output), "output " + std::to_string(o), output, false, {}};
      align(operand);
      operands_.push_back(std::move(operand));
    }
    for (const Operand& operand : operands_) {
      for (const auto& [dim, extent] : operand.dims) {
        if (dim->size() == 1) single(dim->front(), *extent, operand);
      }
    }
    solve_groups();
    place();
    for (size_t i = 0; i < annotation_.inputs.size(); ++i) gradients(i);
  }

 private:
  struct Operand {
    const ShapeExpr* shape;
    const std::vector<Extent>* extents;
    std::string where;
    int index;
    bool is_input;
    std::vector<std::pair<const DimExpr*, const Extent*>> dims;  // one for each dim of the tensor
  };
  struct Length {
    const DimToken* token;
    Extent extent;
    std::string where;
    int star = -1;  ///< Which of the dims that * stands for.
  };

  [[noreturn]] void fail(const std::string& why) const {
    std::vector<std::string> inputs, outputs;
    for (int i = 0; i < binder_.num_inputs(); ++i) inputs.push_back(binder_.in(i).type());
    for (int o = 0; o < binder_.num_outputs(); ++o) {
      if (binder_.has_out(o)) outputs.push_back(binder_.out(o).type());
    }
    throw InputError(
        fmt::format("{}: annotation \"{}\" does not fit {} -> {}: {}; correct it or the call",
                    what_, to_string(annotation_), join(inputs, ", "), join(outputs, ", "), why));
  }

  void reserve() {
    for (const auto* shapes : {&annotation_.inputs, &annotation_.outputs}) {
      for (const ShapeExpr& shape : *shapes) {
        for (const DimExpr& dim : shape.dims) {
          for (const DimToken& token : dim) {
            if (!token.name.empty()) binder_.reserved.push_back(token.name);
          }
        }
      }
    }
  }

  static bool is_star(const DimExpr& dim) { return dim.size() == 1 && dim[0].name == "*"; }

  void align(Operand& operand) const {
    const std::vector<DimExpr>& dims = operand.shape->dims;
    const std::vector<Extent>& extents = *operand.extents;
    const bool star = std::ranges::any_of(dims, is_star);
    // A 1 alone also stands for a tensor without dimensions.
    if (extents.empty() && dims.size() == 1 && dims[0].size() == 1 && dims[0][0].number == 1)
      return;
    const size_t least = dims.size() - (star ? 1 : 0);
    if (star ? extents.size() < least : extents.size() != least) {
      fail(fmt::format("{} has {} dimension{} and its shape \"{}\" {}{}", operand.where,
                       extents.size(), extents.size() == 1 ? "" : "s", shape_text(*operand.shape),
                       star ? "at least " : "", least));
    }
    size_t at_dim = 0;
    for (const DimExpr& dim : dims) {
      const size_t count = is_star(dim) ? extents.size() - least : 1;
      for (size_t i = 0; i < count; ++i) operand.dims.emplace_back(&dim, &extents[at_dim++]);
    }
  }

  static std::string shape_text(const ShapeExpr& shape) {
    Annotation one;
    one.inputs = {shape};
    const std::string text = to_string(one);
    return text.substr(0, text.rfind(" ->"));
  }

  static std::string text(const Extent& extent) {
    return extent.is_symbolic() ? extent.symbol : std::to_string(extent.value);
  }
  static std::string name_of(const Length& length) {
    return length.star < 0 ? length.token->name
                           : "dimension " + std::to_string(length.star) + " of *";
  }

  Length* known(const std::string& name, int star) {
    for (Length& length : lengths_) {
      if (length.token->name == name && length.star == star) return &length;
    }
    return nullptr;
  }

  void learn(const DimToken& token, int star, const Extent& extent, const std::string& where) {
    Length* before = known(token.name, star);
    if (!before) {
      lengths_.push_back({&token, extent, where, star});
    } else if (before->extent.value != extent.value) {
      fail(fmt::format("{} is {} in {} and {} in {}", name_of(*before), text(before->extent),
                       before->where, text(extent), where));
    } else if (extent.is_symbolic()) {
      before->extent.symbol = extent.symbol;
    }
  }

  void single(const DimToken& token, const Extent& extent, const Operand& operand) {
    if (token.name.empty()) {
      if (extent.value != token.number)
        fail(fmt::format("{} has {} where the annotation has {}", operand.where, text(extent),
                         token.number));
      return;
    }
    int star = -1;
    if (token.name == "*") {
      star = star_index_[&operand]++;
    }
    learn(token, star, extent, operand.where);
  }

  /// Length from an integer argument of the same name.
  void learn_argument(const DimToken& token) {
    const Argument* argument = binder_.op.find(token.name);
    if (!argument || known(token.name, -1)) return;
    if (const auto value = as_integer(argument->value)) {
      if (*value > 0) learn(token, -1, Extent{*value, ""}, "argument " + token.name);
    }
  }

  static void multiply(int64_t& product, int64_t factor) {
    if (__builtin_mul_overflow(product, factor, &product)) product = 0;  // divides nothing
  }

  void solve_groups() {
    std::vector<std::tuple<const DimExpr*, const Extent*, const Operand*>> open;
    for (const Operand& operand : operands_) {
      for (const auto& [dim, extent] : operand.dims) {
        if (dim->size() == 1) continue;
        for (const DimToken& token : *dim) {
          if (!token.name.empty()) learn_argument(token);
        }
        open.emplace_back(dim, extent, &operand);
      }
    }
    while (!open.empty()) {
      bool progress = false;
      for (auto it = open.begin(); it != open.end();) {
        const auto& [dim, extent, operand] = *it;
        const DimToken* unknown = nullptr;
        bool solvable = true, symbolic = extent->is_symbolic();
        int64_t product = 1;
        for (const DimToken& token : *dim) {
          if (token.name.empty()) {
            multiply(product, token.number);
          } else if (const Length* length = known(token.name, -1)) {
            multiply(product, length->extent.value);
            symbolic = symbolic || length->extent.is_symbolic();
          } else if (unknown && unknown->name != token.name) {
            solvable = false;
          } else {
            unknown = &token;
          }
        }
        if (!solvable) {
          ++it;
          continue;
        }
        const bool divides = product > 0 && extent->value % product == 0;
        if (!divides || (!unknown && extent->value != product)) {
          fail(fmt::format("{} of {} is {}, and its {}parts multiply to {}", group_text(*dim),
                           operand->where, text(*extent), unknown ? "other " : "", product));
        }
        if (unknown) {
          learn(*unknown, -1, Extent{extent->value / product, symbolic ? text(*extent) : ""},
                operand->where);
        }
        it = open.erase(it);
        progress = true;
      }
      if (progress) continue;
      const auto& [dim, extent, operand] = open.front();
      fail(fmt::format("the parts of {} in {} cannot be told from {} alone", group_text(*dim),
                       operand->where, text(*extent)));
    }
  }

  static std::string group_text(const DimExpr& dim) {
    ShapeExpr shape;
    shape.dims = {dim};
    return shape_text(shape);
  }

  int bound(const DimToken& token, int star) {
    Length* length = known(token.name, star);
    for (const auto& [other, name] : names_) {
      if (other == length) return name;
    }
    const int name =
        star < 0 ? binder_.name(token.name, length->extent) : binder_.fresh(length->extent);
    if (token.mark == Mark::kFrozen) binder_.freeze(name, kMarkedFrozen);
    if (token.mark == Mark::kSum) binder_.sum(name);
    names_.emplace_back(length, name);
    return name;
  }

  void place() {
    for (const Operand& operand : operands_) {
      Binder::Dims dims(operand.extents->size());
      int star = 0;
      for (size_t d = 0; d < operand.dims.size(); ++d) {
        for (const DimToken& token : *operand.dims[d].first) {
          if (token.name.empty()) continue;
          dims[d].push_back(bound(token, token.name == "*" ? star++ : -1));
        }
      }
      if (operand.is_input) {
        binder_.set_in(operand.index, std::move(dims));
      } else {
        binder_.set_out(operand.index, std::move(dims));
      }
    }
  }

  void gradients(size_t i) {
    const ShapeExpr& shape = annotation_.inputs[i];
    if (annotated_[i] < 0) return;
    if (shape.no_gradient_sum_any) binder_.no_gradient(annotated_[i]);
    if (shape.no_gradient_sum_any) return;
    for (size_t n = 0; n < binder_.rule.names.size(); ++n) {
      const std::string& name = binder_.rule.names[n].name;
      if (std::ranges::find(shape.no_gradient_sum, name) != shape.no_gradient_sum.end())
        binder_.rule.inputs[slot(annotated_[i])].no_gradient_sum.push_back(static_cast<int>(n));
    }
  }

  Binder& binder_;
  const Annotation& annotation_;
  const std::vector<int>& annotated_;
  const std::string& what_;
  std::vector<Operand> operands_;
  std::vector<Length> lengths_;
  std::map<const Operand*, int> star_index_;
  std::vector<std::pair<const Length*, int>> names_;
};

}  // namespace

void bind_annotation(Binder& binder, const Annotation& annotation,
                     const std::vector<int>& annotated, const std::string& what) {
  AnnotationBinder(binder, annotation, annotated, what).bind();
}

// Rules that several families use

void bind_pointwise(Binder& b) {
  if (!b.has_out(0)) return;
  const std::vector<int> dims = b.fresh_dims(b.out_shape(0));
  for (int i = 0; i < b.num_inputs(); ++i) b.broadcast_in(i, dims);
  b.set_outs(dims);
}

void bind_opaque(Binder& b) { b.give_up(); }

void copy_dims(Binder& b, const std::vector<int>& source, std::string_view why) {
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  std::vector<int> out;
  std::vector<bool> used(dims.size(), false);
  for (const int d : source) {
    const bool there = d >= 0 && d < static_cast<int>(dims.size());
    out.push_back(there ? dims[slot(d)] : Binder::kFixed);
    if (there) used[slot(d)] = true;
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!used[d]) b.freeze(dims[d], why);
  }
  b.set_in(0, dims);
  b.set_outs(out);
}

void bind_along_dim(Binder& b) {
  const int rank = b.in_rank(0);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  const int along = b.dim("dim", -1, rank);
  std::vector<int> out = dims;
  for (int d = 0; d < rank; ++d) {
    if (d != along) continue;
    b.freeze(dims[slot(d)], "the operator needs all of it");
    const bool kept =
        b.has_out(0) && b.out_rank(0) == rank && b.out_shape(0)[slot(d)] == b.in_shape(0)[slot(d)];
    if (!kept) out[slot(d)] = Binder::kFixed;
  }
  b.set_in(0, dims);
  for (int i = 1; i < b.num_inputs(); ++i) b.opaque_in[slot(i)] = true;
  b.set_outs(out);
}

}  // namespace nnscaler
