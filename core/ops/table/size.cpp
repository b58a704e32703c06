#include "core/ops/table.h"

// Arithmetic on symbolic sizes: no tensors, or only their shapes.

namespace nnscaler {

namespace {

void bind_nothing(Binder& b) { b.flops(0, 0); }

/// The length of one dim, which stays whole; the others may be split.
void bind_sym_size(Binder& b) {
  b.flops(0, 0);
  if (b.num_inputs() == 0 || b.in(0).is_symbol) return;
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  const int kept = b.dim("dim", -1, b.in_rank(0));
  if (kept >= 0) b.freeze(dims[static_cast<size_t>(kept)], "its length is asked for");
  b.set_in(0, dims);
  b.no_gradient(0);
}

constexpr Rule kNothing{"sizes only", bind_nothing};

}  // namespace

const Entries& size_entries() {
  static const Entries entries = {
      {.targets = "sym_size.int",
       .signatures = "T.size",
       .rule = {"a dim^ -> ?", bind_sym_size},
       .flops = 0},
      {.targets = "sym_numel sym_stride.int sym_storage_offset item _local_scalar_dense "
                  "sym_is_contiguous",
       .signatures = "T.item | T.numel | T.stride",
       .rule = kWhole,
       .flops = 0},
      {.targets = ":_operator.{add,sub,mul,floordiv,truediv,mod,neg,pow,eq,ne,lt,le,gt,ge,and_,or_,"
                  "not_} :math.{ceil,floor,trunc,sqrt,log,log2,exp} "
                  ":torch.{sym_int,sym_float,sym_max,sym_min,sym_not,sym_ite,sym_sqrt,sym_sum,"
                  "_sym_sqrt} :builtins.{round,max,min,int,float}",
       .rule = kNothing,
       .flops = 0},
  };
  return entries;
}

}  // namespace nnscaler
