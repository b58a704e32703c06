#include <algorithm>
#include <numeric>

#include "core/base/text.h"
#include "core/ops/table.h"

// Operators that move elements without changing them.

namespace nnscaler {

namespace {

// --- view, reshape, flatten, … : factors of shapes are matched, outermost first.

/// A product of lengths: a number times symbols.
struct Product {
  uint64_t number = 1;               // of contradictory lengths it may overflow
  std::vector<std::string> symbols;  // sorted
  bool operator==(const Product&) const = default;

  void multiply(const Extent& extent) {
    if (!extent.is_symbolic()) {
      number *= static_cast<uint64_t>(extent.value);
      return;
    }
    // "6*s0*s1" is a product itself; anything else stands for itself.
    const bool simple = extent.symbol.find_first_of("+-/ ()%") == std::string::npos &&
                        extent.symbol.find("**") == std::string::npos;
    for (std::string& factor : simple ? split(extent.symbol, '*') : std::vector{extent.symbol}) {
      const bool is_number = factor.size() < 10 && !factor.empty() &&
                             factor.find_first_not_of("0123456789") == std::string::npos;
      if (is_number) {
        number *= std::stoull(factor);
      } else {
        symbols.insert(std::ranges::upper_bound(symbols, factor), factor);
      }
    }
  }
};

/// Matches the factors of two shapes with equal products.
class FactorMatch {
 public:
  FactorMatch(Binder& binder, const std::vector<Extent>& from, const std::vector<Extent>& to)
      : b_(binder), from_(from), to_(to), from_dims(from.size()), to_dims(to.size()) {
    size_t i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      if (i < from.size() && is_one(from[i])) {
        ++i;
      } else if (j < to.size() && is_one(to[j])) {
        ++j;
      } else {
        group(i, j);
      }
    }
  }

 private:
  static bool is_one(const Extent& extent) { return extent.value == 1 && !extent.is_symbolic(); }

  /// The shortest run of dims on both sides with the same product.
  void group(size_t& i, size_t& j) {
    const size_t from_begin = i, to_begin = j;
    Product left, right;
    if (i < from_.size()) left.multiply(from_[i++]);
    if (j < to_.size()) right.multiply(to_[j++]);
    while (left != right && (i < from_.size() || j < to_.size())) {
      const bool take_left = i < from_.size() && (j == to_.size() || hint(from_begin, i, from_) <
                                                                         hint(to_begin, j, to_));
      if (take_left) {
        left.multiply(from_[i++]);
      } else if (j < to_.size()) {
        right.multiply(to_[j++]);
      } else {
        left.multiply(from_[i++]);
      }
    }
    match(from_begin, i, to_begin, j, left == right && left.symbols.empty());
  }

  static uint64_t hint(size_t begin, size_t end, const std::vector<Extent>& shape) {
    uint64_t product = 1;
    for (size_t d = begin; d < end; ++d)
      product *= static_cast<uint64_t>(std::max<int64_t>(1, shape[d].value));
    return product;
  }

  /// Equal factors of from_[i, i_end) and to_[j, j_end), if their products are `numbers` and equal.
  void match(size_t i, size_t i_end, size_t j, size_t j_end, bool numbers) {
    if (i_end == i + 1 && j_end == j + 1 && from_[i] == to_[j]) {
      const int name = b_.fresh(from_[i]);
      from_dims[i] = to_dims[j] = {name};
      return;
    }
    const auto positive = [](const Extent& extent) { return extent.value > 0; };
    const auto all_positive = [&](const std::vector<Extent>& shape, size_t begin, size_t end) {
      return std::all_of(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), positive);
    };
    if (!numbers || i == i_end || j == j_end || !all_positive(from_, i, i_end) ||
        !all_positive(to_, j, j_end)) {
      frozen(i, i_end, from_, from_dims);
      frozen(j, j_end, to_, to_dims);
      return;
    }
    // What is left of the current dim on either side.
    int64_t left = from_[i].value, right = to_[j].value;
    while (true) {
      const int64_t factor = std::gcd(left, right);
      if (factor > 1) {
        const int name = b_.fresh(Extent{factor, ""});
        from_dims[i].push_back(name);
        to_dims[j].push_back(name);
        left /= factor;
        right /= factor;
      }
      if (left > 1 && right > 1) break;  // 2 x 3 against 3 x 2: only common outer factors match
      while (left == 1 && ++i < i_end) left = from_[i].value;
      while (right == 1 && ++j < j_end) right = to_[j].value;
      if (i >= i_end || j >= j_end) return;
    }
    frozen(i, i_end, from_, from_dims);
    frozen(j, j_end, to_, to_dims);
  }

