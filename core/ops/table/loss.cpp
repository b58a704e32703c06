#include <algorithm>

#include "core/ops/table.h"

namespace nnscaler {

namespace {

enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

double elements(const Value& value) { return static_cast<double>(value.num_elements()); }

/// Broadcast shape of the inputs, as names.
std::vector<int> broadcast_dims(Binder& b) {
  std::vector<Extent> shape;
  for (int i = 0; i < b.num_inputs(); ++i) {
    const auto& own = b.in_shape(i);
    if (own.size() > shape.size())
      shape.insert(shape.begin(), own.size() - shape.size(), Extent{1, ""});
    for (size_t back = 1; back <= own.size(); ++back) {
      Extent& extent = shape[shape.size() - back];
      if (extent.value == 1 && !extent.is_symbolic()) extent = own[own.size() - back];
    }
  }
  return b.fresh_dims(shape);
}

/// A loss of each element, then their mean, sum or neither.
void bind_elementwise(Binder& b) {
  const std::vector<int> dims = broadcast_dims(b);
  for (int i = 0; i < b.num_inputs(); ++i) b.broadcast_in(i, dims);
  switch (b.integer("reduction", kMean)) {
    case kNone:
      b.set_out(0, dims);
      return;
    case kSum:
      for (const int name : dims) b.sum(name);
      return;
    default:
      for (const int name : dims) b.mean(name);
  }
}

/// input: N C d…, or C alone; target: class indices N d…, or a probability of each class.
void bind_cross_entropy(Binder& b) {
  const int input = b.input("self"), target = b.input("target"), weight = b.input("weight");
  const auto& shape = b.in_shape(input);
  if (shape.empty() || target < 0) return bind_opaque(b);
  const size_t class_dim = shape.size() == 1 ? 0 : 1;
  const bool probabilities = is_differentiable(b.in(target).dtype);
  const int64_t reduction = b.integer("reduction", kMean);
  b.reserved = {"N", "C"};
  std::vector<int> dims, rows;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d == class_dim) {
      dims.push_back(b.name("C", shape[d]));
    } else {
      dims.push_back(d == 0 ? b.name("N", shape[d]) : b.fresh(shape[d]));
      rows.push_back(dims.back());
    }
  }
  const int classes = dims[class_dim];
  b.set_in(input, dims);
  b.set_in(target, probabilities ? dims : rows);
  b.set_in(weight, std::vector<int>{classes});
  if (reduction == kNone) b.set_out(0, rows);

  int64_t num_rows = 1;
  for (const int row : rows) num_rows *= std::max<int64_t>(1, b.at(row).extent);
  const int64_t row_bytes = num_rows * std::max<int64_t>(4, dtype_bytes(b.in(input).dtype));
  if (probabilities) {
    b.freeze(classes, "with class probabilities every class is needed");
  } else {
    b.at(classes).keyword = "classes";
    b.rule.callee = "nnscaler.runtime.functional.cross_entropy";
    // The rows' maxima; then the sums of exponentials, the targets' logits and, when smoothing, the
    // sums of logits.
    const int terms = b.number("label_smoothing", 0) > 0 ? 3 : 2;
    b.rule.inner.push_back({classes, Collective::kAllReduce, row_bytes, rows, false});
    b.rule.inner.push_back({classes, Collective::kAllReduce, terms * row_bytes, rows, false});
    if (weight >= 0)
      b.rule.inner.push_back({classes, Collective::kAllGather, b.in(weight).bytes(), {}, false});
  }
  for (const int row : rows) {
    if (reduction == kSum) b.sum(row);
    if (reduction != kMean) continue;
    b.sum(row);
    if (probabilities) {
      b.at(row).rescale = row == rows.front();
      if (row != rows.front()) b.freeze(row, "the mean divides by the first dimension only");
      continue;
    }
    // Ranks differ in how many labels count, so the sum is divided by the count of all.
    b.at(row).keyword = "batch";
    b.rule.callee = "nnscaler.runtime.functional.cross_entropy";
    b.rule.inner.push_back({row, Collective::kAllReduce, 8, {}, false});
  }
  const double work = elements(b.in(input));
  b.flops(8 * work, b.out_needs_gradient() ? 2 * work : 0);
}

