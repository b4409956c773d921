"""Virtual runs store checkpoints, and continue from those of live and virtual runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import manyhands as mh
from manyhands.files.checkpoints import CHECKPOINTS, Checkpoint, generations
from manyhands.protocols import Asynchronous
from manyhands.reports import Run
from manyhands.reports.figures.speed import throughput
from manyhands.trace import digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES, BATCH = 96, 12
NEVER = mh.every(samples=10**9)
"""A checkpoint at the end alone."""

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def points(samples: int = SAMPLES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)


def a_job(kind: str = "momentum", **changes: Any) -> mh.Job:
    """A small classification; its model draws random numbers."""
    given: dict[str, Any] = {
        "model": a_model,
        "optimizer": OPTIMIZERS[kind],
        "loss": F.cross_entropy,
        "data": TensorDataset(*points()),
        "metrics": (),
        "global_batch": BATCH,
        "samples": 2 * SAMPLES,
        "seed": 5,
        "checkpoint": NEVER,
    }
    return mh.Job(**(given | changes))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Simulate a job in a new folder."""
    made = 0

    def simulate(job: mh.Job, how: str = "single()", workers: int = 1, **options: Any) -> Run:
        nonlocal made
        made += 1
        return mh.simulate(job, how, workers=workers, output=tmp_path / f"run-{made}", **options)

    return simulate


