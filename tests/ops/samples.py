"""Calls of every operator in the table, for the property test: a line an operator, or a family.

Shapes are small and divide by 2 or 3, so that every name can be split.
"""

import itertools
import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensor:
    """A tensor to be drawn."""

    shape: tuple[int, ...]
    kind: str = "normal"  # normal, positive (0.1 to 0.9), large (1.1 to 1.9), int, bool, complex
    high: int = 0
    grad: bool = True

    def make(self, generator: torch.Generator) -> torch.Tensor:
        if self.kind == "int":
            return torch.randint(0, self.high, self.shape, generator=generator)
        if self.kind == "bool":
            return torch.rand(self.shape, generator=generator) > 0.5
        dtype = torch.complex128 if self.kind == "complex" else torch.float64
        draw = torch.rand if self.kind in ("positive", "large") else torch.randn
        value = draw(self.shape, generator=generator, dtype=dtype)
        if self.kind in ("positive", "large"):
            value = value * 0.8 + (0.1 if self.kind == "positive" else 1.1)
        return value.requires_grad_(self.grad)


@dataclass(frozen=True)
class Sample:
    target: str  # "aten.add.Tensor"
    args: tuple
    kwargs: dict

    @property
    def operator(self):
        _, name, overload = self.target.split(".")
        return getattr(getattr(torch.ops.aten, name), overload)

    @property
    def in_place(self) -> bool:
        name = self.target.split(".")[1]
        return name.endswith("_") and (not name.endswith("__") or name.startswith("__i"))


SAMPLES: list[Sample] = []


def T(*shape):
    return Tensor(shape)


def P(*shape):
    return Tensor(shape, "positive")


def N(*shape):
    return Tensor(shape, grad=False)


def J(high, *shape):  # integers below `high`
    return Tensor(shape, "int", high)


def B(*shape):
    return Tensor(shape, "bool")


def C(*shape):
    return Tensor(shape, "complex")


def expand(text: str) -> list[str]:
    """ "a{b,c}{,d}" -> ab, abd, ac, acd"""
    parts = [
        p[1:-1].split(",") if p.startswith("{") else [p] for p in re.split(r"(\{[^}]*\})", text)
    ]
    return ["".join(choice) for choice in itertools.product(*parts)]


def S(targets: str, *args, **kwargs):
    for target in itertools.chain.from_iterable(expand(word) for word in targets.split()):
        full = f"aten.{target}" if "." in target else f"aten.{target}.default"
        SAMPLES.append(Sample(full, args, kwargs))


# pointwise, one operand
S(
    "{abs,sin,cos,erf,erfc,square,atan,sinh,cosh,asinh,absolute,arctan,arcsinh,sinc,nan_to_num,deg2rad,rad2deg,"
    "exp,exp2,expm1,tan,tanh,sigmoid,ceil,floor,round,trunc,fix,frac,sign,sgn,neg,negative,relu,relu6,elu,selu,celu,"
    "leaky_relu,gelu,silu,mish,hardtanh,hardswish,hardsigmoid}",
    T(4, 6),
)
S(
    "{abs,sin,cos,erf,erfc,square,atan,sinh,cosh,absolute,arctan,sinc,nan_to_num,deg2rad,rad2deg,"
    "exp,exp2,expm1,tan,tanh,sigmoid,ceil,floor,round,trunc,fix,frac,sign,sgn,neg,negative,relu,relu6,elu,selu,celu,"
    "leaky_relu,gelu,silu,mish,hardtanh,hardswish,hardsigmoid}_",
    T(4, 6),
)
S(
    "{softplus,softshrink,hardshrink,log_sigmoid,angle,i0,positive,conj_physical,conj,resolve_conj,resolve_neg}",
    T(4, 6),
)
S("special_{erf,i0,i1,erfcx,log_ndtr,exp2,expm1,expit}", T(4, 6))
S("special_{log1p,ndtri,entr,logit}", P(4, 6))
S(
    "{log,log2,log10,log1p,asin,acos,arcsin,arccos,lgamma,digamma,logit,sqrt,rsqrt,reciprocal}{,_} atanh arctanh",
    P(4, 6),
)
S("acosh arccosh", Tensor((4, 6), "large"))
S("{asinh,arcsinh,atanh,arctanh}_", Tensor((4, 6), "positive", grad=False))
S("{acosh,arccosh}_", Tensor((4, 6), "large", grad=False))
S("bitwise_not{,_}", J(9, 4, 6))
S("logical_not{,_}", B(4, 6))
S("{isnan,isinf,isfinite,isposinf,isneginf,signbit,isreal}", T(4, 6))
S("round{,_}.decimals", T(4, 6), decimals=2)
S("threshold{,_}", T(4, 6), 0.1, 0.3)
S("prelu", T(2, 4, 6), T(4))
S("prelu", T(2, 4, 6), T(1))
S("rrelu{,_}", T(4, 6), 0.1, 0.3, False)
S("{dropout,alpha_dropout,feature_dropout,feature_alpha_dropout}{,_}", T(4, 6, 2), 0.5, False)
S("{dropout,alpha_dropout,feature_dropout,feature_alpha_dropout}{,_}", T(4, 6, 2), 0.5, True)
S("native_dropout", T(4, 6), 0.5, True)
S("bernoulli", P(4, 6))
S("bernoulli.p bernoulli_.float", N(4, 6), 0.5)
S("bernoulli_.Tensor", N(4, 6), Tensor((4, 6), "positive", grad=False))
S("poisson", P(4, 6))
S("normal.Tensor_float", T(4, 6), 1.0)
S("normal.float_Tensor", 0.0, P(4, 6))
S("normal.Tensor_Tensor", T(4, 6), P(4, 6))
S("{normal,uniform,exponential,cauchy,log_normal,random}_", N(4, 6))
S("geometric_", N(4, 6), 0.5)

