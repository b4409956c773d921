"""N synchronous workers equal one worker with the same global batch, to rounding in float64."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from manyhands.files.checkpoint import load_state
from manyhands.sampling.permutation import permutation

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator)
    targets = torch.randint(0, 5, (1001,), generator=generator)

    def optimizer(model):
        kinds = {
            "plain": lambda: torch.optim.SGD(model.parameters(), lr=0.05),
            "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1),
        }
        return kinds[sys.argv[1]]()

    job = mh.Job(
        model=lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)),
        optimizer=optimizer,
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:503], targets[:503]),
        metrics=["accuracy", "f1"],
        global_batch=37,
        epochs=3,
        seed=11,
    )

    if __name__ == "__main__":
        results = {}
        for strategy, workers in json.loads(sys.argv[2]):
            run = mh.train(job, strategy, workers=workers)
            results[f"{strategy} {workers}"] = [str(run.folder.resolve()), run.metrics, run.samples]
        print("RESULTS", json.dumps(results))
"""


def by_hand(kind: str) -> dict[str, torch.Tensor]:
    """The same training in plain PyTorch: the oracle, sharing only the order of the samples."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 5, (1001,), generator=generator)
    # Made in float32 and widened it would differ: build it as the job does.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    torch.set_default_dtype(before)
    rate = {"plain": 0.05, "sgd": 0.05, "adamw": 0.003}[kind]
    optimizer: torch.optim.Optimizer
    if kind != "adamw":
        momentum = 0.9 if kind == "sgd" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    for epoch in range(3):
        order = permutation(1001, 11, epoch)
        for start in range(0, 1001, 37):
            batch = order[start : start + 37]
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            # An update from b samples acts with weight b / global_batch on the rate.
            optimizer.param_groups[0]["lr"] = rate * len(batch) / 37
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [pytest.param("sgd", marks=pytest.mark.slow), "adamw"])
def test_allreduce_with_1_to_4_workers_equals_single_equals_plain_pytorch(run_script, kind):
    # 1,001 = 27 · 37 + 2: the last batch leaves workers 2 and 3 of four empty.
    wanted = [["single()", 1], *(["allreduce()", n] for n in (1, 2, 3, 4))]
    _equal_plain_pytorch(run_script, kind, wanted)


@pytest.mark.timeout(300)
def test_with_servers_lockstep_is_plain_pytorch_too(run_script):
    _equal_plain_pytorch(run_script, "adamw", [["synchronous(servers=3)", 4], ["softsync(3)", 3]])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_an_optimizer_state_averaging_is_plain_pytorch_too(run_script):
    outer = "diloco(every=1, outer_lr=1.0, outer_momentum=0.0)"
    wanted = [["averaging(every=1)", 4], ["ssp(staleness=0)", 3], [outer, 2]]
    _equal_plain_pytorch(run_script, "plain", wanted)


def _equal_plain_pytorch(run_script, kind, wanted):
    started = run_script(SCRIPT, kind, json.dumps(wanted))
    assert started.finish(280) == 0, started.text()
    results = json.loads(started.text().split("RESULTS ")[1].splitlines()[0])
    oracle = by_hand(kind)
    assert len(results) == len(wanted)
    metrics = next(iter(results.values()))[1]
    for name, (folder, values, samples) in results.items():
        state = load_state(Path(folder) / "model.safetensors")
        assert state.keys() == oracle.keys()
        worst = max((state[key] - oracle[key]).abs().max().item() for key in oracle)
        assert worst <= 1e-9, f"{name} is {worst} away from plain PyTorch"
        assert values == pytest.approx(metrics, abs=1e-9), name
        assert samples == 3003
