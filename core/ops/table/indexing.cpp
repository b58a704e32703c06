#include <algorithm>
#include <numeric>

#include "core/ops/table.h"

// Operators that take indices. A dim that indices point into stays whole; the indices' own dims may
// be split.

namespace nnscaler {

namespace {

constexpr std::string_view kPointedInto = "indices point into the whole of it";

/// gather: out[i][j] = self[index[i][j]][j]. Dims other than `dim` must have one length to be
/// split.
void bind_gather(Binder& b) {
  const int self = b.input("self"), index = std::max(b.input("index"), b.input("indices"));
  const int rank = b.in_rank(self);
  if (self < 0 || index < 0 || !b.is_present("dim") || b.in_rank(index) != rank || rank == 0 ||
      b.out_rank(0) != rank)
    return bind_opaque(b);
  const int dim = b.dim("dim", 0, rank);
  std::vector<int> from, at;
  for (int d = 0; d < rank; ++d) {
    const auto place = static_cast<size_t>(d);
    const int name = b.fresh(b.out_shape(0)[place]);
    const bool same = b.in_shape(self)[place] == b.in_shape(index)[place];
    from.push_back(d == dim || !same ? Binder::kFixed : name);
    at.push_back(name);
    if (d != dim && !same) b.freeze(name, "the table and the indices differ in length");
    if (b.in_shape(index)[place] != b.out_shape(0)[place]) return bind_opaque(b);
  }
  b.set_in(self, from);
  b.set_in(index, at);
  b.set_out(0, at);
}

/// self[…, index, …]: the index's dim takes the place of `dim`.
void bind_index_select(Binder& b) {
  const int self = b.input("self"), index = b.input("index");
  const int rank = b.in_rank(self);
  if (rank == 0 || b.in_rank(index) != 1) return bind_opaque(b);
  const int dim = b.dim("dim", 0, rank);
  std::vector<int> from = b.fresh_dims(b.in_shape(self)), out = from;
  if (dim < 0) return bind_opaque(b);
  b.freeze(from[static_cast<size_t>(dim)], kPointedInto);
  out[static_cast<size_t>(dim)] = b.fresh(b.in_shape(index)[0]);
  b.set_in(self, from);
  b.set_in(index, std::vector<int>{out[static_cast<size_t>(dim)]});
  b.set_out(0, out);
}

/// Which dims of self the list of indices replaces, and where their broadcast dims go.
struct Indexing {
  bool known = false;
  std::vector<int> tensors;   ///< For each dim of self, a tensor input or -1.
  std::vector<Extent> shape;  ///< Broadcast shape of the index tensors.
  size_t place = 0;           ///< Of the broadcast dims among the untouched ones.
};

Indexing read_indices(const Binder& b, int rank) {
  Indexing read;
  const Argument* argument = b.op.find("indices");
  const auto* list = argument ? std::get_if<TensorList>(&argument->value) : nullptr;
  if (!list || static_cast<int>(list->size()) > rank) return read;
  read.tensors.assign(static_cast<size_t>(rank), -1);
  int next = b.inputs_of("indices").first;
  bool before = false, gap = false, apart = false;
  for (size_t d = 0; d < list->size(); ++d) {
    if (!(*list)[d].valid()) {
      gap = gap || before;
      continue;
    }
    if (gap) apart = true;
    if (!before) read.place = d;
    before = true;
    read.tensors[d] = next;
    const Value& index = b.in(next++);
    if (index.dtype == DType::kBool || index.dtype == DType::kUInt8) return read;  // a mask
    const auto& own = index.shape;
    if (own.size() > read.shape.size())
      read.shape.insert(read.shape.begin(), own.size() - read.shape.size(), Extent{1, ""});
    for (size_t back = 1; back <= own.size(); ++back) {
      Extent& extent = read.shape[read.shape.size() - back];
      if (extent.value == 1 && !extent.is_symbolic()) extent = own[own.size() - back];
    }
  }
  if (apart) read.place = 0;
  read.known = before;
  return read;
}

/// self[i, :, j]: untouched dims stay; indices broadcast to dims of their own, which stand where
/// the indices are if those are neighbours, else in front.
void bind_index(Binder& b) {
  const int self = b.input("self");
  const int rank = b.in_rank(self);
  const Indexing indexing = read_indices(b, rank);
  if (!indexing.known || !b.has_out(0)) return bind_opaque(b);
  std::vector<int> from, kept;
  for (int d = 0; d < rank; ++d) {
    const bool touched = indexing.tensors[static_cast<size_t>(d)] >= 0;
    from.push_back(b.fresh(b.in_shape(self)[static_cast<size_t>(d)]));
    if (touched) {
      b.freeze(from.back(), kPointedInto);
    } else {
      kept.push_back(from.back());
    }
  }
  const std::vector<int> own = b.fresh_dims(indexing.shape);
  const size_t place = std::min(indexing.place, kept.size());
  std::vector<int> out = kept;
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(place), own.begin(), own.end());
  if (out.size() != b.out_shape(0).size()) return bind_opaque(b);
  b.set_in(self, from);
  for (const int tensor : indexing.tensors) b.broadcast_in(tensor, own);
  b.set_out(0, out);
}

/// self[i, :, j] = values: only untouched dims; indices and values are whole in the others.
void bind_index_put(Binder& b) {
  const int self = b.input("self"), values = b.input("values");
  const int rank = b.in_rank(self);
  const Indexing indexing = read_indices(b, rank);
  if (!indexing.known || !b.has_out(0) || b.out_rank(0) != rank || values < 0)
    return bind_opaque(b);
  std::vector<int> from, kept;
  for (int d = 0; d < rank; ++d) {
    from.push_back(b.fresh(b.in_shape(self)[static_cast<size_t>(d)]));
    if (indexing.tensors[static_cast<size_t>(d)] >= 0) {
      b.freeze(from.back(), kPointedInto);
    } else {
      kept.push_back(from.back());
    }
  }
  const size_t place = std::min(indexing.place, kept.size());
  std::vector<int> written = kept;
  written.insert(written.begin() + static_cast<std::ptrdiff_t>(place), indexing.shape.size(),
                 Binder::kFixed);
  b.set_in(self, from);
  b.broadcast_in(values, written);
  b.set_out(0, from);
}

/// scatter: self, index and source have one length in the dims that may be split.
void bind_scatter(Binder& b) {
  const int self = b.input("self"), index = b.input("index"),
            source = std::max(b.input("src"), b.input("source"));
  const int rank = b.in_rank(self);
  if (rank == 0 || b.in_rank(index) != rank) return bind_opaque(b);
  if (source >= 0 && b.in_rank(source) != rank) return bind_opaque(b);
  const int dim = b.dim("dim", 0, rank);
  std::vector<int> dims = b.fresh_dims(b.in_shape(self)), others = dims;
  for (int d = 0; d < rank; ++d) {
    const auto place = static_cast<size_t>(d);
    const Extent& extent = b.in_shape(self)[place];
    const bool same =
        b.in_shape(index)[place] == extent && (source < 0 || b.in_shape(source)[place] == extent);
    if (d == dim || !same) others[place] = Binder::kFixed;
    if (d == dim) {
      b.freeze(dims[place], kPointedInto);
    } else if (!same) {
      b.freeze(dims[place], "the table and the indices differ in length");
    }
  }
  b.set_in(self, dims);
  b.set_in(index, others);
  b.set_in(source, others);
  b.set_out(0, dims);
}

/// index_add, index_copy, index_fill: one index for each slice of `source` along `dim`.
void bind_index_write(Binder& b) {
  const int self = b.input("self"), source = b.input("source");
  const int rank = b.in_rank(self);
  if (rank == 0 || (source >= 0 && b.in_rank(source) != rank)) return bind_opaque(b);
  const int dim = b.dim("dim", 0, rank);
  std::vector<int> dims = b.fresh_dims(b.in_shape(self)), others = dims;
  if (dim < 0) return bind_opaque(b);
  b.freeze(dims[static_cast<size_t>(dim)], kPointedInto);
  others[static_cast<size_t>(dim)] = Binder::kFixed;
  b.set_in(self, dims);
  b.set_in(source, others);
  b.set_out(0, dims);
}

/// The classes are a new last dim, which stays whole.
void bind_one_hot(Binder& b) {
  if (!b.has_out(0) || b.integer("num_classes", -1) < 0) return bind_opaque(b);
  std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  b.set_in(0, dims);
  dims.push_back(Binder::kFixed);
  b.set_out(0, dims);
}

/// Each element of input 0 is looked up in all of the others.
void bind_lookup(Binder& b) {
  if (!b.has_out(0) || b.out_rank(0) != b.in_rank(0)) return bind_opaque(b);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  b.set_in(0, dims);
  b.set_outs(dims);
}

/// A slice written into self: dims in which both have one length.
void bind_slice_write(Binder& b) {
  const int self = b.input("self"), source = b.input("src");
  if (source < 0 || b.in_rank(self) != b.in_rank(source)) return bind_opaque(b);
  std::vector<int> dims = b.fresh_dims(b.in_shape(self)), own = dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (b.in_shape(self)[d] == b.in_shape(source)[d]) continue;
    b.freeze(dims[d], "a range of it is written");
    own[d] = Binder::kFixed;
  }
  b.set_in(self, dims);
  b.set_in(source, own);
  b.set_out(0, dims);
}

