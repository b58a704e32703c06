#include "core/ops/spelling.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace nnscaler {
namespace {

struct Row {
  std::string_view base;  ///< ATen name, with ".overload" where only that one is meant.
  std::string_view python;
};

/// Arguments of Python calls that differ from ATen's. In the brackets stand, in Python's order:
///   weight            by position        padding_idx=      by this keyword
///   training=train    renamed            size=size!None    left out when it prints "None"
///   reduction=:reduction                 converted (see ArgumentForm)
///   mode='"nearest"   a constant         -cudnn_enable     dropped           *tensors   spread out
/// A call that has an argument which its row lacks prints raw.
constexpr auto kCalls = std::to_array<Row>({
    {"embedding",
     "F.embedding(indices, weight, padding_idx=!-1, scale_grad_by_freq=!False, sparse=!False)"},
    {"linear", "F.linear(input, weight, bias)"},
    {"layer_norm", "F.layer_norm(input, normalized_shape, weight, bias, eps, -cudnn_enable)"},
    {"group_norm", "F.group_norm(input, num_groups, weight, bias, eps, -cudnn_enabled)"},
    {"rms_norm", "F.rms_norm(input, normalized_shape, weight, eps)"},
    {"batch_norm",
     "F.batch_norm(input, running_mean, running_var, weight, bias, training=:training, "
     "momentum=!0.1, eps=!1e-05, -cudnn_enabled)"},
    {"instance_norm",
     "F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats=, "
     "momentum=!0.1, eps=!1e-05, -cudnn_enabled)"},
    {"dropout", "F.dropout(input, p, train:training)"},
    {"dropout_", "F.dropout(self, p, train:training, inplace='True)"},
    {"alpha_dropout", "F.alpha_dropout(input, p, train:training)"},
    {"feature_dropout", "F.dropout2d(input, p, train:training)"},
    {"feature_alpha_dropout", "F.feature_alpha_dropout(input, p, train:training)"},
    {"scaled_dot_product_attention",
     "F.scaled_dot_product_attention(query, key, value, attn_mask=!None, dropout_p=:training!0.0, "
     "is_causal=!False, scale=!None, enable_gqa=!False)"},
    {"gelu", "F.gelu(self, approximate=)"},
    {"silu", "F.silu(self)"},
    {"silu_", "F.silu(self, inplace='True)"},
    {"mish", "F.mish(self)"},
    {"mish_", "F.mish(self, inplace='True)"},
    {"relu", "F.relu(self)"},
    {"relu_", "F.relu(self, inplace='True)"},
    {"relu6", "F.relu6(self)"},
    {"relu6_", "F.relu6(self, inplace='True)"},
    {"elu", "F.elu(self, alpha)"},
    {"elu_", "F.elu(self, alpha, inplace='True)"},
    {"selu", "F.selu(self)"},
    {"selu_", "F.selu(self, inplace='True)"},
    {"celu", "F.celu(self, alpha)"},
    {"celu_", "F.celu(self, alpha, inplace='True)"},
    {"leaky_relu", "F.leaky_relu(self, negative_slope)"},
    {"leaky_relu_", "F.leaky_relu(self, negative_slope, inplace='True)"},
    {"hardtanh", "F.hardtanh(self, min_val, max_val)"},
    {"hardtanh_", "F.hardtanh(self, min_val, max_val, inplace='True)"},
    {"hardswish", "F.hardswish(self)"},
    {"hardswish_", "F.hardswish(self, inplace='True)"},
    {"hardsigmoid", "F.hardsigmoid(self)"},
    {"hardsigmoid_", "F.hardsigmoid(self, inplace='True)"},
    {"rrelu", "F.rrelu(self, lower, upper, training=:training)"},
    {"threshold", "F.threshold(self, threshold, value)"},
    {"log_sigmoid", "F.logsigmoid(self)"},
    {"softplus", "F.softplus(self, beta, threshold)"},
    {"glu", "F.glu(self, dim=!-1)"},
    {"pad", "F.pad(self, pad, mode=!\"constant\", value=!None)"},
    {"max_pool1d",
     "F.max_pool1d(self, kernel_size, stride=!(), padding=, dilation=, ceil_mode=!False)"},
    {"max_pool2d",
     "F.max_pool2d(self, kernel_size, stride=!(), padding=, dilation=, ceil_mode=!False)"},
    {"max_pool3d",
     "F.max_pool3d(self, kernel_size, stride=!(), padding=, dilation=, ceil_mode=!False)"},
    {"avg_pool1d",
     "F.avg_pool1d(self, kernel_size, stride, padding, ceil_mode, count_include_pad)"},
    {"avg_pool2d",
     "F.avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, "
     "divisor_override)"},
    {"avg_pool3d",
     "F.avg_pool3d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, "
     "divisor_override)"},
    {"adaptive_avg_pool1d", "F.adaptive_avg_pool1d(self, output_size)"},
    {"adaptive_avg_pool2d", "F.adaptive_avg_pool2d(self, output_size)"},
    {"adaptive_avg_pool3d", "F.adaptive_avg_pool3d(self, output_size)"},
    {"unfold.default", "self.unfold(dimension, size, step)"},
    {"im2col", "F.unfold(self, kernel_size, dilation=, padding=, stride=)"},
    {"col2im", "F.fold(self, output_size, kernel_size, dilation=, padding=, stride=)"},
    {"upsample_nearest1d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None)"},
    {"upsample_nearest2d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None)"},
    {"upsample_nearest3d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None)"},
    {"upsample_linear1d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None, "
     "mode='\"linear\", align_corners=)"},
    {"upsample_bilinear2d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None, "
     "mode='\"bilinear\", align_corners=)"},
    {"upsample_bicubic2d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None, "
     "mode='\"bicubic\", align_corners=)"},
    {"upsample_trilinear3d.vec",
     "F.interpolate(input, size=output_size!None, scale_factor=scale_factors!None, "
     "mode='\"trilinear\", align_corners=)"},
    {"conv1d", "F.conv1d(input, weight, bias, stride=, padding=, dilation=, groups=)"},
    {"conv2d", "F.conv2d(input, weight, bias, stride=, padding=, dilation=, groups=)"},
    {"conv3d", "F.conv3d(input, weight, bias, stride=, padding=, dilation=, groups=)"},
    {"conv_transpose1d",
     "F.conv_transpose1d(input, weight, bias, stride=, padding=, output_padding=, groups=, "
     "dilation=)"},
    {"conv_transpose2d.input",
     "F.conv_transpose2d(input, weight, bias, stride=, padding=, output_padding=, groups=, "
     "dilation=)"},
    {"conv_transpose3d.input",
     "F.conv_transpose3d(input, weight, bias, stride=, padding=, output_padding=, groups=, "
     "dilation=)"},
    {"one_hot", "F.one_hot(self, num_classes)"},
    {"cosine_similarity", "F.cosine_similarity(x1, x2, dim=!1, eps=!1e-08)"},
    {"pairwise_distance", "F.pairwise_distance(x1, x2, p=, eps=, keepdim=)"},
    {"pixel_shuffle", "F.pixel_shuffle(self, upscale_factor)"},
    {"pixel_unshuffle", "F.pixel_unshuffle(self, downscale_factor)"},
    {"prelu", "F.prelu(self, weight)"},
    {"bilinear", "F.bilinear(input1, input2, weight, bias)"},
    // torch's losses default to "none" where ATen's default to "mean", some of them: always
    // written.
    {"cross_entropy_loss",
     "F.cross_entropy(self, target, weight=!None, ignore_index=, reduction=:reduction, "
     "label_smoothing=)"},
    {"nll_loss", "F.nll_loss(self, target, weight=!None, ignore_index=, reduction=:reduction)"},
    {"nll_loss_nd", "F.nll_loss(self, target, weight=!None, ignore_index=, reduction=:reduction)"},
    {"mse_loss", "F.mse_loss(self, target, reduction=:reduction)"},
    {"l1_loss", "F.l1_loss(self, target, reduction=:reduction)"},
    {"smooth_l1_loss", "F.smooth_l1_loss(self, target, reduction=:reduction, beta=)"},
    {"huber_loss", "F.huber_loss(self, target, reduction=:reduction, delta=)"},
    {"kl_div", "F.kl_div(self, target, reduction=:reduction, log_target=)"},
    {"binary_cross_entropy",
     "F.binary_cross_entropy(self, target, weight=!None, reduction=:reduction)"},
    {"binary_cross_entropy_with_logits",
     "F.binary_cross_entropy_with_logits(self, target, weight=!None, reduction=:reduction, "
     "pos_weight=!None)"},
    {"soft_margin_loss", "F.soft_margin_loss(self, target, reduction=:reduction)"},
    {"multi_margin_loss",
     "F.multi_margin_loss(self, target, p=, margin=, weight=, reduction=:reduction)"},
    {"multilabel_margin_loss", "F.multilabel_margin_loss(self, target, reduction=:reduction)"},
    {"hinge_embedding_loss", "F.hinge_embedding_loss(self, target, margin=, reduction=:reduction)"},
    {"cosine_embedding_loss",
     "F.cosine_embedding_loss(input1, input2, target, margin=, reduction=:reduction)"},
    {"margin_ranking_loss",
     "F.margin_ranking_loss(input1, input2, target, margin=, reduction=:reduction)"},
    {"triplet_margin_loss",
     "F.triplet_margin_loss(anchor, positive, negative, margin=, p=, eps=, swap=, "
     "reduction=:reduction)"},
    {"poisson_nll_loss",
     "F.poisson_nll_loss(input, target, log_input=, full=, eps=, reduction=:reduction)"},
    {"to.dtype", "self.to(dtype, non_blocking=!False, copy=!False, memory_format=!None)"},
    {"to.dtype_layout",
     "self.to(device=!None, dtype=!None, non_blocking=!False, copy=!False, memory_format=!None, "
     "-layout, -pin_memory)"},
    {"to.device", "self.to(device, dtype, non_blocking=!False, copy=!False, memory_format=!None)"},
    {"expand", "self.expand(size, -implicit)"},
    {"type_as", "self.type_as(other)"},
    {"split.Tensor", "self.split(split_size, dim=!0)"},
    {"split.sizes", "self.split(split_size, dim=!0)"},
    {"split_with_sizes", "self.split(split_sizes, dim=!0)"},
    {"lift_fresh_copy", "self.clone()"},
    {"broadcast_tensors", "torch.broadcast_tensors(*tensors)"},
    {"block_diag", "torch.block_diag(*tensors)"},
    {"cartesian_prod", "torch.cartesian_prod(*tensors)"},
    {"cdist", "torch.cdist(x1, x2, p)"},
    {"_weight_norm", "torch._weight_norm(v, g, dim)"},
    {"numpy_T", "self.T"},
    {"mT", "self.mT"},
    {"mH", "self.mH"},
    {"matrix_H", "self.H"},
    {"item", "self.item()"},
    {"_local_scalar_dense", "self.item()"},
    {"sym_numel", "self.numel()"},
    {"sym_stride.int", "self.stride(dim)"},
    {"sym_storage_offset", "self.storage_offset()"},
    {"lstm.input",
     "torch.lstm(input, hx, params, has_biases, num_layers, dropout, train:training, "
     "bidirectional, "
     "batch_first)"},
    {"gru.input",
     "torch.gru(input, hx, params, has_biases, num_layers, dropout, train:training, bidirectional, "
     "batch_first)"},
    {"rnn_tanh.input",
     "torch.rnn_tanh(input, hx, params, has_biases, num_layers, dropout, train:training, "
     "bidirectional, batch_first)"},
    {"rnn_relu.input",
     "torch.rnn_relu(input, hx, params, has_biases, num_layers, dropout, train:training, "
     "bidirectional, batch_first)"},
});

/// Printed infix when they have exactly two arguments.
constexpr auto kInfix = std::to_array<Row>({
    {"add", "+"},         {"sub", "-"},         {"mul", "*"},         {"div", "/"},
    {"matmul", "@"},      {"eq", "=="},         {"ne", "!="},         {"lt", "<"},
    {"le", "<="},         {"gt", ">"},          {"ge", ">="},         {"__and__", "&"},
    {"__or__", "|"},      {"__xor__", "^"},     {"bitwise_and", "&"}, {"bitwise_or", "|"},
    {"bitwise_xor", "^"}, {"pow", "**"},        {"remainder", "%"},   {"floor_divide", "//"},
    {"__lshift__", "<<"}, {"__rshift__", ">>"},
});

/// Arithmetic on sizes: targets of Python's `operator` module.
constexpr auto kOperatorModule = std::to_array<Row>({
    {"add", "+"},
    {"sub", "-"},
    {"mul", "*"},
    {"floordiv", "//"},
    {"truediv", "/"},
    {"mod", "%"},
    {"pow", "**"},
    {"eq", "=="},
    {"ne", "!="},
    {"lt", "<"},
    {"le", "<="},
    {"gt", ">"},
    {"ge", ">="},
    {"and_", "&"},
    {"or_", "|"},
    {"lshift", "<<"},
    {"rshift", ">>"},
});

/// ATen names that are methods of torch.Tensor with ATen's own order of arguments.
constexpr std::string_view kMethods =
    "__iand__ __ilshift__ __ior__ __irshift__ __ixor__ abs abs_ absolute absolute_ acos acos_ "
    "acosh "
    "acosh_ add add_ addbmm addbmm_ addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ addmv addmv_ "
    "addr "
    "addr_ all allclose amax amin aminmax angle any argmax argmin argsort argwhere as_strided "
    "as_strided_ asin asin_ asinh asinh_ atan atan2 atan2_ atan_ atanh atanh_ baddbmm baddbmm_ "
    "bernoulli bernoulli_ bincount bitwise_and_ bitwise_not bitwise_not_ bitwise_or_ bitwise_xor_ "
    "bmm "
    "broadcast_to cauchy_ ceil ceil_ chunk clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ "
    "clip clip_ clone conj conj_physical contiguous copy_ copysign copysign_ cos cos_ cosh cosh_ "
    "count_nonzero cross cummax cummin cumprod cumprod_ cumsum cumsum_ deg2rad deg2rad_ det detach "
    "detach_ diag diag_embed diagflat diagonal diff digamma digamma_ dist div div_ dot eq eq_ erf "
    "erf_ "
    "erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expand_as expm1 expm1_ exponential_ fill_ "
    "fill_diagonal_ fix flatten flip fliplr flipud float_power float_power_ floor floor_ "
    "floor_divide "
    "floor_divide_ fmax fmin fmod fmod_ frac frac_ gather ge ge_ geometric_ ger gt gt_ hardshrink "
    "heaviside hypot hypot_ igamma igammac index_add index_add_ index_copy index_copy_ index_fill "
    "index_fill_ index_reduce index_reduce_ index_select inner inverse isclose isfinite isinf "
    "isnan "
    "isneginf isposinf isreal kron kthvalue le le_ lerp lerp_ lgamma lgamma_ log log10 log10_ "
    "log1p "
    "log1p_ log2 log2_ log_ log_normal_ log_softmax logaddexp logaddexp2 logcumsumexp logdet "
    "logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ logical_xor "
    "logical_xor_ logit logit_ logsumexp lt lt_ masked_fill masked_fill_ masked_scatter "
    "masked_scatter_ masked_select matmul matrix_exp matrix_power max maximum mean median min "
    "minimum "
    "mm mode moveaxis movedim msort mul mul_ multinomial mv mvlgamma nan_to_num nan_to_num_ "
    "nanmean "
    "nanmedian nanquantile nansum narrow ne ne_ neg neg_ new_empty new_full new_ones new_zeros "
    "nextafter nonzero normal_ outer permute polygamma positive pow pow_ prod put put_ quantile "
    "rad2deg rad2deg_ random_ ravel reciprocal reciprocal_ relu relu_ remainder remainder_ renorm "
    "renorm_ repeat repeat_interleave requires_grad_ reshape reshape_as roll rot90 round round_ "
    "rsqrt "
    "rsqrt_ scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
    "select_scatter "
    "sgn sgn_ sigmoid sigmoid_ sign sign_ signbit sin sin_ sinc sinc_ sinh sinh_ slice_scatter "
    "slogdet "
    "softmax sort sqrt sqrt_ square square_ squeeze squeeze_ std sub sub_ sum sum_to_size swapaxes "
    "swapdims t t_ take take_along_dim tan tan_ tanh tanh_ tensor_split tile to topk trace "
    "transpose "
    "transpose_ tril tril_ triu triu_ true_divide true_divide_ trunc trunc_ unbind uniform_ "
    "unsafe_chunk unsafe_split unsqueeze unsqueeze_ var vdot view view_as where xlogy xlogy_ zero_";

/// … and those that are functions of torch.
constexpr std::string_view kFunctions =
    "abs absolute acos acosh adaptive_max_pool1d add addbmm addcdiv addcmul addmm addmv addr "
    "affine_grid_generator all allclose amax amin aminmax angle any arange argmax argmin argsort "
    "argwhere as_strided asin asinh atan atan2 atanh baddbmm bartlett_window bernoulli bincount "
    "bitwise_left_shift bitwise_not bitwise_right_shift blackman_window bmm "
    "broadcast_to bucketize cat ceil celu channel_shuffle chunk clamp "
    "clamp_max clamp_min clip clone column_stack combinations complex concat concatenate conj "
    "conj_physical constant_pad_nd conv_tbc copysign corrcoef cos cosh count_nonzero cov cross "
    "cummax "
    "cummin cumprod cumsum cumulative_trapezoid deg2rad det detach diag diag_embed diagflat "
    "diagonal "
    "diagonal_scatter diff digamma dist div dot dstack einsum empty empty_like empty_strided eq "
    "equal "
    "erf erfc erfinv exp exp2 expm1 eye fix flatten flip fliplr flipud float_power floor "
    "floor_divide "
    "fmax fmin fmod frac frobenius_norm full full_like gather ge ger gt hamming_window hann_window "
    "hardshrink heaviside histc hstack hypot i0 igamma igammac imag index_add index_copy "
    "index_fill "
    "index_reduce index_select inner inverse isclose isfinite isin isinf isnan isneginf isposinf "
    "isreal kaiser_window kron kthvalue le lerp lgamma linspace log log10 log1p log2 log_softmax "
    "logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit "
    "logspace logsumexp lt masked_fill masked_scatter masked_select matmul matrix_exp matrix_power "
    "max "
    "maximum mean median meshgrid min minimum mm mode moveaxis movedim msort mul multinomial mv "
    "mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow native_layer_norm ne neg "
    "nextafter nonzero norm norm_except_dim normal numel ones ones_like outer permute pinverse "
    "polar "
    "polygamma positive pow prod quantile rad2deg rand rand_like randint randint_like randn "
    "randn_like "
    "randperm range ravel real reciprocal remainder renorm repeat_interleave reshape roll rot90 "
    "round "
    "rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce searchsorted select_scatter sgn "
    "sigmoid sign signbit sin sinc sinh slice_scatter slogdet softmax sort sqrt square squeeze "
    "stack "
    "std std_mean sub sum swapaxes swapdims t take take_along_dim tan tanh tensor_split "
    "tile "
    "topk trace transpose trapezoid tril tril_indices triu triu_indices true_divide trunc unbind "
    "unflatten unsqueeze vander var var_mean vdot view_as_complex view_as_real vstack where xlogy "
    "zeros zeros_like";

/// Modules of torch whose functions ATen names with a prefix.
constexpr auto kPrefixes = std::to_array<Row>({
    {"linalg_", "torch.linalg."},
    {"fft_", "torch.fft."},
    {"special_", "torch.special."},
});

constexpr std::string_view kSpread =
    "view reshape expand permute repeat tile flip new_zeros new_ones new_empty broadcast_to "
    "sum_to_size";
constexpr std::string_view kNumber =
    "sum mean amax amin std var var_mean std_mean logsumexp norm nansum nanmean count_nonzero flip "
    "squeeze all any";

using Names = std::unordered_set<std::string_view>;
Names names(std::string_view text) {
  Names result;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    result.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

/// "training=:training" and the like.
SpelledArgument parse_argument(std::string_view text) {
  SpelledArgument argument;
  if (text.starts_with("-")) return {text.substr(1), {}, {}, {}, ArgumentForm::kPlain};
  if (text.starts_with("*")) return {text.substr(1), {}, {}, {}, ArgumentForm::kSpread};
  const size_t equal = text.find('=');
  std::string_view source = text;
  if (equal != std::string_view::npos) {
    argument.python = text.substr(0, equal);
    source = text.substr(equal + 1);
    if (source.starts_with("'")) {
      argument.constant = source.substr(1);
      return argument;
    }
  }
  if (const size_t omit = source.find('!'); omit != std::string_view::npos) {
    argument.omit_if = source.substr(omit + 1);
    source = source.substr(0, omit);
  }
  if (const size_t form = source.find(':'); form != std::string_view::npos) {
    argument.form =
        source.substr(form + 1) == "reduction" ? ArgumentForm::kReduction : ArgumentForm::kTraining;
    source = source.substr(0, form);
  }
  argument.aten = source.empty() ? argument.python : source;
  return argument;
}

struct ParsedRow {
  Spelling spelling;
  Names known;    ///< Every ATen argument that the row mentions …
  Names dropped;  ///< … and those that it drops.
};

ParsedRow parse_row(std::string_view python) {
  ParsedRow row;
  row.spelling.listed = true;
  const size_t open = python.find('(');
  std::string_view callee = python.substr(0, open);
  row.spelling.style = SpellingStyle::kCall;
  if (callee.starts_with("self.")) {
    row.spelling.style = SpellingStyle::kMethod;
    callee.remove_prefix(5);
  }
  row.spelling.name = callee;
  if (open == std::string_view::npos) {  // a property
    row.spelling.name += "!";
    row.known.insert("self");
    return row;
  }
  std::string_view rest = python.substr(open + 1, python.size() - open - 2);
  if (row.spelling.style == SpellingStyle::kMethod) row.known.insert("self");
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(", "), rest.size());
    const std::string_view text = rest.substr(0, end);
    const SpelledArgument argument = parse_argument(text);
    if (!argument.aten.empty()) row.known.insert(argument.aten);
    if (text.starts_with("-")) {
      row.dropped.insert(argument.aten);
    } else {
      row.spelling.arguments.push_back(argument);
    }
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return row;
}

struct Table {
  std::unordered_map<std::string_view, ParsedRow> calls;
  std::unordered_map<std::string_view, std::string_view> infix, operator_module;
  Names methods = names(kMethods);
  Names functions = names(kFunctions);
  Names spread = names(kSpread);
  Names number = names(kNumber);
  Table() {
    for (const Row& row : kCalls) {
      ParsedRow parsed = parse_row(row.python);
      const std::string_view base = row.base.substr(0, row.base.find('.'));
      parsed.spelling.spread = spread.contains(base);
      calls.emplace(row.base, std::move(parsed));
    }
    for (const Row& row : kInfix) infix.emplace(row.base, row.python);
    for (const Row& row : kOperatorModule) operator_module.emplace(row.base, row.python);
  }
};

const Table& table() {
  static const Table table;
  return table;
}

Spelling simple(SpellingStyle style, std::string name) {
  Spelling spelling;
  spelling.style = style;
  spelling.name = std::move(name);
  return spelling;
}

/// `.float()` for `to(torch.float32)`: what the user wrote, where torch_fn says so.
constexpr std::string_view kCasts = " float double half bfloat16 long int bool short ";

}  // namespace

