#include <algorithm>

#include "core/ops/table.h"

// Dims that disappear, or have length 1 after it: sums, means, extremes; and scans, which keep
// them.

namespace nnscaler {

namespace {

enum class Kind { kSum, kMean, kMax, kMin, kFrozen };

void bind_reduced(Binder& b, Kind kind) {
  const int rank = b.in_rank(0);
  const std::vector<bool> reduced = b.dims("dim", rank);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  const bool keeps = b.has_out(0) && b.out_rank(0) == rank;
  std::vector<int> out;
  for (int d = 0; d < rank; ++d) {
    const int name = dims[static_cast<size_t>(d)];
    if (!reduced[static_cast<size_t>(d)]) {
      out.push_back(name);
      continue;
    }
    if (keeps) out.push_back(Binder::kFixed);
    const bool extreme = kind == Kind::kMax || kind == Kind::kMin;
    if (kind == Kind::kSum) {
      b.sum(name);
    } else if (kind == Kind::kMean) {
      b.mean(name);
    } else if (extreme && b.in(0).dtype == DType::kBool) {
      b.freeze(name, "truth values have no maximum over ranks");
    } else if (extreme && b.out_needs_gradient()) {
      b.freeze(name, "the gradient of an extreme goes to where it was found, so all must be seen");
    } else if (extreme) {
      b.sum(name, kind == Kind::kMax ? Reduction::kMax : Reduction::kMin);
    } else {
      b.freeze(name, "the operator needs all of it");
    }
  }
  b.set_in(0, dims);
  b.set_outs(out);
}

void bind_sum(Binder& b) { bind_reduced(b, Kind::kSum); }
void bind_mean(Binder& b) { bind_reduced(b, Kind::kMean); }
void bind_max(Binder& b) { bind_reduced(b, Kind::kMax); }
void bind_min(Binder& b) { bind_reduced(b, Kind::kMin); }
void bind_whole(Binder& b) { bind_reduced(b, Kind::kFrozen); }

/// Only the 1-norm is a sum of parts.
void bind_norm(Binder& b) {
  const double order = b.number("ord", b.number("p", 2));
  bind_reduced(b, order == 1 ? Kind::kSum : Kind::kFrozen);
}

constexpr Rule kSum{"reduced dims a+", bind_sum};
constexpr Rule kMean{"reduced dims a+, the result divided by the parts", bind_mean};
constexpr Rule kWholeDims{"reduced dims a^", bind_whole};
constexpr Rule kAlong{"a dim^ -> a dim^", bind_along_dim};

/// One dim, the last unless given.
void bind_one(Binder& b) {
  const int rank = b.in_rank(0);
  const int along = b.dim("dim", -1, rank);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  std::vector<int> out;
  for (int d = 0; d < rank; ++d) {
    const int name = dims[static_cast<size_t>(d)];
    if (d != along) {
      out.push_back(name);
      continue;
    }
    b.freeze(name, "the operator needs all of it");
    if (b.has_out(0) && b.out_rank(0) == rank) out.push_back(Binder::kFixed);
  }
  b.set_in(0, dims);
  b.set_outs(out);
}

/// Two operands are compared along one dim, which disappears.
void bind_pair(Binder& b) {
  const int rank = std::max(b.in_rank(0), b.in_rank(1));
  const int along = b.dim("dim", 1, rank);
  if (along < 0 || !b.has_out(0) || b.out_rank(0) != rank - 1) return bind_opaque(b);
  std::vector<int> out = b.fresh_dims(b.out_shape(0)), dims = out;
  const int i = b.in_rank(0) == rank ? 0 : 1;
  const int compared = b.fresh(b.in_shape(i)[static_cast<size_t>(along)]);
  b.freeze(compared, "the operator needs all of it");
  dims.insert(dims.begin() + along, compared);
  b.broadcast_in(0, dims);
  b.broadcast_in(1, dims);
  b.set_out(0, out);
}

/// diff: what is put before or behind has the other dims too, and is linear together with it.
void bind_diff(Binder& b) {
  const int rank = b.in_rank(0);
  const int along = b.dim("dim", -1, rank);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  std::vector<int> ends = dims;
  if (along >= 0) {
    b.freeze(dims[static_cast<size_t>(along)], "the operator needs all of it");
    ends[static_cast<size_t>(along)] = Binder::kFixed;
  }
  b.set_in(0, dims);
  std::vector<int> all;
  for (int i = 0; i < b.num_inputs(); ++i) {
    if (i > 0 && b.in_rank(i) == rank) b.set_in(i, ends);
    all.push_back(i);
  }
  b.set_out(0, ends);
  b.linear(std::move(all));
}

}  // namespace

const Entries& reduction_entries() {
  static const Entries entries = {
      {.targets = "sum sum.dim_IntList",
       .signatures = "torch.sum T.sum",
       .rule = kSum,
       .linear = "self"},
      {.targets = "nansum", .signatures = "torch.nansum T.nansum", .rule = kSum, .saved = "self"},
      {.targets = "count_nonzero count_nonzero.dim_IntList",
       .signatures = "torch.* T.*",
       .rule = kSum},
      {.targets = "mean mean.dim",
       .signatures = "torch.mean T.mean",
       .rule = kMean,
       .linear = "self"},
      {.targets = "amax max",
       .signatures = "torch.* T.*",
       .rule = {"reduced dims a^, or a maximum over parts without gradient", bind_max},
       .saved = "self result"},
      {.targets = "amin min",
       .signatures = "torch.* T.*",
       .rule = {"reduced dims a^, or a minimum over parts without gradient", bind_min},
       .saved = "self result"},
      {.targets = "{max,min,median,nanmedian}.dim mode",
       .signatures = "torch.* T.*",
       .rule = {"a dim^ -> a, a", bind_one},
       .saved = "result1"},
      {.targets = "kthvalue",
       .signatures = "torch.kthvalue T.kthvalue",
       .rule = {"a dim^ -> a, a", bind_one},
       .saved = "result1"},
      {.targets = "{median,nanmedian}",
       .signatures = "torch.* T.*",
       .rule = kWholeDims,
       .saved = "self result"},
      {.targets = "{argmax,argmin} {any,all} {any,all}.{dim,dims} aminmax",
       .signatures = "torch.* T.*",
       .rule = kWholeDims},
      {.targets = "logsumexp nanmean",
       .signatures = "torch.* T.*",
       .rule = kWholeDims,
       .saved = "self result",
       .flops = 8},
      {.targets = "{var,std} {var,std}.{dim,correction}",
       .signatures = "torch.* T.*",
       .rule = kWholeDims,
       .saved = "self",
       .flops = 3},
      {.targets = "{var_mean,std_mean} {var_mean,std_mean}.{dim,correction}",
       .signatures = "torch.*",
       .rule = kWholeDims,
       .saved = "self",
       .flops = 3},
      {.targets = "prod prod.dim_int",
       .signatures = "torch.prod T.prod",
       .rule = kWholeDims,
       .saved = "self result"},
      {.targets =
           "linalg_vector_norm norm.{Scalar,ScalarOpt_dim,ScalarOpt_dtype,ScalarOpt_dim_dtype}",
       .signatures = "torch.norm T.norm torch.linalg.vector_norm torch.functional.norm",
       .rule = {"reduced dims a^, or a+ for the 1-norm", bind_norm},
       .saved = "self result",
       .flops = 3},
      {.targets = "cosine_similarity",
       .signatures = "F.cosine_similarity torch.cosine_similarity",
       .rule = {"a dim^, a dim^ -> a", bind_pair},
       .saved = "x1 x2",
       .flops = 6},
      // Halves of a dim are multiplied.
      {.targets = "glu",
       .signatures = "F.glu",
       .rule = {"a dim^ -> a l", bind_along_dim},
       .saved = "self",
       .flops = 8},
      // Scans and orders: the dim stays.
      {.targets = "{cumsum,cumsum_}",
       .signatures = "torch.cumsum T.cumsum{,_}",
       .rule = kAlong,
       .linear = "self"},
      {.targets = "{cumprod,cumprod_}",
       .signatures = "torch.cumprod T.cumprod{,_}",
       .rule = kAlong,
       .saved = "self result",
       .flops = 3},
      {.targets = "logcumsumexp",
       .signatures = "torch.* T.*",
       .rule = kAlong,
       .saved = "self result",
       .flops = 8},
      {.targets = "{cummax,cummin}",
       .signatures = "torch.* T.*",
       .rule = kAlong,
       .saved = "result1"},
      {.targets = "sort sort.stable topk",
       .signatures = "torch.* T.*",
       .rule = kAlong,
       .saved = "result1",
       .flops = 16},
      {.targets = "argsort argsort.stable",
       .signatures = "torch.* T.*",
       .rule = kAlong,
       .flops = 16},
      {.targets = "diff", .signatures = "torch.diff T.diff", .rule = {"a dim^ -> a l", bind_diff}},
  };
  return entries;
}

}  // namespace nnscaler
