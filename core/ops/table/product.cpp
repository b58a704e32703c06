#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/ops/table.h"

// Sums of products: linear layers, matrix products, einsum.

namespace nnscaler {

namespace {

double elements(const Value& value) { return static_cast<double>(value.num_elements()); }

double length(const std::vector<Extent>& shape, int dim_from_end) {
  const auto size = static_cast<int>(shape.size());
  if (dim_from_end > size) return 1;
  return static_cast<double>(
      std::max<int64_t>(1, shape[static_cast<size_t>(size - dim_from_end)].value));
}

/// 2 m n k, and as much backward for each operand that needs a gradient.
void count_linear(Binder& b) {
  const int input = b.input("input"), weight = b.input("weight");
  if (input < 0 || weight < 0 || !b.has_out(0)) return;
  b.product_flops(2 * elements(b.out(0)) * length(b.in_shape(weight), 1), {input, weight});
}

/// The last two inputs are the factors; the second last's last dim is summed over.
void count_product(Binder& b) {
  const int n = b.num_inputs();
  if (n < 2 || !b.has_out(0)) return;
  b.product_flops(2 * elements(b.out(0)) * length(b.in_shape(n - 2), 1), {n - 2, n - 1});
}

/// self: batch… m k, other: batch… k n; either may lack dims, and batch dims broadcast.
void bind_matmul(Binder& b) {
  if (b.num_inputs() != 2 || !b.has_out(0)) return bind_opaque(b);
  const auto& left = b.in_shape(0);
  const auto& right = b.in_shape(1);
  const auto& out = b.out_shape(0);
  const bool has_m = left.size() > 1, has_n = right.size() > 1;
  const bool too_small = out.size() < static_cast<size_t>(has_m) + static_cast<size_t>(has_n);
  if (left.empty() || right.empty() || too_small) return bind_opaque(b);
  const size_t batch = out.size() - (has_m ? 1 : 0) - (has_n ? 1 : 0);
  b.reserved = {"m", "k", "n"};
  std::vector<int> batch_dims;
  for (size_t d = 0; d < batch; ++d) batch_dims.push_back(b.fresh(out[d]));
  const int m = has_m ? b.name("m", left[left.size() - 2]) : Binder::kFixed;
  const int k = b.name("k", left.back());
  const int n = has_n ? b.name("n", right.back()) : Binder::kFixed;
  b.sum(k);

  const auto with = [&](int last, int second_last) {
    std::vector<int> dims = batch_dims;
    if (second_last >= 0) dims.push_back(second_last);
    if (last >= 0) dims.push_back(last);
    return dims;
  };
  // A vector has no batch dims.
  b.broadcast_in(0, has_m ? with(k, m) : std::vector<int>{k});
  b.broadcast_in(1, has_n ? with(n, k) : std::vector<int>{k});
  b.set_out(0, with(n, m));
}

/// self + mat1 @ mat2, where self broadcasts and enters once when k is split.
void bind_added_product(Binder& b, bool batched) {
  const int self = b.input("self"), first = batched ? b.input("batch1") : b.input("mat1"),
            second = batched ? b.input("batch2") : b.input("mat2");
  const size_t rank = batched ? 3 : 2;
  if (first < 0 || second < 0 || b.in_shape(first).size() != rank ||
      b.in_shape(second).size() != rank || !b.has_out(0) || b.out_shape(0).size() != rank)
    return bind_opaque(b);
  std::vector<int> left, right, out;
  if (batched) left = right = out = {b.name("b", b.out_shape(0)[0])};
  const int m = b.name("m", b.out_shape(0)[rank - 2]), k = b.name("k", b.in_shape(first)[rank - 1]),
            n = b.name("n", b.out_shape(0)[rank - 1]);
  b.sum(k);
  left.insert(left.end(), {m, k});
  right.insert(right.end(), {k, n});
  out.insert(out.end(), {m, n});
  b.set_in(first, left);
  b.set_in(second, right);
  b.set_out(0, out);
  b.broadcast_in(self, out);
}

void bind_addmm(Binder& b) { bind_added_product(b, false); }
void bind_baddbmm(Binder& b) { bind_added_product(b, true); }

/// Letters of the equation are the names.
void bind_einsum(Binder& b) {
  const Argument* argument = b.op.find("equation");
  const auto* equation = argument ? std::get_if<std::string>(&argument->value) : nullptr;
  if (!equation || !b.has_out(0)) return bind_opaque(b);
  // Terms, with the dims of an ellipsis as digits counted from the right.
  std::vector<std::string> terms(1);
  std::string right;
  bool after_arrow = false, explicit_output = false;
  std::vector<int> ellipsis(static_cast<size_t>(b.num_inputs()), 0);
  for (size_t i = 0; i < equation->size(); ++i) {
    const char c = (*equation)[i];
    if (c == ' ') continue;
    std::string& term = after_arrow ? right : terms.back();
    if (c == ',') {
      terms.emplace_back();
    } else if (c == '-') {
      after_arrow = explicit_output = true;
      ++i;
    } else if (c == '.') {
      term += '.';
      i += 2;
    } else {
      term += c;
    }
  }
  if (static_cast<int>(terms.size()) != b.num_inputs()) return bind_opaque(b);
  int most = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto letters =
        static_cast<int>(std::ranges::count_if(terms[i], [](char c) { return c != '.'; }));
    if (terms[i].find('.') != std::string::npos)
      ellipsis[i] = b.in_rank(static_cast<int>(i)) - letters;
    if (ellipsis[i] < 0 || letters + ellipsis[i] != b.in_rank(static_cast<int>(i)))
      return bind_opaque(b);
    most = std::max(most, ellipsis[i]);
  }
  if (most > 9) return bind_opaque(b);
  const auto spread = [](const std::string& term, int count) {
    std::string dims;
    for (const char c : term) {
      if (c != '.') {
        dims += c;
      } else {
        for (int i = count; i > 0; --i) dims += static_cast<char>('0' + i - 1);
      }
    }
    return dims;
  };
  for (size_t i = 0; i < terms.size(); ++i) {
    terms[i] = spread(terms[i], ellipsis[i]);
    if (terms[i].size() != b.in_shape(static_cast<int>(i)).size()) return bind_opaque(b);
  }
  if (explicit_output) {
    right = spread(right, most);
  } else {
    // Letters that occur once, in order, after the ellipsis.
    std::map<char, int> counts;
    for (const std::string& term : terms) {
      for (const char c : term) ++counts[c];
    }
    right = spread(".", most);
    for (const auto& [c, count] : counts) {
      if (count == 1 && !(c >= '0' && c <= '9')) right += c;
    }
  }
  if (right.size() != b.out_shape(0).size()) return bind_opaque(b);

