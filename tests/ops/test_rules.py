"""Every rule of the operator table, run by PyTorch whole and in parts, forward and backward."""

import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))

from samples import SAMPLES, Sample, Tensor  # noqa: E402

from core_binary import core_binary  # noqa: E402

COPY = torch.ops.aten.alias_copy.default  # what in-place samples write
TOLERANCE = 1e-9


def core(*arguments: str) -> dict:
    run = subprocess.run(
        [core_binary(), "operators", *arguments, "--json"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def is_spec(value) -> bool:
    return isinstance(value, Tensor)


def fill(sample: Sample, tensors: list[torch.Tensor]):
    """The sample's arguments with these tensors, in order of the schema's arguments."""
    queue = iter(tensors)
    return pytree.tree_map_only(
        Tensor, lambda _: next(queue), (sample.args, sample.kwargs), is_leaf=is_spec
    )


def specs(sample: Sample) -> list[Tensor]:
    return [
        leaf
        for leaf in pytree.tree_leaves((sample.args, sample.kwargs), is_leaf=is_spec)
        if is_spec(leaf)
    ]


class AllSamples(torch.nn.Module):
    def forward(self, *tensors):
        queue = list(tensors)
        results = []
        for sample in SAMPLES:
            count = len(specs(sample))
            own, queue = queue[:count], queue[count:]
            if sample.in_place:
                own[0] = COPY(own[0])
            args, kwargs = fill(sample, own)
            results.append(sample.operator(*args, **kwargs))
        return results


def draw() -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [[spec.make(generator) for spec in specs(sample)] for sample in SAMPLES]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tensors() -> list[list[torch.Tensor]]:
    return draw()


@pytest.fixture(scope="module")
def rules(tensors, tmp_path_factory) -> list[dict]:
    """The rule that the core binds to each sample."""
    path = tmp_path_factory.mktemp("rules") / "samples.pt2"
    flat = [tensor for own in tensors for tensor in own]
    logging.disable(logging.CRITICAL)  # export writes much that pytest would keep
    try:
        program = torch.export.export(AllSamples(), tuple(flat), strict=False)
    finally:
        logging.disable(logging.NOTSET)
    torch.export.save(program, path)
    bound = iter(core("--bind", str(path))["operators"])
    found = []
    for sample in SAMPLES:
        for rule in bound:
            if rule["target"] == sample.target:
                found.append(rule)
                break
            helper = rule["target"] == "aten.alias_copy.default" or not rule["target"].startswith(
                "aten."
            )
            assert helper or rule["target"].startswith("aten.sym_"), (
                f"{rule['target']} where {sample.target} is wanted"
            )
        else:
            pytest.fail(f"the archive has no {sample.target}")
    return found


class Call:
    """A sample's call with the tensors in the order in which the core counts them."""

    def __init__(self, sample: Sample, tensors: list[torch.Tensor], rule: dict):
        self.sample, self.tensors, self.rule = sample, tensors, rule

    def run(self, tensors, *, size=None, parts=1, keyword=None):
        """Outputs and the tensors that they depend on; `size` is the local shape of the first output."""
        own = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        used = list(own)
        if self.sample.in_place:
            used[0] = COPY(own[0])
        args, kwargs = fill(self.sample, used)
        names = [argument.name for argument in self.sample.operator._schema.arguments]
        named = dict(zip(names, args, strict=False)) | kwargs
        rule = self.rule
        if size is not None and rule["size_argument"]:
            wanted = list(size)
            if rule["size_argument"] == "sizes":  # of unflatten: one dim's
                count = len(named["sizes"])
                start = named["dim"] % (len(wanted) - count + 1)
                wanted = wanted[start : start + count]
            named[rule["size_argument"]] = wanted
        if parts > 1 and rule["divide_argument"]:
            assert named[rule["divide_argument"]] % parts == 0
            named[rule["divide_argument"]] //= parts
        if keyword:
            outputs = keyword(named)
        else:
            positional = [
                named.pop(a.name)
                for a in self.sample.operator._schema.arguments
                if not a.kwarg_only and a.name in named
            ]
            outputs = self.sample.operator(*positional, **named)
        outputs = [o for o in pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]
        return own, outputs

    def gradients(self, own, outputs, cotangents):
        pairs = [(o, g) for o, g in zip(outputs, cotangents, strict=True) if o.requires_grad]
        wanted = [t for t in own if t.requires_grad]
        if not pairs or not wanted:
            return [None] * len(own)
        outs, grads = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outs, wanted, grads, allow_unused=True))
        result = [next(found) if t.requires_grad else None for t in own]
        result = [g.to_dense() if g is not None and g.is_sparse else g for g in result]
        return [
            torch.zeros_like(t) if g is None and t.requires_grad else g
            for g, t in zip(result, own, strict=True)
        ]


