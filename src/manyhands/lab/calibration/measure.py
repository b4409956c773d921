"""Measures a job on this machine, with the processes of real runs.

Every figure is read from the trace of a run, so what is measured is what a worker does: loading,
forward and backward pass, optimizer, with the threads that workers have. One run under `single()`
for each of a few batch sizes; one of as many members of an ensemble as there are cores, which do
not communicate, for what they cost each other; two through a server, and two with collectives. What
they give if some of them fail, or other programs compute meanwhile, is decided in `figures`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.costs import PieceTime
from manyhands.failure import RunFailed
from manyhands.lab.break_even.codecs import break_even
from manyhands.lab.calibration.calibration import Calibration
from manyhands.lab.calibration.figures import figures
from manyhands.lab.calibration.load import slowdown, use
from manyhands.lab.calibration.timed_run import NoTimeLeft, timed
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
    from manyhands.lab.calibration.timed_run import TimedRun

SECONDS: Final = 4.0
"""How long each run trains."""
_MOST_STEPS: Final = 400
_LONGEST: Final = 600.0
"""Seconds after which no further run begins, unless runs are asked to be longer."""
_TIMES_LONGEST: Final = 60
"""The same, as a multiple of the seconds of each run."""
_LEAST_LIMIT: Final = 30.0
CODECS: Final = ("int8()", "topk(0.01)")
"""Codecs that are measured: those that a plan considers."""
_NETWORK: Final = "1gbit"
_PIECES: Final = 32
"""Pieces of a model that are measured, if it has as many: those of a pipeline of eight stages."""


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

    It ends within some ten minutes whatever the load, or sixty times `seconds`. What could not be
    measured is named in `missing`.

    Raises:
        RunFailed: not one batch could be measured; the message has the last line of each log.
    """
    batch = job.batch_sizes.at(0)
    chosen = sorted({max(1, size) for size in sizes or (batch // 8, batch // 4, batch // 2, batch)})
    machine = this_machine()
    cores = machine.cores or 1
    until = time.monotonic() + max(_LONGEST, _TIMES_LONGEST * seconds)
    with tempfile.TemporaryDirectory(prefix="manyhands-calibrate-") as place:
        runs = _Runs(Path(place), script, name, seconds, cores, until)
        found = figures(runs, chosen, cores, tell)
    usual = found.compute[len(found.compute) // 2]
    missing, before = list(found.missing), use()
    pieces: tuple[PieceTime, ...] = ()
    coding: dict[str, float] = {}
    if time.monotonic() < until:
        tell("pieces of the model")
        pieces = piece_times(job, usual.samples)
        tell("codecs")
        coding = _coding(job)
    else:
        missing.append("pieces of the model, and codecs: no time was left for them")
    return Calibration(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        job=name,
        parameters=model_bytes(job),
        compute=found.compute,
        sharing=found.sharing,
        exchange=found.exchange,
        served=found.served,
        collective=found.collective,
        sharded=found.sharded,
        missing=tuple(missing),
        slowdown=max(found.slowdown, slowdown(before, use(), cores)),
        noise=found.noise,
        pieces=pieces,
        coding=coding,
        machine=machine,
        script=script[0],
    )


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
    """Makes live runs of a script, each in a folder of its own, until a moment.

    Args:
        place: folder of the runs.
        script: the script and its arguments.
        name: the job's name in it.
        seconds: how long each run trains.
        cores: cores of this machine.
        until: when the last one must have ended, by the monotonic clock.
    """

    def __init__(
        self,
        place: Path,
        script: Sequence[str],
        name: str,
        seconds: float,
        cores: int,
        until: float,
    ) -> None:
        self._place = place
        self._script = script
        self._name = name
        self._seconds = seconds
        self._cores = cores
        self._until = until
        self._made = 0

    def __call__(self, strategy: str, workers: int, batch: int, longer: float) -> TimedRun:
        """The times of a run with a global batch of so many samples."""
        left = self._until - time.monotonic()
        if left < self._seconds * longer:
            raise NoTimeLeft("no time was left for it")
        self._made += 1
        folder = self._place / f"{self._made}"
        log = folder.with_suffix(".log")
        path, *arguments = self._script
        command = [sys.executable, "-m", "manyhands", "train", path, "--job", self._name]
        command += ["--strategy", strategy, "--workers", str(workers), "--output", str(folder)]
        command += ["--seconds", f"{self._seconds * longer:g}"]
        command += ["--samples", str(batch * _MOST_STEPS)]
        command += ["--timed-batch", str(batch), "--quiet"]
        command += ["--", *arguments] if arguments else []
        before = use()
        process = start(command, log)
        code: int | None = None
        limit = max(_LEAST_LIMIT, left / 3)
        # No run takes more than a third of what is left, so that one that hangs leaves some.
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                code = process.wait(limit)
            finally:
                end(process)
        slow = slowdown(before, use(), self._cores)
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunFailed(f"{strategy} failed: {lines[-1] if lines else code}")
        try:
            return timed(Run(folder), slow)
        except (OSError, ValueError):
            raise NoTimeLeft(f"{strategy} did not end in {limit:.0f} s") from None
