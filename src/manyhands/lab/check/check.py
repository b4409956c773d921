"""A few steps on one worker and on several, on real processes, and what differs."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.lab.check.fingerprint import elsewhere
from manyhands.lab.check.probes import compare_processes, probe
from manyhands.lab.launcher import end, start
from manyhands.reports import Run
from manyhands.reports.figures.speed import throughput
from manyhands.strategies import strategy as read_strategy
from manyhands.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from manyhands.job import Job

STEPS = 8
"""By default: what only begins after some batches, as a warm-up, shows in them too."""
_EQUAL = {"float64": 1e-9, "float32": 1e-4}
"""The largest difference of parameters that are called equal, relative to those above 1."""
_NOISE = 10.0
"""A parameter that rounding alone moves may differ by so many times as much. One whose gradient is
zero but for rounding is moved by a whole step of Adam, which divides the gradient by its size."""
_LONGEST = 900.0
"""Seconds that a run may take."""


@dataclass(frozen=True)
class ParameterDifference:
    """How the parameters of two runs differ."""

    largest: float
    """The largest difference of a number; relative if the number is above 1."""
    parameter: str
    """The parameter that has it."""
    differing: int
    """Number of parameters that differ by more than rounding."""
    parameters: int


@dataclass(frozen=True)
class Checked:
    """Whether a job trains the same on several workers as on one."""

    strategy: str
    workers: int
    steps: int
    dtype: str
    """float64, or float32 if the job cannot be converted."""
    alone: ParameterDifference | None
    """One worker twice: None if the runs are equal."""
    apart: ParameterDifference | None
    """One worker and several: None if the runs are equal."""
    largest: float
    """The largest difference of one worker and several."""
    since: int
    """The first step after which they differ, as far as was tried; 0 if they are equal."""
    waits: bool
    """Whether the strategy makes the steps of one worker; others are not compared."""
    reasons: tuple[str, ...]
    """What makes them differ, the most likely first."""
    speeds: tuple[float, float] | None = None
    """Samples per second of one worker and of all, in these few steps."""
    rounded: tuple[str, ...] = ()
    """Parameters that differ, as far as rounding alone moves them: their gradients are zero but for
    it, as those of a bias that a softmax cancels."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, and no reason for a difference was found."""
        return self.alone is None and self.apart is None and not self.reasons


def check(
    script: Path,
    name: str,
    job: Job,
    arguments: Sequence[str] = (),
    *,
    strategy: str = "allreduce()",
    workers: int = 2,
    steps: int = STEPS,
    note: Callable[[str], object] = lambda _: None,
) -> Checked:
    """Compare a few steps of one worker with those of several.

    Args:
        script: the script with the job.
        name: the job's name in it.
        job: the job.
        arguments: arguments of the script.
        strategy: the strategy of several workers.
        workers: their number.
        steps: number of steps.
        note: called with what is done next.

    Raises:
        RunFailed: a run failed.
    """
    needs = read_strategy(strategy).needs(workers)
    note("probing the job")
    reasons = probe(job, one_weight=not needs.collectives)
    note("loading the script in two processes")
    prints = [elsewhere(script, name, list(arguments), number) for number in (0, 1)]
    reasons += compare_processes(*prints)
    lockstep = needs.lockstep
    with tempfile.TemporaryDirectory(prefix="manyhands-check-") as folder:
        runs = _Runs(Path(folder), script, name, tuple(arguments), job, note)
        note("one worker")
        one, dtype = runs.first(steps)
        again = runs.made("single()", 1, steps, "again")
        alone = difference(one.state_dict(), again.state_dict(), _EQUAL[dtype])
        note(f"{strategy} on {counted(workers, 'worker')}")
        several = runs.made(strategy, workers, steps, "several")
        both, noise = (one.state_dict(), several.state_dict()), dict[str, float]()
        found = difference(*both, _EQUAL[dtype])
        if found.differing and lockstep:
            note("what rounding does")
            noisy = runs.made("single()", 1, steps, "perturbed", "--perturbed")
            noise = distances(both[0], noisy.state_dict())
            found = difference(*both, _EQUAL[dtype], noise)
        differs, since = found.differing > 0 and lockstep, 0
        if differs:
            since = runs.since(strategy, workers, steps, _EQUAL[dtype], noise)
        speeds = (throughput(one.trace).rate, throughput(several.trace).rate)
    return Checked(
        strategy=strategy,
        workers=workers,
        steps=steps,
        dtype=dtype,
        alone=alone if alone.differing else None,
        apart=found if differs else None,
        largest=found.largest,
        since=since,
        waits=lockstep,
        reasons=tuple(reasons),
        speeds=speeds,
        rounded=_rounded(*both, _EQUAL[dtype], noise),
    )