/// Like cross entropy, on log probabilities, without a variant that communicates.
void bind_nll(Binder& b) {
  const int input = b.input("self"), target = b.input("target"), weight = b.input("weight");
  const auto& shape = b.in_shape(input);
  if (shape.empty() || target < 0) return bind_opaque(b);
  const size_t class_dim = shape.size() == 1 ? 0 : 1;
  const int64_t reduction = b.integer("reduction", kMean);
  b.reserved = {"N", "C"};
  std::vector<int> dims, rows;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool is_class = d == class_dim;
    dims.push_back(is_class ? b.name("C", shape[d])
                   : d == 0 ? b.name("N", shape[d])
                            : b.fresh(shape[d]));
    if (!is_class) rows.push_back(dims.back());
  }
  b.freeze(dims[class_dim], "a label may be in any part");
  for (const int row : rows) {
    if (reduction == kSum) b.sum(row);
    if (reduction == kMean) b.freeze(row, "the mean is over the labels that are not ignored");
  }
  b.set_in(input, dims);
  b.set_in(target, rows);
  b.set_in(weight, std::vector<int>{dims[class_dim]});
  if (reduction == kNone) b.set_out(0, rows);
}

/// Distances along the last dim, then the reduction.
void bind_rowwise(Binder& b) {
  const std::vector<int> dims = broadcast_dims(b);
  if (dims.empty()) return;
  b.freeze(dims.back(), "it is compared as a whole");
  const std::vector<int> rows(dims.begin(), dims.end() - 1);
  for (int i = 0; i < b.num_inputs(); ++i) {
    const bool labels = b.in_shape(i).size() < dims.size();
    b.broadcast_in(i, labels ? rows : dims);
  }
  for (const int row : rows) {
    const int64_t reduction = b.integer("reduction", kMean);
    if (reduction == kSum) b.sum(row);
    if (reduction == kMean) b.mean(row);
  }
  if (b.integer("reduction", kMean) == kNone) b.set_out(0, rows);
}

constexpr Rule kElementwise{"a+ -> 1, or a -> a without reduction", bind_elementwise};

}  // namespace

const Entries& loss_entries() {
  static const Entries entries = {
      {.targets = "cross_entropy_loss",
       .signatures = "F.cross_entropy torch._C._nn.cross_entropy_loss",
       .rule = {"N+ C, N+, C -> 1; C by a runtime variant", bind_cross_entropy},
       .arguments = "self target weight",
       .saved = "self"},
      {.targets = "{nll_loss_nd,nll_loss,nll_loss2d}",
       .signatures = "F.nll_loss torch._C._nn.{nll_loss_nd,nll_loss,nll_loss2d}",
       .rule = {"N+ C^, N+, C^ -> 1; N^ for a mean", bind_nll},
       .arguments = "self target weight",
       .saved = "target weight",
       .flops = 0},
      {.targets = "mse_loss",
       .signatures = "F.mse_loss",
       .rule = kElementwise,
       .saved = "self target",
       .flops = 3},
      {.targets = "l1_loss",
       .signatures = "F.l1_loss",
       .rule = kElementwise,
       .saved = "self target",
       .flops = 3},
      {.targets = "{smooth_l1_loss,huber_loss,soft_margin_loss}",
       .signatures = "F.*",
       .rule = kElementwise,
       .saved = "self target",
       .flops = 4},
      {.targets = "binary_cross_entropy",
       .signatures = "F.binary_cross_entropy",
       .rule = kElementwise,
       .saved = "self target weight",
       .flops = 8},
      {.targets = "binary_cross_entropy_with_logits",
       .signatures = "F.binary_cross_entropy_with_logits torch.binary_cross_entropy_with_logits",
       .rule = kElementwise,
       .saved = "self target weight pos_weight",
       .flops = 8},
      {.targets = "kl_div",
       .signatures = "F.kl_div torch.kl_div",
       .rule = kElementwise,
       .saved = "self target",
       .flops = 8},
      {.targets = "{poisson_nll_loss,hinge_embedding_loss,margin_ranking_loss}",
       .signatures = "F.* torch.*",
       .rule = kElementwise,
       .flops = 4},
      {.targets = "cosine_embedding_loss",
       .signatures = "F.cosine_embedding_loss torch.cosine_embedding_loss",
       .rule = {"N+ d^, N+ d^, N+ -> 1", bind_rowwise},
       .saved = "input1 input2",
       .flops = 6},
      {.targets = "triplet_margin_loss",
       .signatures = "F.triplet_margin_loss torch.triplet_margin_loss",
       .rule = {"N+ d^, N+ d^, N+ d^ -> 1", bind_rowwise},
       .saved = "anchor positive negative",
       .flops = 6},
  };
  return entries;
}

}  // namespace nnscaler
