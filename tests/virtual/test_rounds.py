"""Rounds of several steps end by one rule, whatever is evaluated or stored meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import manyhands as mh
from manyhands.sampling.permutation import permutation

SAMPLES, BATCH, WORKERS, EPOCHS, RATE, MOMENTUM = 40, 4, 2, 2, 0.05, 0.5
STRATEGIES = [
    "averaging(every=3)",
    "averaging(every=3, servers=2)",
    "local_sgd(every=4, warmup=2)",
    "diloco(every=4)",
    "diloco(every=100)",
    "easgd(every=3)",
    "hierarchical(islands=2, outer=averaging(every=3))",
    "hierarchical(islands=2, outer=diloco(every=4))",
]

_drawn = torch.Generator().manual_seed(1)
POINTS = torch.randn(SAMPLES, 3, generator=_drawn, dtype=torch.float64)
VALUES = torch.randn(SAMPLES, 1, generator=_drawn, dtype=torch.float64)
DATA = torch.utils.data.TensorDataset(POINTS, VALUES)


def model() -> nn.Module:
    return nn.Linear(3, 1, dtype=torch.float64)


def optimizer(made: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(made.parameters(), lr=RATE, momentum=MOMENTUM)


def job(**settings: object) -> mh.Job:
    common = {"global_batch": BATCH, "epochs": EPOCHS, "seed": 3, "metrics": ()}
    return mh.Job(
        model=model, optimizer=optimizer, loss=functional.mse_loss, data=DATA, **common | settings
    )


def trained(strategy: str, folder, **settings: object) -> dict[str, torch.Tensor]:
    run = mh.simulate(
        job(**settings), strategy, workers=WORKERS, output=folder, times="constant(1.0)"
    )
    return run.state_dict()


LOOKS = {
    "validation": {"validation": DATA},
    "within rounds": {"validation": DATA, "evaluate_every": mh.every(samples=BATCH)},
    "beside epochs": {"validation": DATA, "evaluate_every": mh.every(samples=2 * BATCH + 1)},
    "seldom": {"validation": DATA, "evaluate_every": mh.every(epochs=2)},
    "by time": {"validation": DATA, "evaluate_every": mh.every(seconds=2.5)},
    "stored": {"checkpoint": mh.every(samples=3 * BATCH)},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evaluations_and_checkpoints_change_nothing(strategy, tmp_path) -> None:
    plain = trained(strategy, tmp_path / "plain")
    for name, settings in LOOKS.items():
        found = trained(strategy, tmp_path / name.replace(" ", "-"), **settings)
        for key, value in plain.items():
            # An island that has rested begins with the parameters themselves, and not with their
            # difference to its own.
            rounding = 1e-15 if strategy.startswith("hierarchical") else 0.0
            assert (found[key] - value).abs().max() <= rounding, (strategy, name, key)


@pytest.mark.parametrize("every", [1, 3, 4, 10, 100])
@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_round_ends_after_h_steps_and_with_an_epoch(every, warmup, evaluates, tmp_path) -> None:
    settings = LOOKS["within rounds"] if evaluates else {}
    found = trained(f"local_sgd(every={every}, warmup={warmup})", tmp_path / "run", **settings)
    for key, value in _by_hand(every, warmup).items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-12)


def test_an_evaluation_within_a_round_follows_at_its_end(tmp_path) -> None:
    run = mh.simulate(
        job(validation=DATA, evaluate_every=mh.every(samples=BATCH)),
        "averaging(every=4)",
        workers=WORKERS,
        output=tmp_path / "run",
        times="constant(1.0)",
    )
    at = [round(point[0]) for point in run.curves()["validation/loss"]]
    # Every 4 batches, and at the end of the epoch of 10.
    assert at == [16, 32, 40, 56, 72, 80]


def _by_hand(every: int, warmup: int) -> dict[str, torch.Tensor]:
    """Local SGD in plain PyTorch."""
    torch.manual_seed(3)
    common = model()
    replicas = [model() for _ in range(WORKERS)]
    optimizers = [optimizer(one) for one in replicas]
    for one in replicas:
        one.load_state_dict(common.state_dict())
    step = alone = 0
    for epoch in range(EPOCHS):
        order = permutation(SAMPLES, 3, epoch)
        for start in range(0, SAMPLES, BATCH):
            batch = order[start : start + BATCH]
            step, alone = step + 1, alone + 1
            share = BATCH // WORKERS
            for rank, (one, its) in enumerate(zip(replicas, optimizers, strict=True)):
                mine = batch[rank * share : (rank + 1) * share]
                its.zero_grad()
                functional.mse_loss(one(POINTS[mine]), VALUES[mine]).backward()
                its.step()
            if alone < (1 if step <= warmup else every) and start + BATCH < SAMPLES:
                continue
            alone = 0
            with torch.no_grad():
                for parts in zip(*(one.parameters() for one in replicas), strict=True):
                    mean = torch.stack(parts).mean(0)
                    for part in parts:
                        part.copy_(mean)
    return replicas[0].state_dict()