  /// Names for what is not matched, so that messages can say why.
  void frozen(size_t begin, size_t end, const std::vector<Extent>& shape, Binder::Dims& dims) {
    for (size_t d = begin; d < end; ++d) {
      if (!dims[d].empty() || is_one(shape[d])) continue;
      dims[d] = {b_.fresh(shape[d])};
      b_.freeze(dims[d][0], shape[d].is_symbolic() ? "its length is symbolic"
                                                   : "its elements are dealt out anew");
    }
  }

  Binder& b_;
  const std::vector<Extent>& from_;
  const std::vector<Extent>& to_;

 public:
  Binder::Dims from_dims, to_dims;
};

/// Whether the output can share the input's memory: dims that are joined lie behind one another.
bool shares_memory(const Binder& b) {
  const Value& in = b.in(0);
  if (in.strides.size() != in.shape.size() || !b.has_out(0)) return false;
  const auto& to = b.out_shape(0);
  const auto length = [](const Extent& extent) { return static_cast<uint64_t>(extent.value); };
  size_t j = 0;
  for (size_t i = 0; i < in.shape.size(); ++i) {
    if (in.shape[i].value == 1) continue;
    // Dims that are cut are fine; those that fall into one of the output must be neighbours.
    while (j < to.size() && to[j].value == 1) ++j;
    if (j == to.size()) return true;
    uint64_t read = length(in.shape[i]), covered = length(to[j]);
    while (covered != read) {
      if (covered < read) {
        if (++j >= to.size()) return false;
        covered *= length(to[j]);
        continue;
      }
      const size_t last = i++;
      if (i >= in.shape.size()) return false;
      const bool neighbours =
          length(in.strides[last]) == length(in.strides[i]) * length(in.shape[i]);
      if (!neighbours && in.shape[i].value != 1) return false;
      read *= length(in.shape[i]);
    }
    ++j;
  }
  return true;
}

void settle_copy(Binder& b) {
  b.flops(0, 0);
  b.rule.view = b.num_inputs() > 0 && shares_memory(b);
}

void settle_view(Binder& b) { b.flops(0, 0); }

// --- Dims in another order, fewer or more.

/// Output dims in the order that argument `dims` says.
void bind_permute(Binder& b) {
  const int rank = b.in_rank(0);
  const auto order = b.integers("dims");
  std::vector<int> source(static_cast<size_t>(rank));
  for (int d = 0; d < rank; ++d) {
    int64_t from = order && static_cast<int>(order->size()) == rank
                       ? (*order)[static_cast<size_t>(d)]
                       : rank - 1 - d;
    if (from < 0) from += rank;
    if (from < 0 || from >= rank) return bind_opaque(b);
    source[static_cast<size_t>(d)] = static_cast<int>(from);
  }
  copy_dims(b, source, "");
}

void swap_dims(Binder& b, int first, int second) {
  std::vector<int> source(b.in_shape(0).size());
  std::iota(source.begin(), source.end(), 0);
  if (first >= 0 && second >= 0)
    std::swap(source[static_cast<size_t>(first)], source[static_cast<size_t>(second)]);
  copy_dims(b, source, "");
}

