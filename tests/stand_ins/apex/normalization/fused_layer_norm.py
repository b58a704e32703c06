"""Layer normalization with a backward of its own, in place of apex's kernels."""

import torch


class FusedLayerNormAffineFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, normalized_shape, eps):
        dims = tuple(range(-len(normalized_shape), 0))
        mean = input.mean(dims, keepdim=True)
        rstd = torch.rsqrt(input.var(dims, unbiased=False, keepdim=True) + eps)
        normalized = (input - mean) * rstd
        ctx.save_for_backward(normalized, weight, rstd)
        ctx.dims = dims
        return normalized * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normalized, weight, rstd = ctx.saved_tensors
        dims = ctx.dims
        outer = tuple(range(grad.dim() - len(dims)))
        g = grad * weight
        mean = g.mean(dims, keepdim=True)
        slope = (g * normalized).mean(dims, keepdim=True)
        grad_input = (g - mean - normalized * slope) * rstd
        return grad_input, (grad * normalized).sum(outer), grad.sum(outer), None, None
