"""A retentive network (Sun et al., 2023), in its parallel form.

Its modules have the names that constraints for such models use. The layer norm is apex's fused one.
"""

import torch
import torch.nn.functional as F
from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction
from torch import nn


class FusedLayerNorm(nn.Module):
    def __init__(self, hidden: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.normalized_shape = (hidden,)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FusedLayerNormAffineFunction.apply(
            x, self.weight, self.bias, self.normalized_shape, self.eps
        )


class RMSNorm(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class RelativePosition(nn.Module):
    """The rotation of queries and keys, and how fast each head forgets."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        angle = 1.0 / 10000 ** torch.linspace(0, 1, hidden // heads // 2)
        self.register_buffer("angle", angle.repeat_interleave(2))
        decay = torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float32)))
        self.register_buffer("decay", decay)

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        index = torch.arange(length, device=self.decay.device).to(self.decay.dtype)
        rotation = index[:, None] * self.angle
        distance = index[:, None] - index
        mask = torch.exp(distance.clamp(min=0) * self.decay[:, None, None])
        mask = mask.masked_fill(distance < 0, 0.0)
        mask = mask / mask.sum(dim=-1, keepdim=True).sqrt()
        return torch.sin(rotation), torch.cos(rotation), mask


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class MultiScaleRetention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scaling = (hidden // heads) ** -0.5
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.g_proj = nn.Linear(hidden, hidden, bias=False)
        self.out_proj = nn.Linear(hidden, hidden, bias=False)
        self.group_norm = RMSNorm()

    def forward(
        self, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        batch, length, hidden = x.shape
        heads = (batch, length, self.heads, hidden // self.heads)
        q = self.q_proj(x).view(heads).transpose(1, 2)
        k = (self.k_proj(x) * self.scaling).view(heads).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        q = q * cos + rotate_every_two(q) * sin
        k = k * cos + rotate_every_two(k) * sin

        weights = torch.matmul(q, k.transpose(-1, -2)) * mask
        weights = weights / weights.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1)
        y = torch.matmul(weights, v)

        y = self.group_norm(y.transpose(1, 2)).reshape(batch, length, hidden)
        return self.out_proj(F.silu(self.g_proj(x)) * y)


class FeedForwardNetwork(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class DecoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.retention_layer_norm = FusedLayerNorm(hidden)
        self.retention = MultiScaleRetention(hidden, heads)
        self.final_layer_norm = FusedLayerNorm(hidden)
        self.ffn = FeedForwardNetwork(hidden, inner)

    def forward(
        self, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.retention(self.retention_layer_norm(x), sin, cos, mask)
        return x + self.ffn(self.final_layer_norm(x))


class LMDecoder(nn.Module):
    """A language model of retention layers; with labels, returns the mean loss.

    Args:
        vocabulary: number of tokens.
        layers: number of decoder layers.
        hidden: width of the residual stream; `hidden / heads` is even.
        heads: retention heads.
        inner: width of the feed-forward networks.
    """

    def __init__(
        self,
        vocabulary: int = 96,
        layers: int = 4,
        hidden: int = 256,
        heads: int = 8,
        inner: int = 512,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.relative_position = RelativePosition(hidden, heads)
        self.layers = nn.ModuleList(DecoderLayer(hidden, heads, inner) for _ in range(layers))
        self.layer_norm = FusedLayerNorm(hidden)
        self.output_projection = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        sin, cos, mask = self.relative_position(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, sin, cos, mask)
        logits = self.output_projection(self.layer_norm(x))
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