def dim_of(operand: dict, name: int) -> int:
    return next((d for d, names in enumerate(operand["dims"]) if name in names), -1)


def part(tensor: torch.Tensor, dim: int, count: int, index: int) -> torch.Tensor:
    assert tensor.shape[dim] % count == 0
    return tensor.chunk(count, dim)[index]


def equal(a: torch.Tensor, b: torch.Tensor, tolerance=TOLERANCE) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        if a.dtype in (torch.float32, torch.complex64):
            tolerance = 1e-5
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    return torch.equal(a, b)


def add(terms: list[torch.Tensor], reduction: str) -> torch.Tensor:
    stacked = torch.stack([t.resolve_conj() for t in terms])
    if reduction == "sum":
        return stacked.sum(0).to(terms[0].dtype)
    return stacked.amax(0) if reduction == "max" else stacked.amin(0)


def divisors(extent: int) -> list[int]:
    smallest = next(n for n in range(2, extent + 1) if extent % n == 0)
    return sorted({smallest, extent}) if extent <= 6 else [smallest]


def differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def random_like(tensors):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
        if differentiable(t)
        else None
        for t in tensors
    ]


# What the runtime's variants do, on one process.


def cross_entropy_rows(call, index, parts, name):
    """Local sum over the number, or weight, of all valid labels."""
    _, target, weight, reduction, ignore, _ = cross_entropy_arguments(
        dict(bind(call, call.tensors))
    )
    if reduction != "mean":
        return None
    valid = target != ignore
    count = (
        valid.sum()
        if weight is None
        else weight[target.masked_fill(~valid, 0)].masked_fill(~valid, 0).sum()
    )

    def run(named):
        x, t, w, _, ignore, smoothing = cross_entropy_arguments(named)
        return (
            F.cross_entropy(
                x, t, w, ignore_index=ignore, reduction="sum", label_smoothing=smoothing
            )
            / count
        )

    return run


def bind(call, tensors):
    args, kwargs = fill(call.sample, tensors)
    names = [argument.name for argument in call.sample.operator._schema.arguments]
    return list(zip(names, args, strict=False)) + list(kwargs.items())


def cross_entropy_arguments(named):
    reduction = ("none", "mean", "sum")[named.get("reduction", 1)]
    return (
        named["self"],
        named["target"],
        named.get("weight"),
        reduction,
        named.get("ignore_index", -100),
        named.get("label_smoothing", 0.0),
    )


def embedding_rows(call, index, parts, name):
    """Rows elsewhere give zeros."""
    rows = call.tensors[0].shape[0] // parts

    def run(named):
        weight, indices, padding = named["weight"], named["indices"], named.get("padding_idx", -1)
        local = indices - index * rows
        outside = (local < 0) | (local >= rows)
        padding = padding - index * rows if padding >= 0 else -1
        found = F.embedding(
            local.masked_fill(outside, 0), weight, padding if 0 <= padding < rows else None
        )
        return found.masked_fill(outside[..., None], 0)

    return run


def cases(rules):
    for sample, rule in zip(SAMPLES, rules, strict=True):
        for index, name in enumerate(rule["names"]):
            if name["splittable"]:
                for parts in divisors(name["extent"]):
                    yield sample, rule, index, name, parts