void bind_transpose(Binder& b) {
  const int rank = b.in_rank(0);
  const bool by_axis = b.op.find("axis0") != nullptr;
  swap_dims(b, b.dim(by_axis ? "axis0" : "dim0", 0, rank),
            b.dim(by_axis ? "axis1" : "dim1", 0, rank));
}

/// The last two dims swapped; of a vector nothing.
void bind_matrix_transpose(Binder& b) {
  const int rank = b.in_rank(0);
  if (rank < 2) return swap_dims(b, -1, -1);
  swap_dims(b, rank - 2, rank - 1);
}

void bind_movedim(Binder& b) {
  const int rank = b.in_rank(0);
  auto from = b.integers("source"), to = b.integers("destination");
  if (!from || !to || from->size() != to->size()) return bind_opaque(b);
  std::vector<int> source(static_cast<size_t>(rank), -1);
  std::vector<bool> taken(static_cast<size_t>(rank), false);
  for (size_t i = 0; i < from->size(); ++i) {
    int64_t f = (*from)[i], t = (*to)[i];
    if (f < 0) f += rank;
    if (t < 0) t += rank;
    if (f < 0 || f >= rank || t < 0 || t >= rank) return bind_opaque(b);
    source[static_cast<size_t>(t)] = static_cast<int>(f);
    taken[static_cast<size_t>(f)] = true;
  }
  int next = 0;
  for (int& each : source) {
    if (each >= 0) continue;
    while (next < rank && taken[static_cast<size_t>(next)]) ++next;
    each = next++;
  }
  copy_dims(b, source, "");
}

void bind_unsqueeze(Binder& b) {
  const int rank = b.in_rank(0);
  const int added = b.dim("dim", 0, rank + 1);
  std::vector<int> source;
  for (int d = 0; d <= rank; ++d)
    source.push_back(d == added ? Binder::kFixed : d < added ? d : d - 1);
  copy_dims(b, source, "");
}

/// Removed dims have length 1, so those left are the others in order.
void bind_squeeze(Binder& b) {
  const int rank = b.in_rank(0);
  const std::vector<bool> asked = b.dims("dim", rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) {
    const Extent& extent = b.in_shape(0)[static_cast<size_t>(d)];
    const bool removed =
        asked[static_cast<size_t>(d)] && extent.value == 1 && !extent.is_symbolic();
    if (!removed) source.push_back(d);
  }
  if (b.has_out(0) && source.size() != b.out_shape(0).size()) return bind_opaque(b);
  copy_dims(b, source, "its length is 1");
  for (size_t d = 0; d < asked.size(); ++d) {
    if (asked[d]) b.freeze(static_cast<int>(d), "a part of length 1 would be squeezed too");
  }
}

/// One index of a dim.
void bind_select(Binder& b) {
  const int rank = b.in_rank(0);
  const int removed = b.dim("dim", 0, rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) {
    if (d != removed) source.push_back(d);
  }
  copy_dims(b, source, "an index points into the whole of it");
}

/// A range of a dim, or of its diagonal: dims whose length changes stay whole.
void bind_changed(Binder& b) {
  if (!b.has_out(0) || b.out_shape(0).size() != b.in_shape(0).size()) return bind_opaque(b);
  std::vector<int> source;
  for (int d = 0; d < b.in_rank(0); ++d) {
    const bool same =
        b.in_shape(0)[static_cast<size_t>(d)] == b.out_shape(0)[static_cast<size_t>(d)];
    source.push_back(same ? d : Binder::kFixed);
  }
  copy_dims(b, source, "a range of it is taken");
}

/// `dim` is cut, or what is joined; the others stay.
void bind_cut(Binder& b) {
  const int rank = b.in_rank(0);
  const int cut = b.dim("dim", 0, rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) source.push_back(d == cut ? Binder::kFixed : d);
  copy_dims(b, source, "it is cut into parts");
}

