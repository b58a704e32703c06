import torch
from models import Mix, Tied, difference, load, make, part
from pool import run_on


def mix(folder, dp, tp, config):
    model = make(Mix)
    module = load("mix", model, folder, dp, tp, **config)()
    g = torch.Generator().manual_seed(1)
    units = module.mesh.num_units
    xs = [torch.randn(8, 8, generator=g, dtype=torch.float64) for _ in range(units)]
    whole = [x.clone().requires_grad_() for x in xs]
    total = sum(model(x) for x in whole)
    total.backward()
    x = xs[module.mesh.unit].clone().requires_grad_()
    loss = module(x)
    loss.backward()
    module.sync_grad()
    worst = difference(x.grad, whole[module.mesh.unit].grad)
    if units == 1:
        worst = max(worst, difference(loss.detach(), total.detach()))
    for name, p in model.named_parameters():
        mine = module.get_parameter(name)
        if p.grad is None:
            assert mine.grad is None, name
        else:
            worst = max(worst, difference(mine.grad, part(module, name, p.grad)))
    return worst


def test_mix(tmp_path):
    for n, dp, tp in ((1, 1, 1), (2, 2, 1), (2, 1, 2), (2, 1, 1), (4, 2, 2), (4, 1, 2), (4, 4, 1)):
        for config in ({}, {"use_async_reducer": True, "reducer_bucket_cap_mb": 1e-3}):
            worst = max(run_on(n, mix, tmp_path / f"{n}{len(config)}", dp, tp, config))
            assert worst < 1e-12, (n, dp, tp, config, worst)


def tied(folder, dp, tp):
    model = make(Tied)
    module = load("tied", model, folder, dp, tp)()
    i = torch.randint(0, 12, (4, 5), generator=torch.Generator().manual_seed(2))
    want = model(i)["loss"]
    want.backward()
    out = module(i)
    out["loss"].backward()
    module.sync_grad()
    worst = difference(out["loss"].detach(), want.detach())
    for name, p in model.named_parameters():
        if p.requires_grad:
            mine = module.get_parameter(name)
            worst = max(worst, difference(mine.grad, part(module, name, p.grad)))
    return worst


def test_tied(tmp_path):
    for n, dp, tp in ((1, 1, 1), (2, 1, 2), (4, 2, 2), (4, 1, 4)):
        assert max(run_on(n, tied, tmp_path / str(n), dp, tp)) < 1e-12, (n, dp, tp)
