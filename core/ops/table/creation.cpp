#include "core/ops/table.h"

namespace nnscaler {

namespace {

/// Each rank makes its part: the size argument follows.
void bind_filled(Binder& b) {
  if (!b.has_out(0)) return;
  const Argument* size = b.op.find(b.entry->size_argument);
  const bool follows = size && std::holds_alternative<std::vector<SymInt>>(size->value);
  const std::vector<int> dims = b.fresh_dims(b.out_shape(0));
  for (const int name : dims) {
    if (!follows) b.freeze(name, "its size is not written as a list");
  }
  b.set_out(0, dims);
  // An input lends its type only.
  for (int i = 0; i < b.num_inputs(); ++i) {
    b.opaque_in[static_cast<size_t>(i)] = true;
    b.no_gradient(i);
  }
}

/// What is made depends on positions.
void bind_positional(Binder& b) {
  if (!b.has_out(0)) return;
  for (int o = 0; o < b.num_outputs(); ++o) {
    if (!b.has_out(o)) continue;
    const std::vector<int> dims = b.fresh_dims(b.out_shape(o));
    for (const int name : dims) b.freeze(name, "its content depends on positions in the whole");
    b.set_out(o, dims);
  }
  for (int i = 0; i < b.num_inputs(); ++i) b.opaque_in[static_cast<size_t>(i)] = true;
}

constexpr Rule kFilled{"-> *", bind_filled};
constexpr Rule kPositional{"-> *^", bind_positional};

}  // namespace

const Entries& creation_entries() {
  static const Entries entries = {
      {.targets = "zeros ones full empty.memory_format",
       .signatures = "torch.*",
       .rule = kFilled,
       .size_argument = "size",
       .flops = 0,
       .splits_outputs = true},
      {.targets = "{rand,randn} randint randint.low",
       .signatures = "torch.*",
       .rule = kFilled,
       .size_argument = "size",
       .flops = 0,
       .random = true,
       .splits_outputs = true},
      {.targets = "new_{zeros,ones,full,empty}",
       .signatures = "T.*",
       .rule = kFilled,
       .size_argument = "size",
       .flops = 0,
       .splits_outputs = true},
      {.targets = "{zeros,ones,full,empty}_like",
       .signatures = "torch.*",
       .rule = kPointwise,
       .arguments = "self",
       .flops = 0},
      {.targets = "{rand,randn}_like randint_like randint_like.low_dtype",
       .signatures = "torch.*",
       .rule = kPointwise,
       .arguments = "self",
       .flops = 0,
       .random = true},
      {.targets = "arange arange.{start,start_step} {linspace,logspace,eye,scalar_tensor,"
                  "tril_indices,triu_indices,hann_window,hamming_window,bartlett_window,"
                  "blackman_window} eye.m",
       .signatures = "torch.*",
       .rule = kPositional,
       .flops = 0},
      {.targets = "randperm",
       .signatures = "torch.*",
       .rule = kPositional,
       .flops = 0,
       .random = true},
  };
  return entries;
}

}  // namespace nnscaler