void bind_select_write(Binder& b) {
  const int self = b.input("self"), source = b.input("src");
  const int rank = b.in_rank(self), dim = b.dim("dim", 0, rank);
  if (source < 0 || dim < 0) return bind_opaque(b);
  std::vector<int> dims = b.fresh_dims(b.in_shape(self)), own = dims;
  b.freeze(dims[static_cast<size_t>(dim)], kPointedInto);
  own.erase(own.begin() + dim);
  if (b.in_shape(source).size() != own.size()) return bind_opaque(b);
  b.set_in(self, dims);
  b.set_in(source, own);
  b.set_out(0, dims);
}

}  // namespace

const Entries& indexing_entries() {
  static const Entries entries = {
      {.targets = "gather take_along_dim",
       .signatures = "torch.* T.*",
       .rule = {"a dim^, a n -> a n", bind_gather},
       .arguments = "self index indices",
       .linear = "self",
       .saved = "index indices"},
      {.targets = "index_select",
       .signatures = "torch.* T.*",
       .rule = {"a dim^, n -> a n", bind_index_select},
       .arguments = "self index",
       .linear = "self",
       .saved = "index"},
      {.targets = "index.Tensor",
       .signatures = "op.getitem",
       .rule = {"a dim^, * -> a *", bind_index},
       .linear = "self",
       .saved = "indices"},
      {.targets = "index_put{,_}",
       .signatures = "op.setitem torch.index_put T.index_put{,_}",
       .rule = {"a dim^, *^, a *^ -> a dim^", bind_index_put},
       .saved = "indices"},
      {.targets = "scatter{,_}.{src,value,reduce,value_reduce} scatter_add{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = {"a dim^, a n^, a n^ -> a dim^", bind_scatter},
       .arguments = "self index src",
       .saved = "index"},
      {.targets = "scatter_reduce{,_}.two",
       .signatures = "torch.scatter_reduce T.scatter_reduce{,_}",
       .rule = {"a dim^, a n^, a n^ -> a dim^", bind_scatter},
       .arguments = "self index src",
       .saved = "self index src result"},
      {.targets = "{index_add,index_copy}{,_} index_fill{,_}.{int_Scalar,int_Tensor}",
       .signatures = "torch.* T.* T.*_",
       .rule = {"a dim^, n^, a n^ -> a dim^", bind_index_write},
       .arguments = "self index source",
       .saved = "index"},
      {.targets = "slice_scatter",
       .signatures = "torch.slice_scatter T.slice_scatter",
       .rule = {"a dim^, a n^ -> a dim^", bind_slice_write}},
      {.targets = "select_scatter",
       .signatures = "torch.select_scatter T.select_scatter",
       .rule = {"a dim^, a -> a dim^", bind_select_write}},
      {.targets = "one_hot",
       .signatures = "F.one_hot torch._C._nn.one_hot",
       .rule = {"* -> * c", bind_one_hot},
       .arguments = "self"},
      {.targets = "bucketize.Tensor isin.Tensor_Tensor isin.Tensor_Scalar",
       .signatures = "torch.*",
       .rule = {"*, x^ -> *", bind_lookup}},
      {.targets = "masked_select nonzero bincount histc argwhere",
       .signatures = "torch.* T.*",
       .rule = kWhole},
      {.targets = "where", .signatures = "torch.where T.where", .rule = kWhole},
      {.targets = "nonzero_numpy", .signatures = "torch.nonzero T.nonzero", .rule = kWhole},
      {.targets = "masked_scatter{,_}",
       .signatures = "torch.masked_scatter T.masked_scatter{,_}",
       .rule = kWhole},
      {.targets = "multinomial", .signatures = "torch.* T.*", .rule = kWhole, .random = true},
  };
  return entries;
}

}  // namespace nnscaler
