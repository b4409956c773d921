"""Updates with NaN or infinity are refused, counted and named, under every protocol."""

import pytest
import torch
from benchmarks.attackers import Attacked
from torch import nn
from torch.utils.data import TensorDataset
from virtual_jobs import a_job

from manyhands.protocols import ALL
from manyhands.reports.figures.outcome import refusals
from manyhands.reports.figures.speed import accounting
from manyhands.sampling.permutation import permutation
from manyhands.strategies import strategy

BROKEN = 37
"""The sample that is not a number."""
EVERY = [
    *(cls.name for cls in ALL),
    "synchronous(servers=2)",
    "synchronous(codec=topk(0.5))",
    "asynchronous(codec=int8())",
    "averaging(every=4, codec=int8())",
    "easgd(codec=topk(0.5))",
    "easgd(order=round_robin)",
    "easgd(order=asynchronous)",
    "gossip(order=asynchronous)",
    "diloco(every=4, fragments=2)",
    "diloco(every=4, wait_for=2)",
    "hierarchical(outer=synchronous())",
    "hierarchical(outer=averaging(every=2))",
    "softsync(wait_for=2)",
    "softsync(wait_for=2, late=drop)",
    "ssp(staleness=0)",
]


def broken(value: float = float("nan"), **changes):
    """A job with one sample that is not finite, which goes on."""
    inputs, targets = a_job().data.tensors
    inputs = inputs.clone()
    inputs[BROKEN, 2] = value
    return a_job(data=TensorDataset(inputs, targets), stop_on_nan=False, **changes)


def is_finite(done) -> bool:
    return all(value.isfinite().all() for value in done.run.state_dict().values())


@pytest.mark.parametrize("text", EVERY)
def test_one_sample_that_is_not_a_number_harms_nothing_else(virtually, text) -> None:
    done = virtually(broken(), strategy(text))
    assert is_finite(done)
    assert done.run.status == "finished"
    found = refusals(done.run.trace)
    assert sum(one.updates for one in found) == 2, "one in each of two epochs"
    assert {one.what for one in found} == {"NaN"}
    lost = sum(one.samples for one in found)
    assert lost == 10, "the share of one worker, twice"
    kept = accounting(done.run.trace)
    assert kept.seen + (kept.lost or 0) == 400, "they are counted, and not as trained on"
    assert kept.lost == lost or "late=drop" in text
    assert "had NaN and w" in done.run.summary()
    for one in done.events("refused"):
        if "start" in one:
            order = permutation(200, 1, int(one["epoch"]))[int(one["start"]) : int(one["stop"])]
            assert BROKEN in order.tolist(), "the samples are named"


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_infinity_is_named_as_what_it_becomes(virtually, value) -> None:
    done = virtually(broken(value), strategy("synchronous"))
    assert is_finite(done)
    assert sum(one.updates for one in refusals(done.run.trace)) == 2


@pytest.mark.parametrize(
    "text", ["synchronous", "asynchronous", "averaging", "ensemble", "hogwild"]
)
def test_one_worker_trains_as_if_the_batch_was_not_there(virtually, text) -> None:
    job = broken(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    done = virtually(job, strategy(text), workers=1)
    inputs, targets = job.data.tensors
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    state = done.run.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        order = permutation(200, 1, epoch)
        for start in range(0, 200, 20):
            chosen = order[start : start + 20]
            if BROKEN in chosen.tolist():
                continue
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[chosen]), targets[chosen]).backward()
            optimizer.step()
    for name, value in model.state_dict().items():
        assert (state[name] - value).abs().max() < 1e-5


def test_the_other_workers_of_a_round_are_averaged_without_it(virtually) -> None:
    """Two of four workers send NaN in every step: the others are as many as there are."""
    done = virtually(a_job(), Attacked(liars=2, nan=True), workers=4)
    assert is_finite(done)
    found = refusals(done.run.trace)
    assert {one.worker: one.updates for one in found} == {0: 20, 1: 20}
    assert done.run.samples == 200
    assert done.run.trace is not None
    weight = done.run.state_dict()["weight"]
    clean = virtually(a_job(), strategy("synchronous"), workers=4).run.state_dict()["weight"]
    assert (weight - clean).abs().max() < 0.5


@pytest.mark.parametrize("text", ["synchronous", "averaging", "gossip", "asynchronous"])
def test_statistics_of_batch_norm_are_not_kept_either(virtually, text) -> None:
    job = broken(model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    done = virtually(job, strategy(text))
    assert is_finite(done)
    assert sum(one.updates for one in refusals(done.run.trace)) == 2


def test_a_codec_keeps_no_residual_of_it(virtually) -> None:
    done = virtually(broken(), strategy("synchronous(codec=topk(0.25))"))
    points = [point for process in done.run.trace.processes for point in process.points]
    norms = [point.value for point in points if point.name == "residual/end"]
    assert norms
    assert all(norm is not None and norm < 100 for norm in norms)


@pytest.mark.parametrize("text", ["synchronous", "asynchronous", "averaging(every=2)"])
def test_a_server_that_crashes_gives_the_same_result(virtually, text) -> None:
    quiet = virtually(broken(), strategy(text), workers=1)
    faults = "[crash(server=0, at=0.42, restart=0.1), crash(server=0, at=1.35, restart=0.1)]"
    crashed = virtually(broken(), strategy(text), workers=1, faults=faults)
    mine, its = quiet.run.state_dict(), crashed.run.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    assert refusals(quiet.run.trace) == refusals(crashed.run.trace)


def test_a_run_is_the_same_twice(virtually) -> None:
    one, other = (virtually(broken(), strategy("softsync(wait_for=3)")) for _ in range(2))
    assert one.digest == other.digest


def test_a_clean_run_has_no_line_about_it(virtually) -> None:
    done = virtually(a_job(), strategy("synchronous"))
    assert refusals(done.run.trace) == ()
    assert "not applied" not in done.run.summary()


def test_many_refusals_leave_a_small_trace_and_exact_counts(virtually) -> None:
    job = a_job(epochs=50)
    done = virtually(job, Attacked(liars=1, nan=True), workers=2)
    (found,) = refusals(done.run.trace)
    assert (found.updates, found.samples) == (500, 5000)
    assert len(done.events("refused")) < 500