  std::map<char, int> names;
  for (const std::string& term : terms) {
    for (const char c : term) {
      if (!(c >= '0' && c <= '9')) b.reserved.push_back(std::string(1, c));
    }
  }
  double volume = 2;
  for (int i = 0; i < b.num_inputs(); ++i) {
    const std::string& term = terms[static_cast<size_t>(i)];
    for (size_t d = 0; d < term.size(); ++d) {
      const Extent& extent = b.in_shape(i)[d];
      const auto known = names.find(term[d]);
      if (known == names.end()) {
        const bool digit = term[d] >= '0' && term[d] <= '9';
        names[term[d]] = digit ? b.fresh(extent) : b.name(std::string(1, term[d]), extent);
      } else {
        BoundName& name = b.at(known->second);
        name.extent = std::max(name.extent, extent.value);
      }
    }
  }
  for (const auto& [c, name] : names) {
    if (right.find(c) == std::string::npos) b.sum(name);
    volume *= static_cast<double>(std::max<int64_t>(1, b.at(name).extent));
  }
  std::vector<int> out;
  for (const char c : right) out.push_back(names.contains(c) ? names[c] : Binder::kFixed);
  b.set_out(0, out);
  double backward = 0;
  for (int i = 0; i < b.num_inputs(); ++i) {
    std::vector<int> dims;
    for (const char c : terms[static_cast<size_t>(i)]) dims.push_back(names[c]);
    b.broadcast_in(i, dims);
    if (b.in(i).requires_grad) backward += volume;
    b.linear({i});
  }
  b.flops(volume, backward);
}

void bind_tensordot(Binder& b) {
  const auto left = b.integers("dims_self"), right = b.integers("dims_other");
  if (b.num_inputs() != 2 || !left || !right || left->size() != right->size() || !b.has_out(0))
    return bind_opaque(b);
  std::vector<int> first(b.in_shape(0).size(), Binder::kFixed),
      second(b.in_shape(1).size(), Binder::kFixed);
  double summed = 1;
  for (size_t i = 0; i < left->size(); ++i) {
    int64_t l = (*left)[i], r = (*right)[i];
    if (l < 0) l += b.in_rank(0);
    if (r < 0) r += b.in_rank(1);
    if (l < 0 || l >= b.in_rank(0) || r < 0 || r >= b.in_rank(1)) return bind_opaque(b);
    const Extent& extent = b.in_shape(0)[static_cast<size_t>(l)];
    if (extent.value != b.in_shape(1)[static_cast<size_t>(r)].value) return bind_opaque(b);
    const int k = b.name(fmt::format("k{}", i), extent);
    b.sum(k);
    summed *= static_cast<double>(std::max<int64_t>(1, extent.value));
    first[static_cast<size_t>(l)] = second[static_cast<size_t>(r)] = k;
  }
  std::vector<int> out;
  for (auto* side : {&first, &second}) {
    const int input = side == &first ? 0 : 1;
    for (size_t d = 0; d < side->size(); ++d) {
      if ((*side)[d] < 0) out.push_back((*side)[d] = b.fresh(b.in_shape(input)[d]));
    }
    b.set_in(input, *side);
  }
  if (out.size() != b.out_shape(0).size()) return bind_opaque(b);
  b.set_out(0, out);
  b.product_flops(2 * elements(b.out(0)) * summed, {0, 1});
}

/// The last dims are summed over; all others of both stay.
void bind_inner(Binder& b) {
  const int left = b.in_rank(0), right = b.in_rank(1);
  if (left == 0 || right == 0 || b.out_rank(0) != left + right - 2) return bind_opaque(b);
  std::vector<int> first = b.fresh_dims(b.in_shape(0)), second, out;
  for (int d = 0; d < right - 1; ++d)
    second.push_back(b.fresh(b.in_shape(1)[static_cast<size_t>(d)]));
  second.push_back(first.back());
  b.sum(first.back());
  out.insert(out.end(), first.begin(), first.end() - 1);
  out.insert(out.end(), second.begin(), second.end() - 1);
  b.set_in(0, first);
  b.set_in(1, second);
  b.set_out(0, out);
  b.product_flops(2 * elements(b.out(0)) * length(b.in_shape(0), 1), {0, 1});
}

/// A product of vectors of three, which stay whole.
void bind_cross(Binder& b) {
  bind_pointwise(b);
  const int rank = b.out_rank(0);
  const int along = b.dim("dim", -1, rank);
  const bool guessed = b.op.target.starts_with("aten.cross.") && !b.is_present("dim");
  for (int d = 0; d < rank; ++d) {
    // torch.cross without a dim takes the first of length 3.
    if (guessed ? b.at(d).extent == 3 : d == along) b.freeze(d, "a vector stays whole");
  }
}

}  // namespace