/// One output for each index of `dim`.
void bind_unbind(Binder& b) {
  const int rank = b.in_rank(0);
  const int cut = b.dim("dim", 0, rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) {
    if (d != cut) source.push_back(d);
  }
  copy_dims(b, source, "it is taken apart");
}

void bind_cat(Binder& b) {
  if (!b.has_out(0)) return;
  const int rank = b.out_rank(0);
  const int joined = b.dim("dim", 0, rank);
  std::vector<int> dims = b.fresh_dims(b.out_shape(0)), inner = dims;
  if (joined < 0) return bind_opaque(b);
  b.freeze(dims[static_cast<size_t>(joined)], "the operands are joined along it");
  inner[static_cast<size_t>(joined)] = Binder::kFixed;
  for (int i = 0; i < b.num_inputs(); ++i) {
    if (b.in_rank(i) == rank) b.set_in(i, inner);  // else an empty one, which counts for nothing
  }
  b.set_out(0, dims);
}

void bind_stack(Binder& b) {
  if (!b.has_out(0)) return;
  const int rank = b.out_rank(0);
  const int added = b.dim("dim", 0, rank);
  std::vector<int> dims, out;
  for (int d = 0; d < rank; ++d) {
    if (d == added) {
      out.push_back(Binder::kFixed);
      continue;
    }
    dims.push_back(b.fresh(b.out_shape(0)[static_cast<size_t>(d)]));
    out.push_back(dims.back());
  }
  for (int i = 0; i < b.num_inputs(); ++i) {
    b.set_in(i, dims);
  }
  b.set_out(0, out);
}

/// A dim of length 1, or a new one, becomes longer: each rank makes its part.
void bind_expand(Binder& b) {
  if (!b.has_out(0)) return;
  const std::vector<int> dims = b.fresh_dims(b.out_shape(0));
  b.broadcast_in(0, dims);
  b.set_out(0, dims);
  if (b.num_inputs() > 1) {  // expand_as reads a shape only
    b.set_in(1, dims);
    b.no_gradient(1);
  }
}

/// repeat: a dim that is repeated stays whole, as its parts would lie apart.
void bind_repeat(Binder& b) {
  if (!b.has_out(0)) return;
  const auto& out = b.out_shape(0);
  const auto& in = b.in_shape(0);
  if (out.size() < in.size()) return bind_opaque(b);
  const size_t added = out.size() - in.size();
  std::vector<int> from, to(added, Binder::kFixed);
  for (size_t d = 0; d < in.size(); ++d) {
    from.push_back(b.fresh(in[d]));
    const bool same = in[d] == out[d + added];
    if (!same) b.freeze(from.back(), "it is repeated");
    to.push_back(same ? from.back() : Binder::kFixed);
  }
  b.set_in(0, from);
  b.set_out(0, to);
}

/// Each element `repeats` times behind one another: `a -> (a r)`.
void bind_repeat_interleave(Binder& b) {
  const int rank = b.in_rank(0);
  const int dim = b.is_present("dim") ? b.dim("dim", 0, rank) : rank == 1 ? 0 : -1;
  const int64_t repeats = b.integer("repeats", 0);
  if (dim < 0 || repeats < 1 || !b.has_out(0) || b.out_rank(0) != rank) return bind_opaque(b);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  Binder::Dims out;
  for (int d = 0; d < rank; ++d) {
    const int name = dims[static_cast<size_t>(d)];
    out.push_back({name});
    if (d != dim) continue;
    if (b.is_present("output_size")) b.freeze(name, "the output size is an argument");
    if (repeats > 1) {
      out.back().push_back(b.fresh(Extent{repeats, ""}));
      b.freeze(out.back().back(), "it is made by repeating");
    }
  }
  b.set_in(0, dims);
  b.set_out(0, std::move(out));
}

/// Argument `dims` lists what stays whole; an empty or absent list is everything.
void bind_listed(Binder& b) {
  const int rank = b.in_rank(0);
  const std::vector<bool> whole = b.dims("dims", rank);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  for (int d = 0; d < rank; ++d) {
    if (whole[static_cast<size_t>(d)])
      b.freeze(dims[static_cast<size_t>(d)], "elements change places in it");
  }
  b.set_in(0, dims);
  b.set_outs(dims);
}