def apart(one: Run, other: Run) -> float:
    """The largest difference between the parameters of two runs."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


MIDDLE = SAMPLES + 3 * BATCH
"""In the middle of an epoch, where a global batch ends."""


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    ("how", "workers", "samples"),
    [
        ("single()", 1, MIDDLE),
        ("synchronous()", 3, MIDDLE),
        ("synchronous(servers=2)", 4, MIDDLE),
        ("allreduce()", 2, MIDDLE),
        ("allreduce(algorithm=tree)", 4, MIDDLE),
        ("zero(stage=1)", 2, MIDDLE),
        # Where replicas develop on their own, the end of a run brings them together, as an
        # evaluation does: at the end of an epoch both runs have one.
        ("diloco(every=3)", 3, SAMPLES),
        ("averaging(every=2)", 3, SAMPLES),
        ("gossip()", 4, SAMPLES),
        ("synchronous(codec=topk(0.3))", 3, SAMPLES),
    ],
)
def test_a_continued_run_is_the_uninterrupted_one_to_the_bit(
    run, how, workers, samples, kind
) -> None:
    job = a_job(kind, validation=TensorDataset(*points(40)))
    whole = run(job, how, workers)
    part = run(job, how, workers, samples=samples)
    rest = run(job, how, workers, resume=part.folder)
    assert apart(whole, rest) == 0.0
    assert apart(whole, part) > 0.0
    assert rest.samples == whole.samples == 2 * SAMPLES
    assert rest.metrics == whole.metrics


@pytest.mark.parametrize(
    ("how", "workers"),
    [("single()", 1), ("allreduce()", 2), ("asynchronous()", 3), ("ssp(staleness=2)", 3)],
)
def test_two_continuations_are_the_same_to_the_bit(run, how, workers) -> None:
    job = a_job("adam")
    part = run(job, how, workers, samples=SAMPLES)
    one, other = (run(job, how, workers, resume=part.folder) for _ in range(2))
    assert apart(one, other) == 0.0
    assert digest(one.trace) == digest(other.trace)


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("asynchronous()", 3),
        ("ssp(staleness=2)", 3),
        ("ssp(staleness=0)", 3),
        ("diloco(every=2)", 3),
        ("diloco(every=4, fragments=2, overlap=1)", 3),
        ("gossip()", 4),
        ("gossip(order=asynchronous)", 4),
        ("easgd(every=2)", 3),
        ("hogwild()", 2),
        ("push_sum()", 3),
        ("broadcast()", 3),
        ("ensemble()", 2),
        ("hierarchical(islands=2, outer=diloco(every=2))", 4),
    ],
)
def test_a_continued_run_trains_the_rest_of_the_samples_once(
    run, how, workers, monkeypatch
) -> None:
    # It calls the loss too, before the run.
    monkeypatch.setattr("manyhands.virtual.run._check_division", lambda *_: None)
    seen: list[int] = []

    def loss(outputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.extend(numbers.tolist())
        return F.cross_entropy(outputs, labels[numbers])

    size = 10 * SAMPLES
    inputs, labels = points(size)
    data = TensorDataset(inputs, torch.arange(size))
    job = a_job(loss=loss, data=data, validation=data, samples=size)
    # With more, the outer momentum of diloco is too much.
    part = run(job, how, workers, samples=5 * BATCH + 5, lr="0.1x")
    assert len(seen) == len(set(seen)) == 5 * BATCH + 5
    rest = run(job, how, workers, resume=part.folder, lr="0.1x")
    assert Counter(seen) == Counter(range(size))
    assert rest.samples == size
    assert rest.metrics["loss"] < part.metrics["loss"]


def test_the_state_goes_to_other_strategies_and_numbers_of_workers(run) -> None:
    job = a_job("adam", model=lambda: nn.Linear(6, 3).double())
    job = replace(job, data=TensorDataset(points()[0].double(), points()[1]))
    whole = run(job)
    for how, workers in (("synchronous(servers=2)", 3), ("allreduce()", 4), ("single()", 1)):
        part = run(job, how, workers, samples=SAMPLES)
        for after, others in (("single()", 1), ("allreduce()", 2), ("synchronous()", 2)):
            rest = run(job, after, others, resume=part.folder)
            assert apart(whole, rest) <= 1e-12


def test_the_optimizer_is_the_jobs_and_its_state_the_checkpoints(run) -> None:
    job = a_job("momentum", model=lambda: nn.Linear(6, 3))
    part = run(job, samples=SAMPLES)
    still = run(job, resume=part.folder, lr=1e-12, samples=SAMPLES + BATCH)
    assert apart(still, part) < 1e-6
    same = run(job, resume=part.folder, samples=SAMPLES + BATCH)
    twice = run(job, resume=part.folder, lr="2x", samples=SAMPLES + BATCH)
    # One step of the stored momentum.
    assert apart(twice, part) == pytest.approx(2 * apart(same, part), rel=1e-4)
    anew = run(replace(job, start=part.folder, samples=BATCH))
    assert apart(same, part) > 1.5 * apart(anew, part)


def test_checkpoints_in_the_middle_change_no_number(run) -> None:
    job = a_job("adam")
    whole = run(job, "synchronous()", 3)
    often = run(replace(job, checkpoint=mh.every(steps=3), keep=2), "synchronous()", 3)
    assert apart(whole, often) == 0.0
    # Of those after 108, 144 and 180 samples, and at the end.
    stored = generations(often.folder / CHECKPOINTS)
    assert [int(path.name) for path in stored] == [2 * SAMPLES, 180]
    for path in stored:
        Checkpoint(path).verify()
    rest = run(job, "synchronous()", 3, resume=stored[1])
    assert apart(whole, rest) == 0.0


def test_checkpoints_by_the_virtual_clock(run) -> None:
    job = a_job(checkpoint=mh.every(seconds=0.46), keep=9)
    often = run(job, times="constant(0.1)")
    stored = [Checkpoint(path).manifest for path in generations(often.folder / CHECKPOINTS)]
    assert [one.samples for one in stored[::-1]] == [60, 120, 168, 192]
    assert [one.seconds for one in stored[::-1]] == pytest.approx([0.5, 1.0, 1.4, 1.6])
    rest = run(job, times="constant(0.1)", resume=often.folder, samples=3 * SAMPLES)
    last = Checkpoint.latest(rest.folder).manifest
    assert last.seconds == pytest.approx(2.4)


def test_a_limit_in_seconds_counts_those_before(run) -> None:
    job = replace(a_job(), samples=None, seconds=1.0)
    part = run(job, times="constant(0.1)", samples=5 * BATCH)
    rest = run(job, times="constant(0.1)", resume=part.folder, seconds=1.0)
    assert rest.seconds == pytest.approx(0.5, abs=0.11)
    assert rest.samples <= 11 * BATCH


def test_a_run_that_ends_within_a_batch_stores_nothing_then(virtually) -> None:
    job = replace(a_job(), samples=None, seconds=0.05)
    done = virtually(job, Asynchronous(), workers=2, seconds="constant(0.1)")
    assert done.run.samples == BATCH
    assert done.events("not stored") == []
    job = replace(job, global_batch=13)
    done = virtually(
        job, Asynchronous(), workers=3, seconds="constant(0.1)", faults="crash(worker=1, at=0.06)"
    )
    assert done.run.samples < 13
    assert len(done.events("not stored")) == 1
    assert not (done.run.folder / CHECKPOINTS).exists()


@pytest.mark.parametrize("how", ["asynchronous()", "synchronous()", "gossip()"])
def test_workers_and_the_coordinator_may_crash(run, how) -> None:
    faults = "[coordinator_crash(at=0.31, restart=0.2), crash(worker=1, at=0.55, restart=0.3)]"
    job = a_job(checkpoint=mh.every(steps=2), samples=4 * SAMPLES)
    part = run(job, how, 3, faults=faults, detection=0.1, samples=SAMPLES + BATCH)
    assert Checkpoint.latest(part.folder).samples == SAMPLES + BATCH
    rest = run(job, how, 3, faults=faults, detection=0.1, resume=part.folder)
    assert rest.samples == 4 * SAMPLES


def test_a_stream_continues_at_its_sample(run) -> None:
    class Points(IterableDataset[Any]):
        def __iter__(self):
            for number, point in enumerate(points(200)[0]):
                yield point + torch.rand(()), number % 3

    job = a_job(data=Points(), samples=10**6, model=lambda: nn.Linear(6, 3))
    whole = run(job, "synchronous()", 2)
    part = run(job, "synchronous()", 2, samples=5 * BATCH)
    rest = run(job, "synchronous()", 2, resume=part.folder)
    assert apart(whole, rest) == 0.0
    assert rest.samples == 200


def test_what_depends_on_evaluations_continues(run) -> None:
    def plateau(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)

    job = a_job(
        validation=TensorDataset(*points(40)),
        evaluate_every=mh.every(samples=2 * BATCH),
        lr_scheduler=plateau,
        early_stopping=mh.EarlyStopping(patience=4, min_delta=0.1),
        samples=20 * SAMPLES,
    )
    whole = run(job)
    assert whole.samples < 20 * SAMPLES
    part = run(job, samples=4 * BATCH)
    rest = run(job, resume=part.folder)
    assert rest.samples == whole.samples
    assert apart(whole, rest) == 0.0


def test_times_alone_are_those_with_checkpoints(run) -> None:
    job = a_job(checkpoint=mh.every(steps=2))
    for how, workers in (("asynchronous()", 3), ("allreduce()", 2)):
        numbers = run(job, how, workers)
        times = run(job, how, workers, time_only=True)
        assert times.seconds == numbers.seconds
        assert not (times.folder / CHECKPOINTS).exists()


def test_what_is_impossible_is_refused_in_words(run) -> None:
    part = run(a_job())
    with pytest.raises(ValueError, match=r"time-only run has no parameters.*leave out time_only"):
        run(a_job(), resume=part.folder, time_only=True)
    with pytest.raises(ValueError, match="time-only run has no parameters"):
        run(a_job(), checkpoint="2 steps", time_only=True)
    plain = run(replace(a_job(), checkpoint=None))
    assert not (plain.folder / CHECKPOINTS).exists()
    with pytest.raises(ValueError, match=r"has no checkpoint: runs store them with Job\(checkp"):
        run(a_job(), resume=plain.folder)
    with pytest.raises(ValueError, match="does not fit the model"):
        run(a_job(model=lambda: nn.Linear(6, 4)), resume=part.folder)


def test_the_trace_names_the_checkpoint(run) -> None:
    part = run(a_job(), samples=SAMPLES)
    rest = run(a_job(), resume=part.folder, seed=6)
    told = {one.name: one.value for each in rest.trace.processes for one in each.settings}
    assert f"{SAMPLES} samples" in told["resumed"]
    assert told["changed since"] == "seed was 5, and is 6"


SCRIPT = """
    import sys
    import torch
    import manyhands as mh

    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=source)
    targets = torch.randint(0, 4, (200,), generator=source)
    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.02),
        loss=torch.nn.functional.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=12,
        samples=480,
        metrics=(),
        checkpoint=mh.every(steps=5),
    )

    if __name__ == "__main__":
        how, workers = sys.argv[1], int(sys.argv[2])
        mh.train(job, how, workers=workers, output="part", samples=260)
        mh.train(job, how, workers=workers, output="live", resume="part")
        mh.simulate(job, how, workers=workers, output="virtual", resume="part")
        mh.train(job, how, workers=workers, output="again", resume="virtual", samples=600)
        mh.simulate(job, how, workers=workers, output="further", resume="virtual", samples=600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workers"),
    [("single()", 1), ("synchronous(servers=2)", 2), ("diloco(every=3)", 2), ("gossip()", 2)],
)
def test_live_and_virtual_runs_continue_each_other(run_script, how, workers) -> None:
    started = run_script(SCRIPT, how, str(workers))
    assert started.finish() == 0, started.text()
    folder = started.folder
    assert apart(Run(folder / "live"), Run(folder / "virtual")) == 0.0
    assert apart(Run(folder / "again"), Run(folder / "further")) == 0.0
    assert Run(folder / "again").samples == Run(folder / "further").samples == 600


def test_the_speed_of_a_continued_run_is_that_of_its_own_samples(run) -> None:
    first = run(a_job(), times="constant(0.1)")
    again = run(a_job(), times="constant(0.1)", samples=2 * first.samples, resume=first.folder)
    begun, continued = throughput(first.trace), throughput(again.trace)
    assert continued.samples == begun.samples
    assert continued.rate == pytest.approx(begun.rate, rel=0.02)
    assert f"after the {first.samples} of the checkpoint" in " ".join(again.summary().split())