# pointwise, several operands
S("{add,sub,subtract,mul,multiply,div,divide,true_divide}.Tensor", T(4, 6), P(6))
S("{add,sub,subtract,mul,multiply,div,divide,true_divide}_.Tensor", T(4, 6), P(6))
S("{add,sub,subtract,mul,multiply,div,divide,true_divide}{,_}.Scalar", T(4, 6), 2.0)
S("add.Tensor", T(2, 1, 6), T(4, 1), alpha=3)
S("add.Tensor", T(4, 6), 1.5)
S("mul.Tensor", T(4, 6), 1.5)
S("{div,divide}{,_}.Tensor_mode", T(4, 6), P(4, 6), rounding_mode="floor")
S("{div,divide}{,_}.Scalar_mode", T(4, 6), 2.0, rounding_mode="trunc")
S("rsub.Tensor", T(4, 6), T(4, 1))
S("rsub.Scalar", T(4, 6), 1.0)
S("floor_divide floor_divide_.Tensor", N(4, 6), J(9, 4, 6))
S("floor_divide{,_}.Scalar", N(4, 6), 2.0)
S("pow.Tensor_Tensor pow_.Tensor float_power.Tensor_Tensor", P(4, 6), T(4, 1))
S("pow.Tensor_Tensor", P(4, 6), P(4, 6))
S("pow.Tensor_Scalar pow_.Scalar float_power.Tensor_Scalar", P(4, 6), 3.0)
S("pow.Scalar float_power.Scalar", 2.0, T(4, 6))
S("{remainder,fmod}{,_}.Tensor", T(4, 6), P(6))
S("{remainder,fmod}{,_}.Scalar", T(4, 6), 0.7)
S("remainder.Scalar_Tensor", 3.0, N(4, 6))
S(
    "{max,min}.other {maximum,minimum,fmax,fmin,atan2,arctan2,hypot,logaddexp,logaddexp2}",
    T(4, 6),
    T(6),
)
S("heaviside nextafter", N(4, 6), N(4, 6))
S("ldexp.Tensor copysign.Tensor xlogy.Tensor", T(4, 6), P(4, 6))
S("copysign.Scalar", T(4, 6), -1.0)
S("xlogy.Scalar_Other", P(4, 6), 0.5)
S("xlogy.Scalar_Self", 0.5, P(4, 6))
S("polar complex", P(4, 6), T(4, 6))
S(
    "{eq,ne,lt,le,gt,ge}.Tensor {not_equal,less,less_equal,greater,greater_equal}.Tensor isclose",
    T(4, 6),
    T(4, 6),
)
S(
    "{eq,ne,lt,le,gt,ge}.Scalar {not_equal,less,less_equal,greater,greater_equal}.Scalar",
    T(4, 6),
    0.5,
)
S("{eq,ne,lt,le,gt,ge}_.Tensor", T(4, 6), N(4, 6))
S("{eq,ne,lt,le,gt,ge}_.Scalar", T(4, 6), 0.5)
S("logical_{and,or,xor}{,_}", B(4, 6), B(6))
S("bitwise_{and,or,xor}{,_}.Tensor __{and,or,xor,iand,ior,ixor}__.Tensor", J(8, 4, 6), J(8, 6))
S("bitwise_{and,or,xor}{,_}.Scalar __{and,or,xor,iand,ior,ixor}__.Scalar", J(8, 4, 6), 5)
S(
    "bitwise_{left,right}_shift{,_}.Tensor __{lshift,rshift,ilshift,irshift}__.Tensor",
    J(8, 4, 6),
    J(3, 6),
)
S(
    "bitwise_{left,right}_shift{,_}.Tensor_Scalar __{lshift,rshift,ilshift,irshift}__.Scalar",
    J(8, 4, 6),
    2,
)
S("{clamp,clip}{,_}", T(4, 6), -0.5, 0.5)
S("{clamp,clip}{,_}.Tensor", T(4, 6), N(6), N(4, 1))
S("clamp_{min,max}{,_}", T(4, 6), 0.1)
S("clamp_{min,max}{,_}.Tensor", T(4, 6), N(6))
S("where.self", B(4, 6), T(6), T(4, 1))
S("where.ScalarOther", B(4, 6), T(4, 6), 0.0)
S("where.ScalarSelf", B(4, 6), 0.0, T(4, 6))
S("where.Scalar", B(4, 6), 1.0, 2.0)
S("masked_fill{,_}.Scalar", T(4, 6), B(4, 1), -1.0)
S("masked_fill{,_}.Scalar", T(4, 6), B(6), 0.0)
S("masked_fill{,_}.Tensor", T(4, 6), B(4, 6), N())
S("lerp{,_}.Scalar", T(4, 6), T(4, 6), 0.3)
S("lerp{,_}.Tensor", T(4, 6), T(4, 6), T(4, 6))
S("addcmul{,_} addcdiv{,_}", T(4, 6), T(6), P(4, 1))
S("clone lift_fresh_copy", T(4, 6))
S("copy", N(4, 6), N(6))
S("copy_", T(4, 6), T(6))
S("fill{,_}.Scalar", T(4, 6), 2.0)
S("fill{,_}.Tensor", T(4, 6), N())
S("zero{,_}", T(4, 6))

