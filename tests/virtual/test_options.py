"""A job's rate, clip and growing batch mean the same under every strategy, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands import lr_schedules
from manyhands.job import Job
from manyhands.protocols import ALL
from manyhands.sampling.permutation import permutation
from manyhands.strategies import strategy

SAMPLES, EPOCHS, SEED = 151, 3, 5
UNEVEN = "lognormal(0.1, cv=0.5)"
GROWING = {0: 23, 1: 37, 1.6: 64}
"""The last change comes in the middle of an epoch, which no size divides."""

OPTIMIZERS = {
    "plain": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.35},
    "rate": {"lr_schedule": lr_schedules.cosine(EPOCHS, warmup=0.5, floor=0.1)},
    "growing": {"global_batch": GROWING},
    "all": {
        "clip": 0.35,
        "lr_schedule": lr_schedules.step_decay(1, factor=0.5),
        "global_batch": GROWING,
    },
}


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def a_job(kind: str, option: str = "all", **changes: Any) -> Job:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    data = TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=generator))
    given: dict[str, Any] = {
        "model": a_model,
        "optimizer": OPTIMIZERS[kind],
        "loss": F.cross_entropy,
        "data": data,
        "validation": data,
        "global_batch": 37,
        "epochs": EPOCHS,
        "seed": SEED,
        "metrics": (),
    }
    return Job(**{**given, **OPTIONS[option], **changes})


def by_hand(kind: str, option: str = "all") -> dict[str, torch.Tensor]:
    """One worker with the whole batch, in plain PyTorch, each option written out."""
    chosen = OPTIONS[option]
    job = a_job(kind, option)
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    torch.manual_seed(SEED)
    model = a_model()
    optimizer = OPTIMIZERS[kind](model)
    first, limits = optimizer.param_groups[0]["lr"], []
    for epoch in range(EPOCHS):
        order, start = permutation(SAMPLES, SEED, epoch), 0
        while start < SAMPLES:
            done = epoch + start / SAMPLES
            whole = 37
            if "global_batch" in chosen:
                whole = 64 if done >= 1.6 else 37 if done >= 1 else 23
            batch = order[start : start + whole]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            if "clip" in chosen:
                norm = nn.utils.clip_grad_norm_(model.parameters(), chosen["clip"])
                limits.append(norm.item() > chosen["clip"])
            factor = chosen["lr_schedule"](done) if "lr_schedule" in chosen else 1.0
            optimizer.param_groups[0]["lr"] = first * factor * len(batch) / whole
            optimizer.step()
            start += len(batch)
    assert not limits or (any(limits) and not all(limits)), "clipping made no difference"
    return dict(model.state_dict())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "synchronous",
        "softsync(wait_for=4)",
        "central_storage",
        "hierarchical(outer=synchronous())",
        "hierarchical(outer=synchronous(), islands=3)",
    ],
)
def test_four_workers_in_lockstep_are_one_with_the_whole_batch(virtually, text, option, kind):
    done = virtually(a_job(kind, option), strategy(text), workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind, option)) <= 1e-9
    assert done.run.samples == EPOCHS * SAMPLES


@pytest.mark.parametrize("option", ["rate", "growing"])
@pytest.mark.parametrize(
    "text",
    [
        "synchronous(servers=3)",
        "averaging(1)",
        "ssp(0)",
        "ssp(staleness=0, servers=2)",
        "hierarchical(outer=averaging(every=1))",
    ],
)
def test_with_plain_sgd_these_are_one_worker_too(virtually, text, option):
    done = virtually(a_job("plain", option), strategy(text), workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("plain", option)) <= 1e-9


@pytest.mark.parametrize(
    "text", ["averaging(1)", "ssp(0)", "hierarchical(outer=averaging(every=1))"]
)
def test_parts_clipped_one_by_one_are_not_the_clipped_mean(virtually, text):
    done = virtually(a_job("plain", "clip"), strategy(text), workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("plain", "clip")) > 1e-4


ALONE = {
    "asynchronous": ["asynchronous(servers=3)", "asynchronous(damping=inverse)"],
    "diloco": ["diloco(every=5, outer_lr=1.0, outer_momentum=0.0)"],
    "gossip": ["gossip", "gossip(order=asynchronous)"],
    "softsync": ["softsync(wait_for=1)"],
    "hierarchical": ["hierarchical(outer=averaging(every=2))"],
    "easgd": [],  # the model is its centre, which follows the worker at a distance
}


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
@pytest.mark.parametrize("text", [text for one in ALL for text in ALONE.get(one.name, [one.name])])
def test_one_worker_is_single(virtually, text, kind):
    done = virtually(a_job(kind), strategy(text), workers=1, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9


@pytest.mark.parametrize("option", ["clip", "rate", "growing"])
def test_one_asynchronous_worker_is_single_with_each_option(virtually, option):
    done = virtually(a_job("adamw", option), strategy("asynchronous"), workers=1)
    assert distance(done.run.state_dict(), by_hand("adamw", option)) <= 1e-9


every = pytest.mark.parametrize("name", [one.name for one in ALL])


@every
def test_the_rate_is_that_of_the_place_in_the_run(virtually, name):
    # Whatever the strategy: nothing moves in the first epoch, and something does in the second.
    recipe = strategy("softsync(wait_for=2)" if name == "softsync" else name)
    first = virtually(a_job("plain", "rate", lr_schedule=lambda _: 0.0), recipe, workers=3)
    job = a_job("plain", "rate", lr_schedule=lambda epochs: float(epochs >= 1))
    one = virtually(replace(job, epochs=1), recipe, workers=3, seconds=UNEVEN)
    two = virtually(replace(job, epochs=2), recipe, workers=3, seconds=UNEVEN)
    assert distance(one.run.state_dict(), first.run.state_dict()) <= 1e-12
    assert distance(two.run.state_dict(), first.run.state_dict()) > 1e-3


@every
def test_no_step_is_longer_than_the_clip_allows(virtually, name):
    job = a_job("plain", "clip", clip=1e-6)
    still = virtually(replace(job, lr_schedule=lambda _: 0.0), strategy(name), workers=3)
    done = virtually(job, strategy(name), workers=3, seconds=UNEVEN)
    way = distance(done.run.state_dict(), still.run.state_dict())
    # Twelve steps and more of 0.1 · 1e-6 at most; an outer momentum of 0.9 carries on further.
    assert 1e-9 < way < 2e-5


@every
def test_a_growing_batch_deals_every_sample_once(virtually, name):
    job = a_job("plain", "growing")
    done = virtually(job, strategy(name), workers=3, seconds=UNEVEN)
    assert done.run.samples == EPOCHS * SAMPLES
    if name != "diloco":
        assert done.run.metrics["loss"] < 1.2


@pytest.mark.parametrize("text", ["synchronous(servers=2)", "softsync(wait_for=1, servers=2)"])
def test_a_mean_that_no_server_has_whole_cannot_be_clipped(virtually, text):
    with pytest.raises(
        ValueError, match=r"needs the norm of the whole mean gradient.*use servers=1"
    ):
        virtually(a_job("plain", "clip"), strategy(text), workers=2)
    done = virtually(a_job("plain", "rate"), strategy(text), workers=1)
    assert distance(done.run.state_dict(), by_hand("plain", "rate")) <= 1e-9


@pytest.mark.parametrize("text", ["asynchronous", "synchronous", "ssp(0)"])
def test_a_server_that_comes_back_goes_on_where_it_was(virtually, text):
    crashes = "[crash(server=0, at=0.45, restart=0.2), crash(server=0, at=1.23, restart=0.5)]"
    done = virtually(a_job("adamw"), strategy(text), workers=1, faults=crashes)
    assert distance(done.run.state_dict(), by_hand("adamw")) <= 1e-9


@pytest.mark.parametrize("text", ["synchronous", "averaging(2)", "softsync(wait_for=2)", "gossip"])
def test_whoever_dies_every_sample_is_seen(virtually, text):
    crashes = "[crash(worker=1, at=0.33), crash(worker=2, at=0.5, restart=6.0)]"
    job = a_job("plain")
    done = virtually(job, strategy(text), workers=4, seconds=UNEVEN, faults=crashes, detection=0.7)
    leases = done.world.coordinator.leases
    assert leases.committed + leases.lost == EPOCHS * SAMPLES
    assert done.run.metrics["loss"] < 1.3