def difference(
    one: dict[str, torch.Tensor],
    other: dict[str, torch.Tensor],
    equal: float,
    noise: Mapping[str, float] | None = None,
) -> ParameterDifference:
    """How the parameters of two runs differ.

    Args:
        one: the parameters of the first run.
        other: those of the second.
        equal: the largest difference that is called equal.
        noise: what rounding alone does to each of them, where that is known.
    """
    apart = distances(one, other)
    if not apart:
        return ParameterDifference(0.0, "", 0, 0)
    above = {
        name: value
        for name, value in apart.items()
        if value > max(equal, _NOISE * (noise or {}).get(name, 0.0))
    }
    # Where some differ, the worst is one of them; else it says how equal the runs are, without
    # those that only rounding has moved.
    still = {name: value for name, value in apart.items() if value <= equal}
    shown = above or still or {"": 0.0}
    worst = max(shown, key=lambda name: shown[name])
    return ParameterDifference(shown[worst], worst, len(above), len(apart))


def distances(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """The largest difference of each parameter's numbers; relative for numbers above 1.

    Numbers that are NaN or infinite in one run only differ infinitely.
    """
    found = {}
    for name, tensor in one.items():
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
            continue
        its = other[name]
        apart = (tensor - its).abs() / tensor.abs().clamp(min=1)
        same = (tensor == its) | (tensor.isnan() & its.isnan())
        apart = apart.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
        found[name] = float(apart.max())
    return found


def _rounded(
    one: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
    equal: float,
    noise: Mapping[str, float],
) -> tuple[str, ...]:
    """The parameters that differ, but not by more than rounding alone moves them."""
    return tuple(
        name
        for name, value in distances(one, other).items()
        if equal < value <= _NOISE * noise.get(name, 0.0)
    )


@dataclass
class _Runs:
    """Runs of a script's job, each in a folder and with a log of its own."""

    folder: Path
    script: Path
    name: str
    arguments: tuple[str, ...]
    job: Job
    note: Callable[[str], object]
    double: bool = True

    def first(self, steps: int) -> tuple[Run, str]:
        """A run of one worker, and its dtype: float64 if the job can be trained in it."""
        try:
            return self.made("single()", 1, steps, "one"), "float64"
        except RunFailed:
            self.double = False
        return self.made("single()", 1, steps, "one in float32"), "float32"

    def made(self, strategy: str, workers: int, steps: int, label: str, *options: str) -> Run:
        """A run of so many steps."""
        output = self.folder / label
        samples = sum(self.job.batch_sizes.at(0) for _ in range(steps))
        command = [
            *(sys.executable, "-m", "manyhands", "train", str(self.script)),
            *("--job", self.name, "--strategy", strategy, "--workers", str(workers)),
            *("--samples", str(samples), "--output", str(output), "--quiet"),
            *(["--double"] if self.double else []),
            *options,
            *(["--", *self.arguments] if self.arguments else []),
        ]
        log = self.folder / f"{label}.txt"
        process = start(command, log)
        try:
            code = process.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            code = 1
        finally:
            end(process)
        if code:
            words = log.read_text(encoding="utf-8", errors="replace").strip()
            raise RunFailed(f"{strategy} on {counted(workers, 'worker')} failed:\n{words[-3000:]}")
        return Run(output)

    def since(
        self, strategy: str, workers: int, steps: int, equal: float, noise: Mapping[str, float]
    ) -> int:
        """The first step after which one worker and several differ: most often 1, else bisected."""
        equal_after, differ_after, step = 0, steps, 1
        while differ_after - equal_after > 1:
            self.note(f"step {step}")
            one = self.made("single()", 1, step, f"one-{step}").state_dict()
            several = self.made(strategy, workers, step, f"several-{step}").state_dict()
            if difference(one, several, equal, noise).differing:
                differ_after = step
            else:
                equal_after = step
            step = (equal_after + differ_after) // 2
        return differ_after