# casts
S("to.dtype", T(4, 6), torch.float32)
S("to.dtype", T(4, 6), torch.float64)
S("to.dtype_layout", T(4, 6), dtype=torch.float32, layout=torch.strided, device="cpu")
S("to.device", T(4, 6), "cpu", torch.float32)
S("to.other type_as", T(4, 6), N(3))
S("_to_copy", T(4, 6), dtype=torch.float32)
S("contiguous detach alias", T(4, 6))
S("detach_", N(4, 6))

# products
S("linear", T(2, 4, 6), T(4, 6))
S("linear", T(2, 4, 6), T(4, 6), T(4))
S("linear", T(6), T(4, 6), T(4))
S("matmul", T(4, 6), T(6, 2))
S("matmul", T(2, 3, 4, 6), T(2, 3, 6, 2))
S("matmul", T(2, 1, 4, 6), T(3, 6, 2))
S("matmul", T(2, 4, 6), T(6, 2))
S("matmul", T(6), T(6))
S("matmul", T(6), T(2, 6, 4))
S("matmul", T(2, 4, 6), T(6))
S("mm", T(4, 6), T(6, 2))
S("bmm", T(2, 4, 6), T(2, 6, 4))
S("mv", T(4, 6), T(6))
S("dot vdot", T(6), T(6))
S("inner", T(2, 4, 6), T(3, 6))
S("linalg_vecdot", T(4, 6), T(4, 6))
S("outer ger", T(4), T(6))
S("addmm addmm_", T(4, 2), T(4, 6), T(6, 2), beta=0.5, alpha=2.0)
S("addmm", T(2), T(4, 6), T(6, 2))
S("baddbmm baddbmm_", T(2, 4, 2), T(2, 4, 6), T(2, 6, 2))
S("baddbmm", T(4, 1), T(2, 4, 6), T(2, 6, 2))
S("addmv", T(4), T(4, 6), T(6))
S("bilinear", T(2, 4), T(2, 6), T(3, 4, 6), T(3))
S("einsum", "bshd,bthd->bhst", [T(2, 4, 2, 6), T(2, 6, 2, 6)])
S("einsum", "td,ndf->tnf", [T(4, 6), T(2, 6, 3)])
S("einsum", "tnf,nfd,tn->td", [T(4, 2, 3), T(2, 3, 6), T(4, 2)])
S("einsum", "...i,ij", [T(2, 4, 6), T(6, 3)])
S("einsum", "ii->i", [T(4, 4)])
S("einsum", "a b , c -> c", [T(4, 6), T(2)])
S("tensordot", T(4, 6, 2), T(2, 6, 3), [1, 2], [1, 0])