def check_split(call: Call, index: int, name: dict, parts: int) -> str:
    """What is wrong with this split, or ""."""
    rule = call.rule
    whole_in, whole_out = call.run(call.tensors)
    if len(whole_out) != len(rule["outputs"]) or len(whole_in) != len(rule["inputs"]):
        return f"{len(whole_in)} inputs and {len(whole_out)} outputs"
    if name.get("keyword") == "classes":
        return ""  # see test_classes_of_cross_entropy
    cotangents = random_like(whole_out)
    whole_grads = call.gradients(whole_in, whole_out, cotangents)
    placed = [dim_of(o, index) for o in rule["outputs"]]
    local_outs, local_grads = [], []
    for i in range(parts):
        tensors = []
        for k, tensor in enumerate(call.tensors):
            dim = dim_of(rule["inputs"][k], index)
            if dim >= 0:
                tensor = part(tensor, dim, parts, i)
            elif k in name.get("once", []) and i > 0:
                tensor = torch.zeros_like(tensor).requires_grad_(tensor.requires_grad)
            tensors.append(tensor)
        size = list(whole_out[0].shape)
        if placed[0] >= 0:
            size[placed[0]] //= parts
        variant = {"batch": cross_entropy_rows, "rows": embedding_rows}.get(name.get("keyword"))
        keyword = variant(call, i, parts, name) if variant else None
        divide = parts if rule["divide_name"] == index else 1
        own, outs = call.run(tensors, size=size, parts=divide, keyword=keyword)
        if name.get("rescale"):
            outs = [o / parts for o in outs]
        local_outs.append(outs)
        cuts = [
            g if g is None or d < 0 else part(g, d, parts, i)
            for g, d in zip(cotangents, placed, strict=True)
        ]
        local_grads.append(call.gradients(own, outs, cuts))

    if rule["random"]:
        shapes = [[o.shape for o in outs] for outs in local_outs]
        wanted = [list(o.shape) for o in whole_out]
        for o, d in enumerate(placed):
            if d < 0:
                return f"output {o} is random and lacks the name"
            wanted[o][d] //= parts
            if any(list(s[o]) != wanted[o] for s in shapes):
                return f"output {o} has shapes {[list(s[o]) for s in shapes]}"
        return ""

    empty = call.sample.target.split(".")[1].removeprefix("new_").startswith("empty")
    for o, (whole, dim) in enumerate(zip(whole_out, placed, strict=True)):
        locals_ = [outs[o] for outs in local_outs]
        if dim >= 0:
            if any(t.shape[dim] * parts != whole.shape[dim] for t in locals_):
                return f"output {o} has a part of shape {list(locals_[0].shape)}"
            together = torch.cat(locals_, dim)
        elif name.get("partial"):
            together = add(locals_, name["partial"])
        else:
            together = locals_[0]
            if not all(equal(t, together) for t in locals_):
                return f"output {o} lacks the name and differs between parts"
        if empty:
            together = whole if together.shape == whole.shape else together
        if not equal(together, whole):
            return f"output {o} is {together.flatten()[:4].tolist()}, not {whole.flatten()[:4].tolist()}"

    for k, whole in enumerate(whole_grads):
        grads = [g[k] for g in local_grads]
        if whole is None or index in rule["inputs"][k]["no_gradient_sum"]:
            continue
        dim = dim_of(rule["inputs"][k], index)
        if dim >= 0:
            together = torch.cat(grads, dim)
        elif k in name.get("once", []):
            if not all(equal(g, whole) for g in grads):
                return f"the gradient of input {k}, which enters once, is not whole everywhere"
            continue
        else:
            together = add(grads, "sum")
        if not equal(together, whole):
            return f"the gradient of input {k} is off by {(together - whole).abs().max():.3g}"
    return ""


def check_linear(call: Call, group: list[int]) -> str:
    """A group of operands as a sum of two terms each."""
    parts = 2
    whole_in, whole_out = call.run(call.tensors)
    cotangents = random_like(whole_out)
    whole_grads = call.gradients(whole_in, whole_out, cotangents)
    generator = torch.Generator().manual_seed(5)
    terms = {}
    for k in group:
        tensor = call.tensors[k].detach()
        first = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
        terms[k] = [first, tensor - first]
    outs, grads = [], []
    for i in range(parts):
        tensors = [
            terms[k][i].requires_grad_(t.requires_grad) if k in group else t
            for k, t in enumerate(call.tensors)
        ]
        own, out = call.run(tensors)
        outs.append(out)
        grads.append(call.gradients(own, out, cotangents))
    for o, whole in enumerate(whole_out):
        if not equal(add([out[o] for out in outs], "sum"), whole):
            return f"output {o} is not linear in inputs {group}"
    for k, whole in enumerate(whole_grads):
        if whole is None or rule_reads_only_shape(call.rule, k):
            continue
        own = [g[k] for g in grads]
        if k in group and not all(equal(g, whole) for g in own):
            return f"the gradient of input {k} depends on its value"
        if k not in group and not equal(add(own, "sum"), whole):
            return f"the gradient of input {k} is no partial sum"
    return ""