const Entries& product_entries() {
  static const Entries entries = {
      {.targets = "linear",
       .signatures = "F.linear torch._C._nn.linear",
       .rule = {"* k+, n k+, n -> * n"},
       .arguments = "input weight bias",
       .linear = "input+-bias,weight+-bias",
       .saved = "input?weight weight?input",
       .once = "bias",
       .after = count_linear},
      {.targets = "matmul",
       .signatures = "torch.matmul T.matmul op.matmul torch.mm T.mm",
       .rule = {"* m k+, * k+ n -> * m n", bind_matmul},
       .linear = "self,other",
       .saved = "self?other other?self",
       .after = count_product},
      {.targets = "mm",
       .signatures = "torch.matmul T.matmul op.matmul torch.mm T.mm",
       .rule = {"m k+, k+ n -> m n"},
       .linear = "self,mat2",
       .saved = "self?mat2 mat2?self",
       .after = count_product},
      {.targets = "bmm",
       .signatures = "torch.bmm T.bmm",
       .rule = {"b m k+, b k+ n -> b m n"},
       .linear = "self,mat2",
       .saved = "self?mat2 mat2?self",
       .after = count_product},
      {.targets = "mv",
       .signatures = "torch.mv T.mv",
       .rule = {"m k+, k+ -> m"},
       .linear = "self,vec",
       .saved = "self?vec vec?self",
       .after = count_product},
      {.targets = "{dot,vdot}",
       .signatures = "torch.* T.*",
       .rule = {"k+, k+ -> 1"},
       .linear = "self,other,tensor",
       .saved = "self other tensor",
       .after = count_product},
      {.targets = "inner",
       .signatures = "torch.inner T.inner",
       .rule = {"m k+, n k+ -> m n", bind_inner},
       .linear = "self,other",
       .saved = "self?other other?self"},
      {.targets = "linalg_vecdot",
       .signatures = "torch.linalg.*",
       .rule = {"* k+, * k+ -> *"},
       .linear = "x,y",
       .saved = "x?y y?x",
       .flops = 2},
      {.targets = "{outer,ger}",
       .signatures = "torch.* T.*",
       .rule = {"m, n -> m n"},
       .linear = "self,vec2",
       .saved = "self?vec2 vec2?self"},
      {.targets = "addmm{,_}",
       .signatures = "torch.addmm T.addmm{,_}",
       .rule = {"m n, m k+, k+ n -> m n", bind_addmm},
       .saved = "mat1?mat2 mat2?mat1",
       .once = "self",
       .after = count_product},
      {.targets = "baddbmm{,_}",
       .signatures = "torch.baddbmm T.baddbmm{,_}",
       .rule = {"b m n, b m k+, b k+ n -> b m n", bind_baddbmm},
       .saved = "batch1?batch2 batch2?batch1",
       .once = "self",
       .after = count_product},
      {.targets = "addmv",
       .signatures = "torch.addmv T.addmv{,_}",
       .rule = {"m, m k+, k+ -> m"},
       .saved = "mat?vec vec?mat",
       .once = "self",
       .after = count_product},
      {.targets = "cdist",
       .signatures = "torch.cdist torch.functional.cdist",
       .rule = {"* m d^, * n d^ -> * m n"},
       .saved = "x1 x2 result",
       .flops = 8},
      {.targets = "linalg_cross cross",
       .signatures = "torch.linalg.cross torch.cross T.cross",
       .rule = {"a 3, a 3 -> a 3", bind_cross},
       .saved = "self?other other?self",
       .flops = 3},
      {.targets = "bilinear",
       .signatures = "F.bilinear torch.bilinear",
       .rule = {"* i+, * j+, n i+ j+, n -> * n"},
       .saved = "input1 input2 weight",
       .once = "bias"},
      {.targets = "einsum",
       .signatures = "torch.einsum torch.functional.einsum",
       .rule = {"by equation", bind_einsum},
       .saved = "tensors"},
      {.targets = "tensordot",
       .signatures = "torch.tensordot torch.functional.tensordot",
       .rule = {"by dims", bind_tensordot},
       .linear = "self,other",
       .saved = "self?other other?self"},
  };
  return entries;
}

}  // namespace nnscaler