S("cdist", T(2, 4, 6), T(2, 3, 6))
S("linalg_cross", T(4, 3), T(4, 3))
S("cross", T(4, 3, 2), T(4, 3, 2))

# reductions
S("sum mean amax amin max min prod", T(4, 6))
S("sum.dim_IntList", T(4, 6, 2), [1])
S("sum.dim_IntList", T(4, 6, 2), [0, -1], True)
S("sum", B(4, 6))
S("nansum", T(4, 6), [1])
S("count_nonzero", J(2, 4, 6))
S("count_nonzero.dim_IntList", J(2, 4, 6), [0])
S("mean.dim", T(4, 6, 2), [1, 2])
S("mean.dim", T(4, 6, 2), [-1], True)
S("amax amin", N(4, 6), [1])
S("max min median nanmedian", N(4, 6))
S("median nanmedian", T(4, 6))
S("{max,min,median,nanmedian}.dim mode", T(4, 6), 1)
S("kthvalue", T(4, 6), 2)
S("argmax argmin", T(4, 6))
S("argmax argmin", T(4, 6), 1, True)
S("any all", B(4, 6))
S("{any,all}.dim", B(4, 6), 1)
S("{any,all}.dims", B(4, 6), [0])
S("aminmax", T(4, 6), dim=1)
S("logsumexp nanmean", T(4, 6), [1])
S("var std var_mean std_mean", T(4, 6), True)
S("{var,std,var_mean,std_mean}.dim", T(4, 6), [1], True)
S("{var,std,var_mean,std_mean}.correction", T(4, 6), [1], correction=1)
S("prod.dim_int", T(4, 6), 1)
S("linalg_vector_norm", T(4, 6), 2, [1])
S("linalg_vector_norm", T(4, 6), 1, [1])
S("norm.Scalar", T(4, 6), 2)
S("norm.ScalarOpt_dim", T(4, 6), 1, [0])
S("norm.ScalarOpt_dtype", T(4, 6), 2, dtype=torch.float64)
S("norm.ScalarOpt_dim_dtype", T(4, 6), 2, [0], True, dtype=torch.float64)
S("{cumsum,cumprod}{,_} logcumsumexp cummax cummin", T(4, 6), 1)
S("sort argsort", T(4, 6))
S("{sort,argsort}.stable", T(4, 6), stable=True)
S("topk", T(4, 6), 3)
S("topk", T(4, 6), 2, 0)
S("diff", T(4, 6))
S("cosine_similarity", T(4, 6, 2), T(4, 6, 2), 1)
S("cosine_similarity", T(4, 6), T(1, 6))
S("glu", T(4, 6))
S("diff", T(4, 6), 1, 1, N(4, 1))

