#include "core/ops/table.h"

// An element of the output depends on the elements of the inputs at its place, with broadcasting.

namespace nnscaler {

namespace {

/// Dropout that drops nothing hands its input on.
void settle_dropout(Binder& b) {
  const double p = b.number("p", 0.5);
  const bool draws = p > 0 && b.flag("train", b.flag("training", true));
  b.rule.random = draws;
  if (draws) return;
  b.rule.view = b.rule.fused = !b.op.target.starts_with("aten.native_dropout");
  b.linear({0});
  b.flops(0, 0);
}

/// Draws slopes in training only.
void settle_rrelu(Binder& b) { b.rule.random = b.flag("training", false); }

/// Whole channels are dropped.
void bind_feature_dropout(Binder& b) {
  bind_pointwise(b);
  for (size_t d = 2; d < b.rule.names.size(); ++d)
    b.freeze(static_cast<int>(d), "whole channels are dropped");
}

/// `prelu(self: n c ..., weight: c or 1)`
void bind_prelu(Binder& b) {
  const std::vector<int> dims = b.fresh_dims(b.out_shape(0));
  b.set_in(0, dims);
  b.set_outs(dims);
  const int channels = dims.size() >= 2 ? dims[1] : Binder::kFixed;
  const bool own = channels >= 0 && b.in_rank(0) >= 2 && b.in_rank(1) == 1 &&
                   b.in_shape(1)[0] == b.in_shape(0)[1];
  if (own) b.set_in(1, std::vector<int>{channels});
}

/// Filling with another value than 0 is not linear.
void settle_masked_fill(Binder& b) {
  const bool zero = b.input("value") < 0 && b.number("value", 1) == 0;
  if (zero) b.linear({0});
}

void settle_where(Binder& b) {
  // A scalar 0 in the other branch keeps it linear.
  const int x = b.input("self"), y = b.input("other");
  if (x >= 0 && y < 0 && b.number("other", 1) == 0) b.linear({x});
  if (y >= 0 && x < 0 && b.number("self", 1) == 0) b.linear({y});
}

/// Without a rounding mode division is linear in its numerator.
void settle_division(Binder& b) {
  if (!b.is_present("rounding_mode")) b.linear({b.input("self")});
}

void settle_lerp(Binder& b) { b.linear({b.input("self"), b.input("end")}); }

}  // namespace

const Entries& pointwise_entries() {
  static const Entries entries = {
      // Unary, backward keeps the input.
      {.targets =
           "{abs,sin,cos,log,log2,log10,log1p,erf,erfc,square,asin,acos,atan,sinh,cosh,asinh,"
           "acosh,atanh,absolute,arcsin,arccos,arctan,arcsinh,arccosh,arctanh,lgamma,digamma}"
           "{,_} i0",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .saved = "self",
       .flops = 4},
      {.targets = "special_{erf,log1p,i0,i1,erfcx,ndtri,log_ndtr,entr,logit}",
       .signatures = "torch.special.*",
       .rule = kPointwise,
       .saved = "self",
       .flops = 4},
      {.targets = "{sinc,nan_to_num,deg2rad,rad2deg,logit}{,_} angle",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .saved = "self",
       .flops = 2},
      // Unary, backward keeps the result.
      {.targets = "{sqrt,rsqrt,exp,exp2,expm1,tan,reciprocal}{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .saved = "result",
       .flops = 4},
      {.targets = "special_{exp2,expm1,expit}",
       .signatures = "torch.special.*",
       .rule = kPointwise,
       .saved = "result",
       .flops = 4},
      {.targets = "{tanh,sigmoid}{,_}",
       .signatures = "torch.* T.* T.*_ F.*",
       .rule = kPointwise,
       .saved = "result",
       .flops = 8},
      // Unary, no gradient or a trivial one.
      {.targets = "{ceil,floor,round,trunc,fix,frac,sign,sgn,bitwise_not,logical_not}{,_} "
                  "{isnan,isinf,isfinite,isposinf,isneginf,signbit,isreal} round{,_}.decimals",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise},
      {.targets = "{neg,negative}{,_}",
       .signatures = "torch.* T.* T.*_ op.neg",
       .rule = kPointwise,
       .linear = "self"},
      {.targets = "positive conj_physical conj resolve_conj resolve_neg",
       .signatures = "torch.* T.*",
       .rule = kPointwise,
       .linear = "self"},
      // Activations.
      {.targets = "relu{,_}",
       .signatures = "F.relu F.relu_ torch.relu torch.relu_ T.relu T.relu_",
       .rule = kPointwise,
       .saved = "result"},
      {.targets = "{elu,selu,celu,leaky_relu}{,_}",
       .signatures = "F.* F.*_",
       .rule = kPointwise,
       .saved = "result",
       .flops = 4},
      {.targets = "{gelu,silu,mish}{,_}",
       .signatures = "F.*",
       .rule = kPointwise,
       .saved = "self",
       .flops = 8},
      {.targets = "{hardtanh,threshold}{,_}",
       .signatures = "F.* F.*_",
       .rule = kPointwise,
       .saved = "self",
       .flops = 2},
      {.targets = "{hardswish,hardsigmoid,relu6}{,_} softplus softshrink hardshrink",
       .signatures = "F.*",
       .rule = kPointwise,
       .saved = "self",
       .flops = 4},
      {.targets = "log_sigmoid",
       .signatures = "F.logsigmoid torch._C._nn.log_sigmoid",
       .rule = kPointwise,
       .saved = "self",
       .flops = 4},
      {.targets = "prelu",
       .signatures = "F.* torch.* T.*",
       .rule = {"n c *, c -> n c *", bind_prelu},
       .saved = "self weight"},
      {.targets = "rrelu{,_}",
       .signatures = "F.rrelu F.rrelu_ torch.rrelu torch.rrelu_",
       .rule = kPointwise,
       .saved = "self result",
       .after = settle_rrelu},
      // Dropout.
      {.targets = "{dropout,alpha_dropout}{,_}",
       .signatures = "F.* torch.*",
       .rule = kPointwise,
       .arguments = "input",
       .saved = "result",
       .flops = 2,
       .after = settle_dropout},
      {.targets = "native_dropout",
       .signatures = "torch.native_dropout",
       .rule = kPointwise,
       .arguments = "input",
       .saved = "result1",
       .flops = 2,
       .after = settle_dropout},
      {.targets = "{feature_dropout,feature_alpha_dropout}{,_}",
       .signatures = "torch.* | F.dropout1d | F.dropout2d | F.dropout3d",
       .rule = {"n c *^ -> n c *^", bind_feature_dropout},
       .arguments = "input",
       .saved = "result",
       .flops = 2,
       .after = settle_dropout},
      {.targets = "bernoulli bernoulli.p bernoulli_.{float,Tensor}",
       .signatures = "torch.bernoulli T.bernoulli T.bernoulli_",
       .rule = kPointwise,
       .random = true},
      {.targets = "poisson normal.{Tensor_float,float_Tensor,Tensor_Tensor}",
       .signatures = "torch.*",
       .rule = kPointwise,
       .random = true},
      {.targets = "{normal,uniform,exponential,random,cauchy,geometric,log_normal}_",
       .signatures = "T.*_",
       .rule = kPointwise,
       .random = true},
      // Binary.
      {.targets = "add{,_}.{Tensor,Scalar}",
       .signatures = "torch.add T.add{,_} op.{add,iadd}",
       .rule = kPointwise,
       .arguments = "self other",
       .linear = "self+other"},
      {.targets = "{sub,subtract}{,_}.{Tensor,Scalar}",
       .signatures = "torch.{sub,subtract} T.{sub,subtract}{,_} op.{sub,isub}",
       .rule = kPointwise,
       .arguments = "self other",
       .linear = "self+other"},
      {.targets = "rsub.{Tensor,Scalar}",
       .signatures = "torch.sub op.sub torch.rsub T.sub",
       .rule = kPointwise,
       .arguments = "other self",
       .linear = "self+other"},
      {.targets = "{mul,multiply}{,_}.{Tensor,Scalar}",
       .signatures = "torch.{mul,multiply} T.{mul,multiply}{,_} op.{mul,imul}",
       .rule = kPointwise,
       .arguments = "self other",
       .linear = "self,other",
       .saved = "self?other other?self"},
      {.targets = "{div,divide}{,_}.{Tensor,Scalar,Tensor_mode,Scalar_mode} "
                  "true_divide{,_}.{Tensor,Scalar}",
       .signatures = "torch.{div,divide,true_divide} T.{div,divide,true_divide}{,_} "
                     "op.{truediv,itruediv}",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "other self?other",
       .after = settle_division},
      {.targets = "floor_divide floor_divide.Scalar floor_divide_.{Scalar,Tensor}",
       .signatures = "torch.* T.* T.*_ op.{floordiv,ifloordiv}",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "pow.{Tensor_Scalar,Tensor_Tensor,Scalar} pow_.{Scalar,Tensor}",
       .signatures = "torch.pow T.pow T.pow_ op.{pow,ipow}",
       .rule = kPointwise,
       .arguments = "self exponent",
       .saved = "self exponent result?exponent",
       .flops = 4},
      {.targets = "float_power.{Tensor_Scalar,Tensor_Tensor,Scalar}",
       .signatures = "torch.* T.*",
       .rule = kPointwise,
       .arguments = "self exponent",
       .saved = "self exponent",
       .flops = 4},
      {.targets = "remainder{,_}.{Tensor,Scalar} remainder.Scalar_Tensor",
       .signatures = "torch.* T.* T.*_ op.{mod,imod}",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "self?other other?other"},
      {.targets = "fmod{,_}.{Tensor,Scalar}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "self?other other?other"},
      {.targets = "max.other",
       .signatures = "torch.max T.max torch.maximum T.maximum",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "self other"},
      {.targets = "min.other",
       .signatures = "torch.min T.min torch.minimum T.minimum",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "self other"},
      {.targets = "{maximum,minimum,fmax,fmin,atan2,arctan2,hypot,logaddexp,logaddexp2,heaviside,"
                  "nextafter,ldexp.Tensor} copysign.{Tensor,Scalar} "
                  "xlogy.{Tensor,Scalar_Other,Scalar_Self}",
       .signatures = "torch.* T.*",
       .rule = kPointwise,
       .arguments = "self other",
       .saved = "self other",
       .flops = 4},
      {.targets = "polar complex",
       .signatures = "torch.*",
       .rule = kPointwise,
       .saved = "real imag result",
       .flops = 4},
      {.targets = "{eq,ne,lt,le,gt,ge}{,_}.{Tensor,Scalar}",
       .signatures = "torch.* T.* T.*_ op.*",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "{not_equal,less,less_equal,greater,greater_equal}.{Tensor,Scalar} isclose",
       .signatures = "torch.* T.*",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "logical_{and,or,xor}{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "bitwise_{and,or,xor}{,_}.{Tensor,Scalar} "
                  "bitwise_{left,right}_shift{,_}.{Tensor,Tensor_Scalar}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "__{and,iand}__.{Tensor,Scalar}",
       .signatures = "op.{and_,iand} torch.bitwise_and T.bitwise_and",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "__{or,ior}__.{Tensor,Scalar}",
       .signatures = "op.{or_,ior} torch.bitwise_or T.bitwise_or",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "__{xor,ixor}__.{Tensor,Scalar}",
       .signatures = "op.{xor,ixor} torch.bitwise_xor T.bitwise_xor",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "__{lshift,ilshift}__.{Tensor,Scalar}",
       .signatures = "op.{lshift,ilshift} torch.bitwise_left_shift",
       .rule = kPointwise,
       .arguments = "self other"},
      {.targets = "__{rshift,irshift}__.{Tensor,Scalar}",
       .signatures = "op.{rshift,irshift} torch.bitwise_right_shift",
       .rule = kPointwise,
       .arguments = "self other"},
      // Ternary.
      {.targets = "{clamp,clip}{,_} {clamp,clip}{,_}.Tensor clamp_{min,max}{,_} "
                  "clamp_{min,max}{,_}.Tensor",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .saved = "self"},
      {.targets = "where.{self,ScalarOther,ScalarSelf,Scalar}",
       .signatures = "torch.where T.where",
       .rule = kPointwise,
       .arguments = "condition self other",
       .linear = "self+other",
       .saved = "condition",
       .after = settle_where},
      {.targets = "masked_fill{,_}.{Scalar,Tensor}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .arguments = "self mask value",
       .saved = "mask",
       .after = settle_masked_fill},
      {.targets = "lerp{,_}.{Scalar,Tensor}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .arguments = "self end weight",
       .saved = "weight self?weight end?weight",
       .flops = 3,
       .after = settle_lerp},
      {.targets = "addcmul{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .linear = "self+tensor1,self+tensor2",
       .saved = "tensor1?tensor2 tensor2?tensor1",
       .flops = 3},
      {.targets = "addcdiv{,_}",
       .signatures = "torch.* T.* T.*_",
       .rule = kPointwise,
       .linear = "self+tensor1",
       .saved = "tensor1?tensor2 tensor2",
       .flops = 3},
      // Copies and fills.
      {.targets = "clone lift_fresh_copy",
       .signatures = "torch.clone T.clone",
       .rule = kPointwise,
       .linear = "self",
       .flops = 0},
      {.targets = "copy_",
       .signatures = "T.copy_",
       .rule = kPointwise,
       .arguments = "self src",
       .flops = 0},
      {.targets = "copy",
       .signatures = "T.copy_",
       .rule = kPointwise,
       .arguments = "self src",
       .linear = "src",
       .flops = 0},
      {.targets = "fill{,_}.{Scalar,Tensor} zero{,_}",
       .signatures = "torch.fill_ T.fill_ T.zero_",
       .rule = kPointwise,
       .arguments = "self",
       .flops = 0},
  };
  return entries;
}

}  // namespace nnscaler
