"""Measures a job on this machine, with the processes of real runs.

Every figure is read from the trace of a run, so what is measured is what a worker does: loading,
forward and backward pass, optimizer, with the threads that workers have. One run under `single()`
for each of a few batch sizes; one of as many members of an ensemble as there are cores, which do
not communicate, for what they cost each other; two through a server, and two with collectives.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.costs import PieceTime
from manyhands.failure import RunFailed
from manyhands.lab.break_even.codecs import break_even
from manyhands.lab.calibration.calibration import Calibration, ComputeTime
from manyhands.lab.launcher import end, start
from manyhands.lab.machine import this_machine
from manyhands.live.agent.memory_check import model_bytes
from manyhands.placements.model.sample_batch import example
from manyhands.reports import Run
from manyhands.splitting import chain
from manyhands.splitting import measure as measure_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from manyhands.job import Job
    from manyhands.trace import ProcessTrace

SECONDS: Final = 4.0
"""How long each run trains."""
_MOST_STEPS: Final = 400
_LONGEST: Final = 600.0
CODECS: Final = ("int8()", "topk(0.01)")
"""Codecs that are measured: those that a plan considers."""
_NETWORK: Final = "1gbit"
_LEAST_SERVED: Final = 0.1
"""Of an exchange, the least part that is taken for the server's."""
_PIECES: Final = 32
"""Pieces of a model that are measured, if it has as many: those of a pipeline of eight stages."""
_FIRST: Final = 3
"""Steps at the beginning that are not counted."""


def measure(
    job: Job,
    script: Sequence[str],
    name: str,
    *,
    sizes: Iterable[int] | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure a job here.

    Args:
        job: the job.
        script: its script and the arguments of it.
        name: the job's name in the script.
        sizes: sizes of batches to measure; by default a few from an eighth of the global batch on.
        seconds: how long each run trains.
        tell: receives what is measured at the moment.

    Raises:
        RunFailed: a run failed; the message has the last line of its log.
    """
    batch = job.batch_sizes.at(0)
    chosen = sorted({max(1, size) for size in sizes or (batch // 8, batch // 4, batch // 2, batch)})
    machine = this_machine()
    cores = machine.cores or 1
    with tempfile.TemporaryDirectory(prefix="manyhands-calibrate-") as place:
        runs = _Runs(Path(place), script, name, seconds)
        compute = []
        for size in chosen:
            tell(f"batches of {size} samples on one worker")
            compute.append(compute_time(size, runs.make("single()", 1, size).trace.workers))
        usual = compute[len(compute) // 2]
        sharing = exchange = collective = sharded = 0.0
        if cores > 1:
            tell(f"{cores} workers that do not communicate")
            trace = runs.make("ensemble()", cores, usual.samples * cores).trace
            own = [compute_time(usual.samples, [one]).seconds for one in trace.workers]
            sharing = statistics.mean(own) / usual.seconds
            tell("two workers with allreduce")
            two = runs.make("allreduce()", 2, 2 * usual.samples)
            collective = max(0.0, step_seconds(two) - max(1.0, sharing) * usual.whole)
            tell("two workers with sharded parameters")
            sharded = _sharded(runs, 2 * usual.samples, max(1.0, sharing) * usual.whole)
        tell("a worker and a server")
        served = None
        exchange = max(
            0.0, step_seconds(runs.make("asynchronous()", 1, usual.samples)) - usual.whole
        )
        if cores > 1:
            tell("two workers and a server")
            two = runs.make("synchronous()", 2, 2 * usual.samples)
            # Both exchange at the same time: one of them waits while the server serves the other.
            later = step_seconds(two) - max(1.0, sharing) * usual.whole - exchange
            served = min(max(_LEAST_SERVED * exchange, later), exchange)
    tell("pieces of the model")
    pieces = piece_times(job, usual.samples)
    tell("codecs")
    return Calibration(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        job=name,
        parameters=model_bytes(job),
        compute=tuple(compute),
        sharing=max(1.0, sharing),
        exchange=exchange,
        served=served,
        collective=collective,
        sharded=sharded,
        pieces=pieces,
        coding=_coding(job),
        machine=machine,
        script=script[0],
    )


def _sharded(runs: _Runs, batch: int, alone: float) -> float:
    """Seconds that a step takes longer if parameters are sharded; 0 if they cannot be."""
    try:
        return max(0.0, step_seconds(runs.make("fully_sharded()", 2, batch)) - alone)
    except RunFailed:
        return 0.0


def piece_times(job: Job, samples: int) -> tuple[PieceTime, ...]:
    """The times of the pieces that a pipeline's stages consist of; none if it takes no such model.

    They are measured as a pipeline measures them at its start. A model with which that fails is one
    that no pipeline can train, and no reason to refuse a calibration.
    """
    if job.objective is not None:
        return ()
    try:
        model, inputs = job.model(), example(job, samples)
        pieces = chain(model, inputs, _PIECES)
        return tuple(
            PieceTime(first, cost.forward, cost.backward)
            for first, cost in zip(pieces.first_layers, measure_cost(pieces, inputs), strict=True)
        )
    except (ValueError, TypeError, RuntimeError):
        return ()


def _coding(job: Job) -> dict[str, float]:
    """By codec, bytes of vectors per second at which it encodes and decodes a job's gradients."""
    try:
        found = break_even(job, CODECS, (_NETWORK,), workers=2)
    except (ValueError, TypeError, NotImplementedError):
        return {}  # gradients of such a job cannot be computed beside a run
    return {
        str(one.codec): 2 * one.cost.dense / one.cost.seconds
        for one in found.codecs
        if one.cost.seconds > 0
    }


class _Runs:
    """Makes live runs of a script, each in a folder of its own."""

    def __init__(self, place: Path, script: Sequence[str], name: str, seconds: float) -> None:
        self._place = place
        self._script = script
        self._name = name
        self._seconds = seconds
        self._made = 0

    def make(self, strategy: str, workers: int, batch: int) -> Run:
        """A run with a global batch of so many samples."""
        self._made += 1
        folder = self._place / f"{self._made}"
        log = folder.with_suffix(".log")
        path, *arguments = self._script
        command = [sys.executable, "-m", "manyhands", "train", path, "--job", self._name]
        command += ["--strategy", strategy, "--workers", str(workers), "--output", str(folder)]
        command += ["--seconds", f"{self._seconds:g}", "--samples", str(batch * _MOST_STEPS)]
        command += ["--timed-batch", str(batch), "--quiet"]
        command += ["--", *arguments] if arguments else []
        process = start(command, log)
        try:
            code = process.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"calibration: {strategy} did not end in {_LONGEST:.0f} s") from None
        finally:
            end(process)
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunFailed(f"calibration: {strategy} failed: {lines[-1] if lines else code}")
        return Run(folder)