# normalization
S("softmax.int log_softmax.int special_softmax special_log_softmax", T(4, 2, 6), -1)
S("_softmax _log_softmax", T(4, 2, 6), 1, False)
S("layer_norm", T(4, 2, 6), [6], T(6), T(6))
S("layer_norm", T(4, 2, 6), [2, 6])
S("native_layer_norm", T(4, 2, 6), [6], T(6), T(6), 1e-5)
S("rms_norm", T(4, 2, 6), [6], T(6))
S("_fused_rms_norm", T(4, 2, 6), [6], T(6), 1e-5)
S("group_norm", T(4, 6, 2, 2), 2, T(6), T(6))
S("group_norm", T(4, 6), 3)
S(
    "batch_norm",
    T(4, 6, 2),
    T(6),
    T(6),
    N(6),
    Tensor((6,), "positive", grad=False),
    True,
    0.1,
    1e-5,
    False,
)
S(
    "batch_norm",
    T(4, 6, 2),
    T(6),
    T(6),
    N(6),
    Tensor((6,), "positive", grad=False),
    False,
    0.1,
    1e-5,
    False,
)
S("batch_norm", T(4, 6), None, None, None, None, True, 0.1, 1e-5, False)
S("instance_norm", T(4, 6, 2), T(6), T(6), None, None, True, 0.1, 1e-5, False)
S("_weight_norm", T(4, 6, 2), P(4, 1, 1))

# losses
for reduction in (0, 1, 2):
    S("cross_entropy_loss", T(4, 6), J(6, 4), None, reduction, 2)
    S("cross_entropy_loss", T(4, 6, 2), J(6, 4, 2), None, reduction)
    S("cross_entropy_loss", T(6), J(6), None, reduction)
    S("cross_entropy_loss", T(4, 6), J(6, 4), N(6), reduction, -100, 0.1)
    S("cross_entropy_loss", T(4, 6), P(4, 6), None, reduction)
    S("{nll_loss_nd,nll_loss}", T(4, 6), J(6, 4), N(6), reduction)
    S("nll_loss2d", T(4, 6, 2, 2), J(6, 4, 2, 2), None, reduction)
    S("{mse_loss,l1_loss,smooth_l1_loss,huber_loss}", T(4, 6), T(4, 6), reduction)
    S("soft_margin_loss", T(4, 6), N(4, 6), reduction)
    S("binary_cross_entropy", P(4, 6), Tensor((4, 6), "positive", grad=False), None, reduction)
    S("binary_cross_entropy_with_logits", T(4, 6), N(4, 6), N(6), N(6), reduction)
    S("kl_div", T(4, 6), P(4, 6), reduction)
    S("poisson_nll_loss", T(4, 6), P(4, 6), True, False, 1e-8, reduction)
    S("hinge_embedding_loss", T(4, 6), N(4, 6), 1.0, reduction)
    S("margin_ranking_loss", T(4), T(4), N(4), 0.1, reduction)
    S(
        "cosine_embedding_loss",
        T(4, 6),
        T(4, 6),
        Tensor((4,), "positive", grad=False),
        0.0,
        reduction,
    )
    S("triplet_margin_loss", T(4, 6), T(4, 6), T(4, 6), 1.0, 2.0, 1e-6, False, reduction)

# attention and embedding
S("scaled_dot_product_attention", T(2, 4, 3, 6), T(2, 4, 6, 6), T(2, 4, 6, 6))
S("scaled_dot_product_attention", T(2, 4, 6, 6), T(2, 4, 6, 6), T(2, 4, 6, 6), None, 0.0, True)
S(
    "scaled_dot_product_attention",
    T(2, 4, 6, 2),
    T(2, 2, 6, 2),
    T(2, 2, 6, 2),
    None,
    0.0,
    True,
    enable_gqa=True,
)
S(
    "scaled_dot_product_attention",
    T(2, 4, 6, 2),
    T(2, 1, 6, 2),
    T(2, 1, 6, 2),
    None,
    0.0,
    False,
    enable_gqa=True,
)
S("scaled_dot_product_attention", T(2, 4, 3, 6), T(2, 4, 6, 6), T(2, 4, 6, 6), B(2, 1, 3, 6))
S("scaled_dot_product_attention", T(2, 4, 3, 6), T(2, 4, 6, 6), T(2, 4, 6, 6), T(4, 3, 6))
S(
    "scaled_dot_product_attention",
    T(2, 4, 3, 6),
    T(2, 2, 6, 6),
    T(2, 2, 6, 6),
    T(4, 1, 6),
    enable_gqa=True,
)
S("scaled_dot_product_attention", T(4, 3, 6), T(4, 6, 6), T(4, 6, 6))
S("scaled_dot_product_attention", T(2, 4, 3, 6), T(2, 4, 6, 6), T(2, 4, 6, 6), None, 0.5)
S("embedding", T(6, 4), J(6, 2, 3))
S("embedding", T(6, 4), J(6, 2, 3), 1)
S("embedding", T(6, 4), J(6, 2, 3), -1, True)
S("embedding", T(6, 4), J(6, 2, 3), -1, False, True)

