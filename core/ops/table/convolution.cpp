#include <algorithm>

#include "core/ops/table.h"

// Convolutions, pooling, resampling: batch and channels may be split, places in space are not.

namespace nnscaler {

namespace {

constexpr std::string_view kSpace = "windows reach over its parts' borders";

double value_of(const Extent& extent) {
  return static_cast<double>(std::max<int64_t>(1, extent.value));
}

/// input: n (g i) space…, weight: (g o) i space…, bias: (g o); transposed: weight (g i) o space….
/// Without groups i is summed over, and the bias enters once.
void bind_convolution(Binder& b, bool transposed) {
  const int input = b.input("input"), weight = b.input("weight"), bias = b.input("bias");
  if (input < 0 || weight < 0 || !b.has_out(0)) return bind_opaque(b);
  const auto& in = b.in_shape(input);
  const auto& kernel = b.in_shape(weight);
  const auto& out = b.out_shape(0);
  const int64_t groups = b.integer("groups", 1);
  const size_t space = kernel.size() - 2;
  if (kernel.size() < 3 || in.size() < space + 1 || in.size() > space + 2 ||
      out.size() != in.size() || groups < 1)
    return bind_opaque(b);
  const bool batched = in.size() == space + 2;
  const size_t channel = batched ? 1 : 0;
  b.reserved = {"n", "g", "iC", "oC"};
  Binder::Dims x, y, w(kernel.size());
  if (batched) x = y = {{b.name("n", in[0])}};
  std::vector<int> in_channels, out_channels;
  const auto each = [&](const Extent& extent) {
    return Extent{extent.value / groups, extent.symbol};
  };
  if (groups > 1) {
    if (in[channel].value % groups != 0 || out[channel].value % groups != 0) return bind_opaque(b);
    const int g = b.name("g", Extent{groups, ""});
    const int i = b.name("iC", each(in[channel])), o = b.name("oC", each(out[channel]));
    b.freeze(i, "it is inside a group");
    b.freeze(o, "it is inside a group");
    in_channels = {g, i};
    out_channels = {g, o};
    w[0] = transposed ? in_channels : out_channels;
    w[1] = {transposed ? o : i};
    b.rule.divide_argument = "groups";
    b.rule.divide_name = g;
  } else {
    const int i = b.name("iC", in[channel]), o = b.name("oC", out[channel]);
    b.sum(i);
    if (bias >= 0) b.at(i).once.push_back(bias);
    in_channels = {i};
    out_channels = {o};
    w[0] = transposed ? in_channels : out_channels;
    w[1] = transposed ? out_channels : in_channels;
  }
  x.push_back(in_channels);
  y.push_back(out_channels);
  x.resize(in.size());
  y.resize(out.size());
  b.set_in(input, std::move(x));
  b.set_in(weight, std::move(w));
  if (bias >= 0) b.set_in(bias, Binder::Dims{out_channels});
  b.set_out(0, std::move(y));

  double window = 2 * value_of(kernel[1]);
  for (size_t d = 2; d < kernel.size(); ++d) window *= value_of(kernel[d]);
  const Value& places = transposed ? b.in(input) : b.out(0);
  b.product_flops(window * static_cast<double>(places.num_elements()), {input, weight});
}

void bind_forward(Binder& b) { bind_convolution(b, b.flag("transposed", false)); }
void bind_transposed(Binder& b) { bind_convolution(b, true); }

/// The last `space` dims stay whole.
void keep_leading(Binder& b, int space, std::string_view why) {
  const int rank = b.in_rank(0);
  std::vector<int> dims = b.fresh_dims(b.in_shape(0)), out = dims;
  for (int d = std::max(0, rank - space); d < rank; ++d) {
    b.freeze(dims[static_cast<size_t>(d)], why);
    out[static_cast<size_t>(d)] = Binder::kFixed;
  }
  b.set_in(0, dims);
  b.set_outs(out);
}

/// "aten.max_pool2d.default" has two dims in space.
int dims_in_space(const Binder& b) {
  for (const char d : {'1', '2', '3'}) {
    if (b.op.target.find(std::string(1, d) + "d") != std::string::npos) return d - '0';
  }
  return 2;
}

void bind_pool(Binder& b) { keep_leading(b, dims_in_space(b), kSpace); }

/// Resampling: everything after batch and channels.
void bind_resample(Binder& b) { keep_leading(b, b.in_rank(0) - 2, kSpace); }

/// `* (c r r) h w -> * c (h r) (w r)`
void bind_pixel_shuffle(Binder& b) {
  const int rank = b.in_rank(0);
  const bool up = b.is_present("upscale_factor");
  if (rank < 3 || b.out_rank(0) != rank) return bind_opaque(b);
  Binder::Dims from, to;
  for (int d = 0; d < rank; ++d) {
    const auto place = static_cast<size_t>(d);
    if (d < rank - 3) {
      from.push_back({b.fresh(b.in_shape(0)[place])});
      to.push_back(from.back());
    } else if (d == rank - 3) {
      const int c = b.fresh(up ? b.out_shape(0)[place] : b.in_shape(0)[place]);
      from.push_back({c});
      to.push_back({c});
    } else {
      from.emplace_back();
      to.emplace_back();
    }
  }
  b.set_in(0, std::move(from));
  b.set_out(0, std::move(to));
}

/// Windows of an image become columns: only the batch is kept apart.
void bind_columns(Binder& b) {
  if (!b.has_out(0) || b.in_rank(0) < 3) return bind_opaque(b);
  std::vector<int> from(b.in_shape(0).size(), Binder::kFixed),
      to(b.out_shape(0).size(), Binder::kFixed);
  const bool batched =
      b.op.target.find("im2col") != std::string::npos ? from.size() == 4 : from.size() == 3;
  if (batched && !to.empty()) from[0] = to[0] = b.fresh(b.in_shape(0)[0]);
  b.set_in(0, from);
  b.set_out(0, to);
}

}  // namespace

const Entries& convolution_entries() {
  static const Entries entries = {
      {.targets = "conv{1d,2d,3d} conv{1d,2d,3d}.padding",
       .signatures = "F.* torch.*",
       .rule = {"n iC+ ..., oC iC+ ..., oC -> n oC ...", bind_forward},
       .arguments = "input weight bias",
       .linear = "input+-bias,weight+-bias",
       .saved = "input?weight weight?input"},
      {.targets = "convolution",
       .signatures = "torch.convolution",
       .rule = {"n iC+ ..., oC iC+ ..., oC -> n oC ...", bind_forward},
       .arguments = "input weight bias",
       .linear = "input+-bias,weight+-bias",
       .saved = "input?weight weight?input"},
      {.targets = "conv_transpose{1d,2d.input,3d.input}",
       .signatures = "F.* torch.*",
       .rule = {"n iC+ ..., iC+ oC ..., oC -> n oC ...", bind_transposed},
       .arguments = "input weight bias",
       .linear = "input+-bias,weight+-bias",
       .saved = "input?weight weight?input"},
      {.targets = "max_pool{1d,2d,3d}",
       .signatures = "F.* torch.*",
       .rule = {"n c ... -> n c ...", bind_pool},
       .saved = "self result",
       .flops = 9},
      {.targets = "max_pool{1d,2d,3d}_with_indices",
       .signatures = "F.*",
       .rule = {"n c ... -> n c ...", bind_pool},
       .saved = "result1",
       .flops = 9},
      {.targets = "avg_pool{1d,2d,3d}",
       .signatures = "F.*",
       .rule = {"n c ... -> n c ...", bind_pool},
       .linear = "self",
       .flops = 9},
      {.targets = "adaptive_avg_pool{1d,2d,3d}",
       .signatures = "F.*",
       .rule = {"n c ... -> n c ...", bind_pool},
       .linear = "self"},
      {.targets = "adaptive_max_pool{1d,2d,3d}",
       .signatures = "F.*",
       .rule = {"n c ... -> n c ...", bind_pool},
       .saved = "result1"},
      {.targets =
           "upsample_{nearest1d,nearest2d,nearest3d,linear1d,bilinear2d,trilinear3d,bicubic2d}"
           "{,.vec} _upsample_{bilinear2d_aa,bicubic2d_aa}{,.vec}",
       .signatures = "F.interpolate F.upsample",
       .rule = {"n c ... -> n c ...", bind_resample},
       .arguments = "input",
       .linear = "input,self",
       .flops = 4},
      {.targets = "pixel_{shuffle,unshuffle}",
       .signatures = "F.* torch.*",
       .rule = {"* (c r r) h w -> * c (h r) (w r)", bind_pixel_shuffle},
       .linear = "self",
       .flops = 0},
      {.targets = "im2col",
       .signatures = "F.unfold",
       .rule = {"n ... -> n ...", bind_columns},
       .linear = "self",
       .flops = 0},
      {.targets = "col2im",
       .signatures = "F.fold",
       .rule = {"n ... -> n ...", bind_columns},
       .linear = "self"},
  };
  return entries;
}

}  // namespace nnscaler
