#include <algorithm>

#include "core/ops/table.h"

// Softmax and the norms: some dims are normalised together and stay whole.

namespace nnscaler {

namespace {

constexpr std::string_view kNormalised = "it is normalised as a whole";

double elements(const Value& value) { return static_cast<double>(value.num_elements()); }

/// The last dims of input 0 are normalised and shared by weight and bias.
void bind_last_dims(Binder& b, size_t normalised) {
  const auto& shape = b.in_shape(0);
  if (normalised > shape.size()) return bind_opaque(b);
  const std::vector<int> dims = b.fresh_dims(shape);
  for (size_t d = shape.size() - normalised; d < shape.size(); ++d) b.freeze(dims[d], kNormalised);
  for (int i = 0; i < b.num_inputs(); ++i) b.broadcast_in(i, dims);
  for (int o = 0; o < b.num_outputs(); ++o) {
    // Statistics have length 1 where it was normalised.
    if (!b.has_out(o)) continue;
    std::vector<int> out = dims;
    for (size_t d = 0; d < std::min(out.size(), b.out_shape(o).size()); ++d) {
      if (b.out_shape(o)[d].value != shape[d].value) out[d] = Binder::kFixed;
    }
    b.set_out(o, out);
  }
  const double work = elements(b.in(0));
  b.flops(5 * work, b.out_needs_gradient() ? 10 * work : 0);
}

void bind_layer_norm(Binder& b) {
  const auto shape = b.integers("normalized_shape");
  bind_last_dims(b, shape ? shape->size() : b.in_shape(0).size());
}

/// Dims after the batch and the channels, or all but the channels, as one asks.
void bind_group_norm(Binder& b) {
  const auto& shape = b.in_shape(0);
  const int64_t groups = b.integer("num_groups", 1);
  if (shape.size() < 2 || groups < 1 || shape[1].value % groups != 0 || shape[1].is_symbolic())
    return bind_opaque(b);
  b.reserved = {"n", "g", "c"};
  const int n = b.name("n", shape[0]), g = b.name("g", Extent{groups, ""}),
            c = b.name("c", Extent{shape[1].value / groups, ""});
  b.freeze(c, kNormalised);
  Binder::Dims dims = {{n}, {g, c}};
  for (size_t d = 2; d < shape.size(); ++d) {
    dims.push_back({b.fresh(shape[d])});
    b.freeze(dims.back()[0], kNormalised);
  }
  b.set_in(0, dims);
  b.set_out(0, dims);
  for (const char* argument : {"weight", "bias"}) b.set_in(b.input(argument), Binder::Dims{{g, c}});
  b.rule.divide_argument = "num_groups";
  b.rule.divide_name = g;
}

/// Statistics of each channel over all else: over the batch too, unless `of_each` batch item.
void bind_channel_norm(Binder& b, bool computes, bool of_each) {
  const auto& shape = b.in_shape(0);
  if (shape.size() < 2) return bind_opaque(b);
  b.reserved = {"n", "c"};
  std::vector<int> dims = {b.name("n", shape[0]), b.name("c", shape[1])};
  for (size_t d = 2; d < shape.size(); ++d) dims.push_back(b.fresh(shape[d]));
  for (size_t d = 0; computes && d < dims.size(); ++d) {
    if (d == 1 || (d == 0 && of_each)) continue;
    b.freeze(dims[d], d == 0 ? "the statistics are those of the whole batch" : kNormalised);
  }
  b.set_in(0, dims);
  b.set_out(0, dims);
  for (const char* argument : {"weight", "bias", "running_mean", "running_var"})
    b.set_in(b.input(argument), std::vector<int>{dims[1]});
  for (const char* argument : {"running_mean", "running_var"}) {
    const int input = b.input(argument);
    if (computes && input >= 0) b.rule.mutated_inputs.push_back(input);
  }
  if (of_each && !b.rule.mutated_inputs.empty())
    b.freeze(dims[0], "the running statistics are averages over the whole batch");
}

void bind_batch_norm(Binder& b) {
  bind_channel_norm(b, b.flag("training", false) || b.input("running_mean") < 0, false);
}

void bind_instance_norm(Binder& b) { bind_channel_norm(b, b.flag("use_input_stats", true), true); }

/// `w = g v / |v|`, a norm for each index of `dim`.
void bind_weight_norm(Binder& b) {
  const int rank = b.in_rank(0);
  const int kept = b.dim("dim", 0, rank);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  for (int d = 0; d < rank; ++d) {
    if (d != kept) b.freeze(dims[static_cast<size_t>(d)], kNormalised);
  }
  b.set_in(0, dims);
  b.broadcast_in(1, dims);
  b.set_out(0, dims);
}

void bind_softmax(Binder& b) {
  bind_along_dim(b);
  for (BoundName& name : b.rule.names) {
    if (!name.splittable) name.why_not = kNormalised;
  }
}

}  // namespace

const Entries& normalization_entries() {
  static const Entries entries = {
      {.targets = "softmax.int _softmax special_softmax",
       .signatures = "F.softmax torch.softmax T.softmax",
       .rule = {"a dim^ -> a dim^", bind_softmax},
       .arguments = "self",
       .saved = "result",
       .flops = 8},
      {.targets = "log_softmax.int _log_softmax special_log_softmax",
       .signatures = "F.log_softmax torch.log_softmax T.log_softmax",
       .rule = {"a dim^ -> a dim^", bind_softmax},
       .arguments = "self",
       .saved = "result",
       .flops = 8},
      {.targets = "layer_norm native_layer_norm",
       .signatures = "F.layer_norm torch.layer_norm",
       .rule = {"* n^, n^, n^ -> * n^", bind_layer_norm},
       .arguments = "input weight bias",
       .saved = "input weight"},
      {.targets = "rms_norm _fused_rms_norm",
       .signatures = "F.rms_norm torch.rms_norm",
       .rule = {"* n^, n^ -> * n^", bind_layer_norm},
       .arguments = "input weight",
       .saved = "input weight"},
      {.targets = "group_norm",
       .signatures = "F.group_norm torch.group_norm",
       .rule = {"n (g c^) *^, (g c^), (g c^) -> n (g c^) *^", bind_group_norm},
       .arguments = "input weight bias",
       .saved = "input weight",
       .flops = 5},
      {.targets = "batch_norm",
       .signatures = "F.batch_norm torch.batch_norm",
       .rule = {"n^ c *^, c, c, c, c -> n^ c *^ in training", bind_batch_norm},
       .arguments = "input running_mean running_var weight bias",
       .saved = "input weight",
       .flops = 5},
      {.targets = "instance_norm",
       .signatures = "F.instance_norm torch.instance_norm",
       .rule = {"n c *^, c, c, c, c -> n c *^", bind_instance_norm},
       .arguments = "input running_mean running_var weight bias",
       .saved = "input weight",
       .flops = 5},
      {.targets = "_weight_norm",
       .signatures = "torch._weight_norm",
       .rule = {"o *^, o 1 -> o *^", bind_weight_norm},
       .arguments = "v g",
       .saved = "v g",
       .flops = 4},
  };
  return entries;
}

}  // namespace nnscaler