# shapes
S("view _unsafe_view reshape", T(2, 4, 6), [2, 4, 2, 3])
S("view _unsafe_view reshape", T(2, 4, 2, 3), [2, 4, -1])
S("view reshape", T(2, 4, 6), [8, 6])
S("view reshape", T(8, 6), [2, -1, 1, 6])
S("view reshape", T(6, 4), [4, 6])
S("view reshape", T(8, 3), [4, 6])
S("view reshape", T(4, 6), [-1])
S("view reshape", T(4, 1, 6), [1, 24, 1])
S("view reshape", T(1), [])
S("view_as reshape_as", T(4, 6), N(4, 2, 3))
S("flatten.using_ints", T(2, 4, 6), 1)
S("flatten.using_ints", T(2, 4, 6))
S("ravel", T(4, 6))
S("unflatten.int", T(4, 6), -1, [2, -1])
S("unflatten.int", T(4, 6, 2), 0, [2, 2])
S("atleast_{1d,2d,3d}", T(6))
S("view.dtype", N(4, 6), torch.int64)
S("view.dtype", N(4, 6), torch.float32)
S("permute", T(2, 4, 6), [2, 0, 1])
S("transpose.int swapaxes swapdims", T(2, 4, 6), 1, -1)
S("t numpy_T matrix_H", T(4, 6))
S("mT mH adjoint", T(2, 4, 6))
S("movedim.int moveaxis.int", T(2, 4, 6), 0, 2)
S("movedim.intlist moveaxis.intlist", T(2, 4, 6), [0, 1], [2, 0])
S("unsqueeze unsqueeze_", T(4, 6), 1)
S("squeeze squeeze_", T(4, 1, 6))
S("squeeze{,_}.dim", T(4, 1, 6), 1)
S("squeeze.dim", T(4, 1, 6), 0)
S("squeeze{,_}.dims", T(4, 1, 6), [1, 2])
S("select.int", T(4, 6), 1, 2)
S("slice.Tensor", T(4, 6), 1, 1, 5)
S("slice.Tensor", T(4, 6), 1, 0, 9223372036854775807)
S("slice.Tensor", T(4, 6), 0, 0, 4, 2)
S("narrow", T(4, 6), 1, 2, 2)
S("split.Tensor unsafe_split.Tensor chunk unsafe_chunk", T(4, 6), 2, 1)
S("split.sizes split_with_sizes", T(4, 6), [2, 4], 1)
S("tensor_split.sections", T(4, 6), 3, 1)
S("tensor_split.indices", T(4, 6), [2, 3], 1)
S("unbind.int", T(2, 4, 6), 1)
S("cat concat concatenate", [T(4, 6), T(4, 2)], 1)
S("stack", [T(4, 6), T(4, 6)], 1)
S("expand broadcast_to", T(4, 1), [2, -1, 6])
S("expand_as", T(4, 1), N(2, 4, 6))
S("broadcast_tensors", [T(4, 1), T(6)])
S("meshgrid", [T(4), T(6)])
S("meshgrid.indexing", [T(4), T(6)], indexing="xy")
S("repeat tile", T(4, 6), [1, 2])
S("repeat", T(6), [4, 1])
S("repeat_interleave.self_int", T(4, 6), 2, 1)
S("repeat_interleave.self_int", T(6), 3)
S("flip", T(4, 6), [1])
S("roll", T(4, 6), [1], [1])
S("roll", T(4, 6), [1])
S("rot90", T(4, 6, 2), 1, [0, 1])
S("tril triu tril_ triu_", T(2, 4, 6))
S("pad", T(2, 4, 6), [1, 2], "constant", 0.5)
S("pad", T(2, 4, 6), [1, 1], "reflect")
S("constant_pad_nd", T(2, 4, 6), [0, 0, 1, -1])
S("{reflection,replication}_pad1d", T(2, 4, 6), [1, 2])
S("{reflection,replication}_pad2d", T(2, 4, 6, 6), [1, 2, 0, 1])
S("unfold", T(4, 6), 1, 2, 1)
S("diagonal", T(2, 4, 6), 0, 1, 2)
S("linalg_diagonal", T(2, 4, 6))
S("diag diag_embed", T(4))
S("as_strided", T(4, 6), [2, 2], [6, 1])
S("view_as_complex", T(4, 6, 2))
S("view_as_real", C(4, 6))
S("real imag", C(4, 6))

