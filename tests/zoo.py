"""Models to test with: each function returns (module, args, kwargs), tiny, seeded, without dropout.

`MODELS` lists those that every stage must carry, by name.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
#: What a process needs on its path to run these models: this folder, the examples, the stand-ins.
PATHS = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tests" / "stand_ins")]
sys.path[:0] = [path for path in PATHS if path not in sys.path]

Sample = tuple[nn.Module, tuple, dict]


def _tokens(vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Ids and labels: two tensors, so that they stay two inputs."""
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": torch.randint(0, vocabulary, (batch, length))}


# --- Written here and in examples/ ---


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x))).square().mean()


def mlp(
    batch: int = 8,
    dim: int = 16,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    torch.manual_seed(seed)
    return MLP(dim, hidden).to(dtype), (torch.randn(batch, dim, dtype=dtype),), {}


class TwoLinears(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x))


def two_linears(
    batch: int = 8,
    dim: int = 16,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    torch.manual_seed(seed)
    return TwoLinears(dim, hidden).to(dtype), (torch.randn(batch, dim, dtype=dtype),), {}


def gpt(
    batch: int = 4,
    length: int = 8,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    vocabulary: int = 48,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from examples.models.gpt import GPT

    torch.manual_seed(seed)
    model = GPT(vocabulary, length, layers, hidden, heads, dropout).to(dtype)
    tokens = _tokens(vocabulary, batch, length)
    return model, (tokens["input_ids"], tokens["labels"]), {}


def retnet(
    batch: int = 4,
    length: int = 8,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    inner: int = 64,
    vocabulary: int = 48,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from examples.models.retnet import LMDecoder

    torch.manual_seed(seed)
    model = LMDecoder(vocabulary, layers, hidden, heads, inner).to(dtype)
    tokens = _tokens(vocabulary, batch, length)
    return model, (tokens["input_ids"], tokens["labels"]), {}


# --- Hugging Face, tiny random configurations ---


def gpt2(
    batch: int = 4,
    length: int = 8,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    vocabulary: int = 48,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return _hugging_face(
        GPT2LMHeadModel, config, dtype, seed, lambda: _tokens(vocabulary, batch, length)
    )


def llama(
    batch: int = 4,
    length: int = 8,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 64,
    vocabulary: int = 48,
    tied: bool = False,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return _hugging_face(
        LlamaForCausalLM, config, dtype, seed, lambda: _tokens(vocabulary, batch, length)
    )


def bert(
    batch: int = 4,
    length: int = 8,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    inner: int = 64,
    vocabulary: int = 48,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )

    def sample() -> dict[str, torch.Tensor]:
        tokens = _tokens(vocabulary, batch, length)
        tokens["labels"][torch.rand(batch, length) < 0.5] = -100  # not masked, so not predicted
        tokens["labels"][:, 0] = 1  # at least one is
        return tokens

    return _hugging_face(BertForMaskedLM, config, dtype, seed, sample)


def vit(
    batch: int = 4,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    inner: int = 64,
    image: int = 16,
    patch: int = 8,
    classes: int = 8,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Sample:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )

    def sample() -> dict[str, torch.Tensor]:
        images = torch.randn(batch, 3, image, image, dtype=dtype)
        return {"pixel_values": images, "labels": torch.randint(0, classes, (batch,))}

    return _hugging_face(ViTForImageClassification, config, dtype, seed, sample)


def _hugging_face(cls, config, dtype: torch.dtype, seed: int, sample: Callable[[], dict]) -> Sample:
    torch.manual_seed(seed)
    model = cls(config).to(dtype)
    return model.train(), (), sample()


MODELS: dict[str, Callable[..., Sample]] = {
    "mlp": mlp,
    "two_linears": two_linears,
    "gpt": gpt,
    "retnet": retnet,
    "gpt2": gpt2,
    "gpt2_eager": lambda **kw: gpt2(attention="eager", **kw),
    "llama": llama,
    "llama_eager": lambda **kw: llama(attention="eager", **kw),
    "llama_tied": lambda **kw: llama(tied=True, **kw),
    "bert": bert,
    "bert_eager": lambda **kw: bert(attention="eager", **kw),
    "vit": vit,
    "vit_eager": lambda **kw: vit(attention="eager", **kw),
}
