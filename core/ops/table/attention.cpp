#include <algorithm>

#include "core/ops/table.h"

namespace nnscaler {

namespace {

double value_of(const Extent& extent) {
  return static_cast<double>(std::max<int64_t>(1, extent.value));
}

/// query: batch… h l d, key: batch… h s d, value: batch… h s v, mask: broadcast to batch… h l s.
void bind_attention(Binder& b) {
  const int query = b.input("query"), key = b.input("key"), value = b.input("value"),
            mask = b.input("attn_mask");
  if (query < 0 || key < 0 || value < 0 || !b.has_out(0)) return bind_opaque(b);
  const auto& q = b.in_shape(query);
  const auto& k = b.in_shape(key);
  const auto& v = b.in_shape(value);
  const size_t rank = q.size();
  if (rank < 2 || k.size() != rank || v.size() != rank || b.out_shape(0).size() != rank)
    return bind_opaque(b);
  b.reserved = {"b", "h", "g", "r", "l", "s", "d", "v"};

  // Leading dims: batch, then heads; more than two are rare.
  Binder::Dims lead_q, lead_k, lead_mask;
  const bool grouped = b.flag("enable_gqa", false);
  for (size_t d = 0; d + 2 < rank; ++d) {
    const bool is_head = d + 3 == rank && rank > 3;
    const char* own = is_head ? "h" : d == 0 ? "b" : nullptr;
    const Extent& out = b.out_shape(0)[d];
    if (is_head && grouped && k[d] != q[d]) {
      if (k[d].value < 1 || q[d].value % k[d].value != 0 || v[d] != k[d]) return bind_opaque(b);
      if (k[d].value == 1) {
        // One head for all: it is whole wherever the queries' heads are split.
        lead_q.push_back({b.name("h", q[d])});
        lead_k.push_back({});
      } else {
        const int g = b.name("g", k[d]), r = b.name("r", Extent{q[d].value / k[d].value, ""});
        lead_q.push_back({g, r});
        lead_k.push_back({g});
      }
    } else {
      const int name = own ? b.name(own, out) : b.fresh(out);
      const bool q_has = q[d].value == out.value,
                 k_has = k[d].value == out.value && v[d].value == out.value;
      lead_q.push_back(q_has ? std::vector<int>{name} : std::vector<int>{});
      lead_k.push_back(k_has ? std::vector<int>{name} : std::vector<int>{});
      if (k[d].value != v[d].value || !q_has)
        b.freeze(name, "queries, keys and values differ in it");
    }
  }
  const int l = b.name("l", q[rank - 2]), s = b.name("s", k[rank - 2]),
            e = b.name("d", q[rank - 1]), w = b.name("v", v[rank - 1]);
  b.freeze(s, "softmax runs over all keys");
  b.freeze(e, "a head stays whole");
  b.freeze(w, "a head stays whole");
  if (b.flag("is_causal", false)) b.freeze(l, "with is_causal a query must know its position");

  const auto with = [](Binder::Dims dims, int second_last, int last) {
    dims.push_back({second_last});
    dims.push_back({last});
    return dims;
  };
  b.set_in(query, with(lead_q, l, e));
  b.set_in(key, with(lead_k, s, e));
  b.set_in(value, with(lead_k, s, w));
  b.set_out(0, with(lead_q, l, w));
  if (mask >= 0) {
    const Binder::Dims whole = with(lead_q, l, s);
    const auto& shape = b.in_shape(mask);
    if (shape.size() > whole.size()) return bind_opaque(b);
    Binder::Dims dims(shape.size());
    for (size_t back = 1; back <= shape.size(); ++back) {
      const size_t d = shape.size() - back, o = whole.size() - back;
      const Extent& extent =
          back <= 2 ? (back == 1 ? k[rank - 2] : q[rank - 2]) : b.out_shape(0)[o];
      const bool stretched = shape[d].value == 1 && !shape[d].is_symbolic() && extent.value != 1;
      if (!stretched) dims[d] = whole[o];
    }
    b.set_in(mask, std::move(dims));
  }
  b.rule.random = b.number("dropout_p", 0) > 0;
  double pairs = value_of(q[rank - 2]) * value_of(k[rank - 2]);
  for (size_t d = 0; d + 2 < rank; ++d) pairs *= value_of(b.out_shape(0)[d]);
  const double forward = 2 * pairs * (value_of(q[rank - 1]) + value_of(v[rank - 1]));
  // Backward computes the scores anew.
  b.flops(forward, b.out_needs_gradient() ? 2.5 * forward : 0);
}

void settle_embedding(Binder& b) {
  const int weight = b.input("weight");
  if (weight < 0 || b.rule.inputs[static_cast<size_t>(weight)].dims.size() != 2) return;
  const auto& dims = b.rule.inputs[static_cast<size_t>(weight)].dims;
  if (dims[0].empty()) return;
  const int rows = dims[0][0];
  b.at(rows).keyword = "rows";
  b.rule.callee = "nnscaler.runtime.functional.embedding";
  if (b.flag("sparse", false)) b.freeze(rows, "sparse gradients hold whole rows' numbers");
  if (b.flag("scale_grad_by_freq", false)) {
    for (int n = 0; n < static_cast<int>(b.rule.names.size()); ++n) {
      const bool of_weight = n == rows || (!dims[1].empty() && n == dims[1][0]);
      if (!of_weight || n == rows)
        b.freeze(n, "the gradient is scaled by counts over the whole batch");
    }
  }
  b.flops(0, 0);
}

}  // namespace

const Entries& attention_entries() {
  static const Entries entries = {
      {.targets = "scaled_dot_product_attention",
       .signatures = "F.scaled_dot_product_attention torch._C._nn.scaled_dot_product_attention",
       .rule = {"b h l d^, b h s^ d^, b h s^ v^, b h l s^ -> b h l v^", bind_attention},
       .arguments = "query key value attn_mask",
       .saved = "query key value attn_mask result"},
      {.targets = "embedding",
       .signatures = "F.embedding torch.embedding {cube,nnscaler}.runtime.function.embedding",
       .rule = {"*, n+ e -> * e"},
       .arguments = "indices weight",
       .saved = "indices",
       .after = settle_embedding},
  };
  return entries;
}

}  // namespace nnscaler