# indexing
S("gather", T(4, 6), 1, J(6, 4, 3))
S("take_along_dim", T(4, 6), J(6, 4, 3), 1)
S("gather", T(4, 6), 0, J(4, 2, 6))
S("gather", T(4, 6), 1, J(6, 2, 3))
S("index_select", T(4, 6, 2), 1, J(6, 3))
S("index.Tensor", T(4, 6, 2), [J(4, 3)])
S("index.Tensor", T(4, 6, 2), [None, J(6, 3, 2)])
S("index.Tensor", T(4, 6, 2), [J(4, 3, 1), J(6, 2)])
S("index.Tensor", T(4, 6, 2), [J(4, 3), None, J(2, 3)])
S("index_put index_put_", T(4, 6, 2), [None, J(6, 3)], T(4, 3, 2))
S("index_put", T(4, 6, 2), [J(4, 3)], T(2), True)
S("scatter{,_}.src scatter_add{,_}", T(4, 6), 1, J(6, 4, 3), T(4, 3))
S("scatter{,_}.value", T(4, 6), 1, J(6, 4, 3), 2.0)
S("scatter{,_}.reduce", N(4, 6), 1, J(6, 4, 3), N(4, 3), reduce="add")
S("scatter{,_}.value_reduce", N(4, 6), 1, J(6, 4, 3), 2.0, reduce="multiply")
S("scatter_reduce{,_}.two", T(4, 6), 1, J(6, 4, 3), T(4, 3), "sum")
S("index_add{,_} index_copy{,_}", T(4, 6), 1, Tensor((3,), "int", 1), T(4, 3))
S("index_fill{,_}.int_Scalar", T(4, 6), 1, J(6, 3), 2.0)
S("index_fill{,_}.int_Tensor", T(4, 6), 1, J(6, 3), N())
S("slice_scatter", T(4, 6), T(4, 2), 1, 1, 3)
S("select_scatter", T(4, 6), T(4), 1, 2)
S("one_hot", J(5, 4, 6), 5)
S("bucketize.Tensor", T(4, 6), N(3))
S("isin.Tensor_Tensor", J(9, 4, 6), J(9, 3))
S("isin.Tensor_Scalar", J(9, 4, 6), 3)
S("masked_select", T(4, 6), B(4, 6))
S("nonzero argwhere", B(4, 6))
S("where nonzero_numpy", B(4, 6))
S("bincount", J(5, 6))
S("histc", N(6))
S("masked_scatter masked_scatter_", T(4, 6), B(4, 6), T(24))
S("multinomial", Tensor((4, 6), "positive", grad=False), 2)