/// Argument `pad` has two numbers for each dim, from the last.
void bind_pad(Binder& b) {
  const auto pad = b.integers("pad") ? b.integers("pad") : b.integers("padding");
  const int rank = b.in_rank(0);
  const std::vector<int> dims = b.fresh_dims(b.in_shape(0));
  std::vector<int> out = dims;
  for (int d = 0; d < rank; ++d) {
    const auto place = static_cast<size_t>(2 * (rank - 1 - d));
    const bool untouched =
        pad && (place + 1 >= pad->size() || ((*pad)[place] == 0 && (*pad)[place + 1] == 0));
    if (untouched) continue;
    b.freeze(dims[static_cast<size_t>(d)], "it is padded at its ends");
    out[static_cast<size_t>(d)] = Binder::kFixed;
  }
  b.set_in(0, dims);
  b.set_out(0, out);
}

/// Padding with another number than 0 is not linear.
void settle_pad(Binder& b) {
  if (b.number("value", 0) == 0) b.linear({0});
}

/// Windows of a dim, which become a last dim.
void bind_unfold(Binder& b) {
  const int rank = b.in_rank(0);
  const int cut = b.dim("dimension", 0, rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) source.push_back(d == cut ? Binder::kFixed : d);
  source.push_back(Binder::kFixed);
  copy_dims(b, source, "windows of it are taken");
}

/// Two dims become their diagonal, the last.
void bind_diagonal(Binder& b) {
  const int rank = b.in_rank(0);
  const bool last = b.op.target == "aten.linalg_diagonal.default";
  const int first = b.dim("dim1", last ? -2 : 0, rank), second = b.dim("dim2", last ? -1 : 1, rank);
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) {
    if (d != first && d != second) source.push_back(d);
  }
  source.push_back(Binder::kFixed);
  copy_dims(b, source, "its diagonal is taken");
}

/// One input a dim of every output.
void bind_meshgrid(Binder& b) {
  const Argument* indexing = b.op.find("indexing");
  const auto* text = indexing ? std::get_if<std::string>(&indexing->value) : nullptr;
  std::vector<int> dims;
  for (int i = 0; i < b.num_inputs(); ++i) {
    if (b.in_rank(i) != 1) return bind_opaque(b);
    dims.push_back(b.fresh(b.in_shape(i)[0]));
    b.set_in(i, std::vector<int>{dims.back()});
  }
  if (text && *text == "xy" && dims.size() >= 2) std::swap(dims[0], dims[1]);
  b.set_outs(dims);
}

/// Elements of a dim in groups: the last dim of length 2 is a complex number.
void bind_view_dtype(Binder& b) {
  if (!b.has_out(0)) return;
  const auto& in = b.in_shape(0);
  const auto& out = b.out_shape(0);
  std::vector<int> from = b.fresh_dims(in), to = from;
  if (out.size() != in.size()) return bind_opaque(b);
  if (!in.empty() && in.back() != out.back()) {
    b.freeze(from.back(), "its bytes are read anew");
    to.back() = Binder::kFixed;
  }
  b.set_in(0, from);
  b.set_out(0, to);
}

constexpr Rule kReshape{"by factors: b s (h d) -> b s h d", bind_reshape};

}  // namespace

void bind_reshape(Binder& b) {
  if (!b.has_out(0) || b.num_inputs() == 0) return bind_opaque(b);
  FactorMatch match(b, b.in_shape(0), b.out_shape(0));
  if (b.num_inputs() > 1) {  // view_as reads a shape only
    b.set_in(1, match.to_dims);
    b.no_gradient(1);
  }
  b.set_in(0, std::move(match.from_dims));
  b.set_outs(std::vector<int>(b.out_shape(0).size(), Binder::kFixed));
  for (int o = 0; o < b.num_outputs(); ++o) b.set_out(o, match.to_dims);
}

