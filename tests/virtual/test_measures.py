"""Norms of gradients, distances between replicas and staleness, on a virtual clock."""

from typing import Any

import pytest
import torch
from virtual_jobs import a_job

import manyhands as mh
from manyhands.parameters import Layout
from manyhands.reports import RunResult, measure
from manyhands.virtual.worker.measures import spread

ALL = ("gradient_norm", "spread", "staleness")


def run(folder: Any, strategy: str, workers: int = 3, **changes: Any) -> RunResult:
    job = a_job(**{"validation": a_job().data, "measures": ALL, "epochs": 3} | changes)
    return measure(mh.simulate(job, strategy, workers=workers, output=folder).trace)


def test_distances_are_those_of_their_definition() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    layout = Layout.of(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    flats = [torch.randn(layout.nbytes // 4) for _ in range(4)]
    replicas = [layout.split(flat.view(torch.uint8)) for flat in flats]
    mean, largest = spread(layout, replicas)
    stacked = torch.stack(flats).double()
    size = sum(parameter.numel() for parameter in model.parameters())
    assert stacked.shape[1] == size
    to_mean = (stacked - stacked.mean(0)).norm(dim=1).mean().item()
    assert mean == pytest.approx(to_mean)
    assert largest == pytest.approx(torch.cdist(stacked, stacked).max().item())
    assert spread(layout, replicas[:1]) == (0.0, 0.0)


def test_the_norm_is_that_of_a_plain_loop(tmp_path) -> None:
    """One worker and one batch per epoch: the gradient of the whole data."""
    made = run(tmp_path, "synchronous()", workers=1, global_batch=200, clip=0.1)
    job = a_job(global_batch=200)
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model)
    inputs, targets = job.data.tensors
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    assert made.measures["gradient_norm"].value == pytest.approx(norms, rel=1e-5)


def test_replicas_differ_where_workers_step_for_themselves(tmp_path) -> None:
    lockstep = run(tmp_path / "a", "synchronous()").measures
    assert set(lockstep["spread"].value) == {0.0}
    apart = run(tmp_path / "b", "averaging(every=5)").measures
    assert min(apart["spread"].value) > 0
    assert all(
        most > mean
        for most, mean in zip(apart["spread_most"].value, apart["spread"].value, strict=True)
    )
    assert apart["spread"].samples == (200, 400, 600)


def test_staleness_over_time_is_that_of_the_whole_run(tmp_path) -> None:
    made = run(tmp_path, "asynchronous()")
    mean = sum(made.measures["staleness"].value) / 3
    assert made.staleness is not None
    assert mean == pytest.approx(made.staleness.mean, rel=0.05)
    assert made.staleness.mean > 1


def test_what_is_not_asked_for_is_not_recorded(tmp_path) -> None:
    made = run(tmp_path, "asynchronous()", measures=())
    assert made.measures == {}
    only = run(tmp_path / "b", "asynchronous()", measures=["staleness"])
    assert set(only.measures) == {"staleness"}


def test_measuring_does_not_change_the_run(tmp_path) -> None:
    with_, without = run(tmp_path / "a", "gossip()"), run(tmp_path / "b", "gossip()", measures=())
    assert with_.validation == without.validation


def test_what_cannot_be_measured_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="share one copy of the parameters"):
        run(tmp_path, "hogwild()")
    with pytest.raises(ValueError, match="did you mean 'spread'"):
        a_job(validation=a_job().data, measures=("spred",))
    with pytest.raises(ValueError, match="give validation data"):
        a_job(measures=("spread",))
    for strategy, measures, words in (
        ("asynchronous()", "spread", "simulation only"),
        ("fully_sharded()", "gradient_norm", "no worker has the whole gradient"),
    ):
        job = a_job(validation=a_job().data)
        with pytest.raises(mh.Refused, match=words):
            mh.train(job, strategy, workers=2, measures=measures)