# convolution
S("conv1d", T(2, 4, 6), T(6, 4, 3), T(6))
S("conv1d", T(2, 4, 6), T(6, 2, 3), T(6), [1], [1], [1], 2)
S("conv1d", T(4, 6), T(6, 4, 3))
S("conv2d", T(2, 4, 6, 6), T(6, 4, 3, 3), None, [2, 2])
S("conv2d", T(2, 4, 6, 6), T(4, 1, 3, 3), T(4), [1, 1], [1, 1], [1, 1], 4)
S("conv3d", T(2, 2, 3, 3, 3), T(4, 2, 2, 2, 2))
S("conv1d.padding", T(2, 4, 6), T(6, 4, 3), T(6), [1], "same")
S("conv2d.padding", T(2, 4, 6, 6), T(6, 4, 3, 3), T(6), [1, 1], "valid")
S("conv3d.padding", T(2, 2, 3, 3, 3), T(4, 2, 2, 2, 2), None, [1, 1, 1], "valid")
S("convolution", T(2, 4, 6), T(6, 4, 3), T(6), [1], [0], [1], False, [0], 1)
S("conv_transpose1d", T(2, 4, 6), T(4, 6, 3), T(6))
S("conv_transpose1d", T(2, 4, 6), T(4, 3, 3), T(6), [1], [0], [0], 2)
S("conv_transpose2d.input", T(2, 4, 3, 3), T(4, 6, 2, 2))
S("conv_transpose3d.input", T(2, 4, 2, 2, 2), T(4, 2, 2, 2, 2))
S("max_pool1d avg_pool1d", T(2, 4, 6), [2])
S("max_pool2d avg_pool2d", T(2, 4, 6, 6), [2, 2])
S("max_pool3d avg_pool3d", T(2, 4, 2, 4, 4), [2, 2, 2])
S("max_pool1d_with_indices", T(2, 4, 6), [2])
S("max_pool2d_with_indices", T(2, 4, 6, 6), [2, 2])
S("max_pool3d_with_indices", T(2, 4, 2, 4, 4), [2, 2, 2])
S("adaptive_{avg,max}_pool1d", T(2, 4, 6), [2])
S("adaptive_{avg,max}_pool2d", T(2, 4, 6, 6), [2, 2])
S("adaptive_{avg,max}_pool3d", T(2, 4, 2, 4, 4), [2, 2, 2])
S("upsample_nearest1d", T(2, 4, 6), [12])
S("upsample_nearest1d.vec", T(2, 4, 6), None, [2.0])
S("upsample_nearest2d", T(2, 4, 3, 3), [6, 6])
S("upsample_nearest2d.vec", T(2, 4, 3, 3), None, [2.0, 2.0])
S("upsample_nearest3d", T(2, 4, 2, 2, 2), [4, 4, 4])
S("upsample_nearest3d.vec", T(2, 4, 2, 2, 2), None, [2.0, 2.0, 2.0])
S("upsample_linear1d", T(2, 4, 6), [12], False)
S("upsample_linear1d.vec", T(2, 4, 6), None, False, [2.0])
S(
    "{upsample_bilinear2d,upsample_bicubic2d,_upsample_bilinear2d_aa,_upsample_bicubic2d_aa}",
    T(2, 4, 3, 3),
    [6, 6],
    False,
)
S(
    "{upsample_bilinear2d,upsample_bicubic2d,_upsample_bilinear2d_aa,_upsample_bicubic2d_aa}.vec",
    T(2, 4, 3, 3),
    None,
    False,
    [2.0, 2.0],
)
S("upsample_trilinear3d", T(2, 4, 2, 2, 2), [4, 4, 4], False)
S("upsample_trilinear3d.vec", T(2, 4, 2, 2, 2), None, False, [2.0, 2.0, 2.0])
S("pixel_shuffle", T(2, 8, 3, 3), 2)
S("pixel_unshuffle", T(2, 4, 6, 6), 2)
S("im2col", T(2, 4, 6, 6), [2, 2], [1, 1], [0, 0], [1, 1])
S("col2im", T(2, 16, 9), [6, 6], [2, 2], [1, 1], [0, 0], [2, 2])

# creation
S("zeros ones empty.memory_format", [4, 6])
S("full", [4, 6], 2.0)
S("rand randn", [4, 6])
S("randint", 9, [4, 6])
S("randint.low", 2, 9, [4, 6])
S("new_{zeros,ones,empty}", T(3), [4, 6])
S("new_full", T(3), [4, 6], 2.0)
S("{zeros,ones,empty,rand,randn}_like", T(4, 6))
S("full_like", T(4, 6), 2.0)
S("randint_like", N(4, 6), 9)
S("randint_like.low_dtype", N(4, 6), 2, 9)
S("arange", 6)
S("arange.start", 2, 8)
S("arange.start_step", 2, 8, 2)
S("linspace logspace", 0.0, 1.0, 6)
S("eye", 4)
S("eye.m", 4, 6)
S("scalar_tensor", 2.0)
S("tril_indices triu_indices", 4, 4)
S("{hann,hamming,bartlett,blackman}_window", 6)
S("randperm", 6)