const Entries& shape_entries() {
  static const Entries entries = {
      {.targets = "view _unsafe_view",
       .signatures = "T.view",
       .rule = kReshape,
       .linear = "self",
       .size_argument = "size",
       .after = settle_view,
       .view = true},
      {.targets = "reshape",
       .signatures = "torch.reshape T.reshape",
       .rule = kReshape,
       .linear = "self",
       .size_argument = "shape",
       .after = settle_copy},
      {.targets = "{view_as,reshape_as}",
       .signatures = "T.*",
       .rule = kReshape,
       .arguments = "self other",
       .linear = "self",
       .after = settle_copy},
      {.targets = "flatten.using_ints ravel",
       .signatures = "torch.* T.*",
       .rule = kReshape,
       .linear = "self",
       .after = settle_copy},
      {.targets = "unflatten.int",
       .signatures = "torch.unflatten T.unflatten",
       .rule = kReshape,
       .linear = "self",
       .size_argument = "sizes",
       .after = settle_view,
       .view = true},
      {.targets = "atleast_{1d,2d,3d}",
       .signatures = "torch.*",
       .rule = kReshape,
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "view.dtype",
       .signatures = "T.view",
       .rule = {"* -> *", bind_view_dtype},
       .after = settle_view,
       .view = true},
      {.targets = "permute",
       .signatures = "torch.permute T.permute",
       .rule = {"a b c -> c a b", bind_permute},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "transpose.int {swapaxes,swapdims}",
       .signatures = "torch.{transpose,swapaxes,swapdims} T.{transpose,swapaxes,swapdims}",
       .rule = {"a b -> b a", bind_transpose},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "t",
       .signatures = "torch.t T.t",
       .rule = {"a b -> b a", bind_matrix_transpose},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "mT",
       .signatures = "T.mT",
       .rule = {"* a b -> * b a", bind_matrix_transpose},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "mH adjoint",
       .signatures = "torch.adjoint T.adjoint T.mH",
       .rule = {"* a b -> * b a", bind_matrix_transpose},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "numpy_T",
       .signatures = "T.T",
       .rule = {"a b -> b a", bind_permute},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "matrix_H",
       .signatures = "T.H",
       .rule = {"a b -> b a", bind_permute},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "{movedim,moveaxis}.{int,intlist}",
       .signatures = "torch.{movedim,moveaxis} T.{movedim,moveaxis}",
       .rule = {"a b c -> b c a", bind_movedim},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "unsqueeze{,_}",
       .signatures = "torch.unsqueeze T.unsqueeze{,_} | op.getitem",
       .rule = {"a b -> a 1 b", bind_unsqueeze},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "squeeze{,_} squeeze{,_}.{dim,dims}",
       .signatures = "torch.squeeze T.squeeze{,_}",
       .rule = {"a 1 b -> a b", bind_squeeze},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "select.int",
       .signatures = "torch.select T.select | op.getitem",
       .rule = {"a dim^ -> a", bind_select},
       .arguments = "self",
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "slice.Tensor",
       .signatures = "op.getitem",
       .rule = {"a dim^ -> a l", bind_changed},
       .arguments = "self",
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "narrow",
       .signatures = "torch.narrow T.narrow",
       .rule = {"a dim^ -> a l", bind_changed},
       .arguments = "self",
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "split.{Tensor,sizes} split_with_sizes unsafe_split.Tensor",
       .signatures = "torch.split T.split torch.functional.split torch.split_with_sizes",
       .rule = {"a dim^ -> a l, a l", bind_cut},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "chunk unsafe_chunk",
       .signatures = "torch.chunk T.chunk",
       .rule = {"a dim^ -> a l, a l", bind_cut},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "tensor_split.{sections,indices}",
       .signatures = "torch.tensor_split T.tensor_split",
       .rule = {"a dim^ -> a l, a l", bind_cut},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "unbind.int",
       .signatures = "torch.unbind T.unbind",
       .rule = {"a dim^ -> a, a", bind_unbind},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "{cat,concat,concatenate}",
       .signatures = "torch.{cat,concat,concatenate}",
       .rule = {"a l, a l -> a dim^", bind_cat},
       .linear = "tensors",
       .flops = 0},
      {.targets = "stack",
       .signatures = "torch.stack",
       .rule = {"a, a -> a l", bind_stack},
       .linear = "tensors",
       .flops = 0},
      {.targets = "expand",
       .signatures = "T.expand",
       .rule = {"a 1 -> a b", bind_expand},
       .linear = "self",
       .size_argument = "size",
       .after = settle_view,
       .view = true,
       .splits_outputs = true},
      {.targets = "broadcast_to",
       .signatures = "torch.broadcast_to T.broadcast_to",
       .rule = {"a 1 -> a b", bind_expand},
       .linear = "self",
       .size_argument = "size",
       .after = settle_view,
       .view = true,
       .splits_outputs = true},
      {.targets = "expand_as",
       .signatures = "T.expand_as",
       .rule = {"a 1, a b -> a b", bind_expand},
       .arguments = "self other",
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "broadcast_tensors",
       .signatures = "torch.broadcast_tensors torch.functional.broadcast_tensors",
       .rule = kPointwise,
       .after = settle_view,
       .view = true},
      {.targets = "meshgrid meshgrid.indexing",
       .signatures = "torch.meshgrid torch.functional.meshgrid",
       .rule = {"a, b -> a b, a b", bind_meshgrid},
       .after = settle_view,
       .view = true},
      {.targets = "repeat",
       .signatures = "T.repeat",
       .rule = {"a^ b -> (r a) b", bind_repeat},
       .linear = "self",
       .flops = 0},
      {.targets = "tile",
       .signatures = "torch.tile T.tile",
       .rule = {"a^ b -> (r a) b", bind_repeat},
       .linear = "self",
       .flops = 0},
      {.targets = "repeat_interleave.self_int",
       .signatures = "torch.repeat_interleave T.repeat_interleave",
       .rule = {"a -> (a r^)", bind_repeat_interleave},
       .linear = "self",
       .flops = 0},
      {.targets = "flip roll rot90",
       .signatures = "torch.* T.*",
       .rule = {"a dims^ -> a dims^", bind_listed},
       .arguments = "self",
       .linear = "self",
       .flops = 0},
      {.targets = "{tril,triu}{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = {"* x^ y^ -> * x^ y^"},
       .linear = "self",
       .flops = 1},
      {.targets = "{pad,constant_pad_nd,reflection_pad1d,reflection_pad2d,replication_pad1d,"
                  "replication_pad2d}",
       .signatures = "F.pad torch.constant_pad_nd",
       .rule = {"a dim^ -> a l", bind_pad},
       .arguments = "self",
       .flops = 0,
       .after = settle_pad},
      {.targets = "unfold",
       .signatures = "T.unfold",
       .rule = {"a dim^ -> a n l", bind_unfold},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "diagonal linalg_diagonal",
       .signatures = "torch.diagonal T.diagonal",
       .rule = {"a x^ y^ -> a l", bind_diagonal},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "{diag,diag_embed,as_strided}",
       .signatures = "torch.* T.*",
       .rule = kWhole,
       .linear = "self",
       .flops = 0},
      {.targets = "view_as_complex",
       .signatures = "torch.view_as_complex",
       .rule = {"* 2 -> *"},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "view_as_real",
       .signatures = "torch.view_as_real",
       .rule = {"* -> * 2"},
       .linear = "self",
       .after = settle_view,
       .view = true},
      {.targets = "real imag",
       .signatures = "torch.* T.*",
       .rule = kPointwise,
       .linear = "self",
       .after = settle_view,
       .view = true},
  };
  return entries;
}

}  // namespace nnscaler