def rule_reads_only_shape(rule, k) -> bool:
    return len(rule["inputs"][k]["no_gradient_sum"]) == len(rule["names"]) > 0


def test_every_split(rules, tensors):
    wrong, count = [], 0
    own = dict(zip(map(id, SAMPLES), tensors, strict=True))
    for sample, rule, index, name, parts in cases(rules):
        count += 1
        try:
            problem = check_split(Call(sample, own[id(sample)], rule), index, name, parts)
        except (RuntimeError, IndexError, AssertionError, ValueError, TypeError) as error:
            problem = (
                f"raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        if problem:
            wrong.append(
                f'{sample.target}: "{rule["annotation"]}" in {parts} parts along {name["name"]}: {problem}'
            )
    assert not wrong, f"{len(wrong)} of {count} splits:\n" + "\n".join(wrong)
    assert count > 1000


def test_every_linear_group(rules, tensors):
    wrong, count = [], 0
    for sample, rule, own in zip(SAMPLES, rules, tensors, strict=True):
        for group in rule["linear"]:
            count += 1
            if problem := check_linear(Call(sample, own, rule), group):
                wrong.append(f'{sample.target}: "{rule["annotation"]}": {problem}')
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert count > 100


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classes_of_cross_entropy(parts, smoothing):
    """The rows' losses from three sums over the classes: of exponentials, logits, the label's logit."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([3, 0, -100, 5])
    whole = F.cross_entropy(x, y, label_smoothing=smoothing)
    (whole_grad,) = torch.autograd.grad(whole, x)
    shards = [s.detach().requires_grad_() for s in x.chunk(parts, 1)]
    top = torch.stack([s.detach().amax(1) for s in shards]).amax(0)
    sums = sum((s - top[:, None]).exp().sum(1) for s in shards).log() + top
    size = 6 // parts
    here = [(y >= i * size) & (y < (i + 1) * size) for i in range(parts)]
    label = sum(
        (s.gather(1, ((y - i * size) * h)[:, None])[:, 0] * h)
        for i, (s, h) in enumerate(zip(shards, here, strict=True))
    )
    mean = sum(s.sum(1) for s in shards) / 6
    rows = (1 - smoothing) * (sums - label) + smoothing * (sums - mean)
    valid = y != -100
    loss = (rows * valid).sum() / valid.sum()
    assert equal(loss, whole)
    assert equal(torch.cat(torch.autograd.grad(loss, shards), 1), whole_grad)


def test_every_entry_has_samples():
    sampled = {sample.target for sample in SAMPLES}
    sampled |= {"aten.item.default", "aten._local_scalar_dense.default"}  # no tensor comes out
    missing = [
        row["target"]
        for row in core()["operators"]
        if row["target"].startswith("aten.")
        and not row["target"].startswith("aten.sym_")
        and row["target"] not in sampled
    ]
    assert not missing, missing


def test_samples_are_known(rules):
    unknown = [s.target for s, rule in zip(SAMPLES, rules, strict=True) if not rule["known"]]
    assert not unknown, unknown


def test_signatures_exist():
    """What the table calls an operator is what PyTorch calls it; apex and the older package aside."""

    def exists(signature: str) -> bool:
        parts = signature.replace("_operator.", "operator.", 1).split(".")
        for cut in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            for attribute in parts[cut:]:
                if not hasattr(found, attribute):
                    return False
                found = getattr(found, attribute)
            return True
        return False

    signatures = {s for row in core()["operators"] for s in row["signatures"].split() if s != "|"}
    ours = ("apex.", "cube.", "nnscaler.")
    assert not [s for s in sorted(signatures) if not s.startswith(ours) and not exists(s)]


def test_document_is_current():
    run = subprocess.run(
        [core_binary(), "operators", "--markdown"], capture_output=True, text=True, check=True
    )
    document = Path(__file__).parent.parent.parent / "docs" / "operators.md"
    assert document.read_text() == run.stdout, (
        "run: nnscaler operators --markdown > docs/operators.md"
    )