def compute_time(samples: int, workers: Sequence[ProcessTrace]) -> ComputeTime:
    """The times of the batches of workers, by the spans of their traces."""
    steps = [one for worker in workers for one in _by_step(worker, "compute")[_FIRST:]]
    loads = [one for worker in workers for one in _by_step(worker, "data")[_FIRST:]]
    if not steps:
        raise RunFailed(f"calibration: no batch of {samples} samples was trained on in time")
    steps.sort()
    cut = len(steps) // 100
    kept = steps[cut : len(steps) - cut]
    mean = statistics.fmean(kept)
    spread = statistics.pstdev(kept) / mean if len(kept) > 1 and mean else 0.0
    return ComputeTime(
        samples=samples,
        seconds=statistics.median(kept),
        cv=spread,
        data=statistics.median(loads) if loads else 0.0,
        steps=len(steps),
    )


def _by_step(worker: ProcessTrace, kind: str) -> list[float]:
    """Seconds of a kind in each step."""
    found: dict[int, float] = {}
    for span in worker.spans:
        if span.kind == kind and span.step is not None:
            found[span.step] = found.get(span.step, 0.0) + span.seconds
    return [found[step] for step in sorted(found)]


def step_seconds(run: Run) -> float:
    """The median seconds from one step to the next, of the first worker."""
    worker = run.trace.workers[0]
    begins: dict[int, float] = {}
    for span in worker.spans:
        if span.kind in ("compute", "data") and span.step is not None:
            begins.setdefault(span.step, span.start)
    at = [begins[step] for step in sorted(begins)][_FIRST:]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    return statistics.median(gaps) if gaps else 0.0