std::string_view base_name(std::string_view target) {
  if (target.starts_with("aten.")) target.remove_prefix(5);
  return target.substr(0, target.find('.'));
}

bool is_in_place(std::string_view target) {
  if (!target.starts_with("aten.")) return false;
  const std::string_view base = base_name(target);
  if (base.starts_with("__i") && base.ends_with("__")) return true;
  return base.ends_with("_") && !base.ends_with("__") && !base.starts_with("_foreach") &&
         !base.starts_with("_fused");
}

Spelling spelling_of(std::string_view target, std::string_view torch_fn,
                     const std::vector<std::string_view>& arguments) {
  const Table& rows = table();
  if (target.starts_with("_operator.")) {
    const std::string_view name = target.substr(10);
    if (const auto found = rows.operator_module.find(name); found != rows.operator_module.end()) {
      return simple(SpellingStyle::kInfix, std::string(found->second));
    }
    if (name == "neg") return simple(SpellingStyle::kPrefix, "-");
    return simple(SpellingStyle::kCall, "operator." + std::string(name));
  }
  if (!target.starts_with("aten.")) {
    if (target.starts_with("torch.sym_") || target.starts_with("torch._sym_") ||
        target.starts_with("math.")) {
      return simple(SpellingStyle::kCall, std::string(target));
    }
    return simple(SpellingStyle::kRaw, "torch.ops." + std::string(target));
  }
  const std::string_view base = base_name(target);
  const std::string_view full = target.substr(5);
  const size_t dot = torch_fn.rfind('.');
  const std::string_view kind = dot == std::string_view::npos ? "" : torch_fn.substr(0, dot);
  const std::string_view wrote = dot == std::string_view::npos ? "" : torch_fn.substr(dot + 1);

  static const Names indexed = {"slice", "select", "index", "index_put_"};
  if (indexed.contains(base) && full != "select.Dimname") {
    return simple(SpellingStyle::kIndex, std::string(base));
  }
  if (base == "alias") return simple(SpellingStyle::kAlias, "...");
  if (full == "sym_size.int") return simple(SpellingStyle::kShape, "shape");
  if (base == "rsub" && arguments.size() == 2) return simple(SpellingStyle::kReflected, "-");
  if (base == "neg") return simple(SpellingStyle::kPrefix, "-");
  if (base == "bitwise_not") return simple(SpellingStyle::kPrefix, "~");
  if (const auto found = rows.infix.find(base); found != rows.infix.end()) {
    const bool called = kind == "builtin_function_or_method" && wrote == base && base == "matmul";
    if (arguments.size() == 2 && !called) {
      return simple(SpellingStyle::kInfix, std::string(found->second));
    }
  }
  if (full == "to.dtype" && arguments.size() == 2 && kind == "method_descriptor" &&
      kCasts.find(" " + std::string(wrote) + " ") != std::string_view::npos) {
    Spelling cast = simple(SpellingStyle::kMethod, std::string(wrote));
    cast.listed = true;
    return cast;
  }
  if (kind == "method_descriptor" && wrote == base && (base == "relu" || base == "relu_")) {
    return simple(SpellingStyle::kMethod, std::string(base));
  }
  for (const std::string_view key : {full, base}) {
    const auto found = rows.calls.find(key);
    if (found == rows.calls.end()) continue;
    const ParsedRow& row = found->second;
    if (std::all_of(arguments.begin(), arguments.end(),
                    [&](std::string_view name) { return row.known.contains(name); })) {
      return row.spelling;
    }
  }
  const bool method = rows.methods.contains(base);
  const bool function = rows.functions.contains(base);
  if (method && (!function || kind == "method_descriptor" || kind.empty() ||
                 (kind != "builtin_function_or_method" && kind != "function"))) {
    Spelling spelling = simple(SpellingStyle::kMethod, std::string(base));
    spelling.spread = rows.spread.contains(base);
    spelling.number = rows.number.contains(base);
    return spelling;
  }
  if (function) {
    // F.softmax and torch.softmax take the same arguments here.
    const bool functional = kind == "function" && (base == "softmax" || base == "log_softmax");
    Spelling spelling =
        simple(SpellingStyle::kCall, (functional ? "F." : "torch.") + std::string(base));
    spelling.number = rows.number.contains(base);
    return spelling;
  }
  for (const Row& row : kPrefixes) {
    if (base.starts_with(row.base) && !base.ends_with("_")) {
      return simple(SpellingStyle::kCall,
                    std::string(row.python) + std::string(base.substr(row.base.size())));
    }
  }
  return simple(SpellingStyle::kRaw, "torch.ops." + std::string(target));
}

std::vector<std::string> spelled_targets() {
  std::vector<std::string> result;
  for (const Row& row : kCalls) result.emplace_back(row.base);
  for (const Row& row : kInfix) result.emplace_back(row.base);
  for (const Names& set : {table().methods, table().functions}) {
    result.insert(result.end(), set.begin(), set.end());
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace nnscaler
