#include "core/ops/table.h"

// Python functions that stay whole and whose rule is built in: apex's fused norms.

namespace nnscaler {

namespace {

/// Numbers in a Python literal such as "(32,)" or "torch.Size([4, 8])".
size_t count_numbers(const std::string& text) {
  size_t count = 0;
  bool in_number = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !in_number) ++count;
    in_number = digit;
  }
  return count;
}

/// The last dims are normalised: as many as a weight has, or as the normalised shape says.
void bind_fused_norm(Binder& b) {
  if (b.num_inputs() == 0 || !b.has_out(0)) return bind_opaque(b);
  size_t normalised = 0;
  if (b.num_inputs() > 1) {
    normalised = b.in_shape(1).size();
  } else {
    for (const Argument& argument : b.op.args) {
      const auto* literal = std::get_if<PySource>(&argument.value);
      if (literal && normalised == 0) normalised = count_numbers(literal->text);
    }
  }
  const auto& shape = b.in_shape(0);
  if (normalised == 0 || normalised > shape.size()) return bind_opaque(b);
  const std::vector<int> dims = b.fresh_dims(shape);
  for (size_t d = shape.size() - normalised; d < shape.size(); ++d)
    b.freeze(dims[d], kMarkedFrozen);
  for (int i = 0; i < b.num_inputs(); ++i) b.broadcast_in(i, dims);
  b.set_out(0, dims);
  for (int i = 0; i < b.num_inputs(); ++i) b.rule.saved_inputs.push_back(i);
}

}  // namespace

const Entries& leaf_entries() {
  static const Entries entries = {
      {.targets = "-",
       .signatures =
           "apex.normalization.fused_layer_norm.{FusedLayerNormAffineFunction,"
           "FusedLayerNormAffineMixedDtypesFunction,FusedLayerNormFunction,"
           "FusedRMSNormAffineFunction,FusedRMSNormAffineMixedDtypesFunction,"
           "FusedRMSNormFunction}.apply "
           "apex.normalization.fused_layer_norm.{fused_layer_norm,fused_layer_norm_affine,"
           "fused_rms_norm,fused_rms_norm_affine}",
       .rule = {"* n^, n^, n^ -> * n^", bind_fused_norm},
       .flops = 5},
  };
  return entries;
}

}  // namespace nnscaler
