"""Figures of a calibration, by timed runs, of which each may fail or be disturbed.

What was measured is kept, whatever happens to the other runs: what is missing is named, with the
reason, and how far the figures may be off is a figure of its own. Without a single batch there is
no calibration.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from manyhands.failure import RunFailed
from manyhands.lab.calibration.calibration import ComputeTime
from manyhands.lab.calibration.load import uncertainty
from manyhands.lab.calibration.timed_run import NothingTimed, compute_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.lab.calibration.timed_run import TimedRun

T = TypeVar("T")
_LONGER: Final = 4.0
"""How many times as long a run trains that is repeated because no step was completed."""
_LEAST_SERVED: Final = 0.1
"""Of an exchange, the least part that is taken for the server's."""


TimesRuns: TypeAlias = "Callable[[str, int, int, float], TimedRun]"
"""Makes a run and times it: strategy, workers, global batch, and how many times as long as usual it
trains. It raises RunFailed; NothingTimed if a longer run may be better."""


@dataclass(frozen=True)
class Figures:
    """What timed runs showed; see `Calibration`."""

    compute: tuple[ComputeTime, ...]
    sharing: float
    exchange: float
    served: float | None
    collective: float
    sharded: float
    missing: tuple[str, ...]
    slowdown: float
    noise: float


@dataclass
class _Attempts:
    """Runs that are tried, and what came of them."""

    run: TimesRuns
    tell: Callable[[str], None]
    missing: list[str] = field(default_factory=list)
    slowdown: float = 1.0
    noise: float = 0.0

    def make(
        self, what: str, strategy: str, workers: int, batch: int, read: Callable[[TimedRun], T]
    ) -> T | None:
        """Read a run, a longer one if no step of it was completed; None if that failed, too."""
        self.tell(what)
        try:
            try:
                return self._read(self.run(strategy, workers, batch, 1.0), read)
            except NothingTimed:
                self.tell(f"{what}, for longer, because no step was completed")
                return self._read(self.run(strategy, workers, batch, _LONGER), read)
        except RunFailed as error:
            self.missing.append(f"{what}: {error}")
            return None

    def _read(self, found: TimedRun, read: Callable[[TimedRun], T]) -> T:
        result = read(found)
        self.slowdown = max(self.slowdown, found.slowdown)
        return result

    def step(self, what: str, strategy: str, workers: int, batch: int) -> float | None:
        """The seconds of a step of such a run."""
        found = self.make(what, strategy, workers, batch, lambda one: (one.step, one.steps))
        if found is None:
            return None
        seconds, steps = found
        self.noise = max(self.noise, uncertainty(steps))
        return seconds


def figures(
    run: TimesRuns, sizes: Sequence[int], cores: int, tell: Callable[[str], None]
) -> Figures:
    """Measure all that can be measured.

    Args:
        run: makes a run and times it.
        sizes: sizes of batches, in order.
        cores: cores of this machine.
        tell: receives what is measured at the moment.

    Raises:
        RunFailed: not one batch could be measured.
    """
    tries = _Attempts(run, tell)
    compute = list[ComputeTime]()
    for size in sizes:
        what = f"batches of {size} samples on one worker"
        found = tries.make(what, "single()", 1, size, partial(_compute_time, size))
        compute += [] if found is None else [found]
    if not compute:
        raise RunFailed(f"calibration: nothing could be measured: {'; '.join(tries.missing)}")
    usual = compute[len(compute) // 2]
    # What is missing is taken for nothing, and named.
    sharing, collective, sharded = 1.0, 0.0, 0.0
    served = None
    if cores > 1:
        what = f"{cores} workers that do not communicate"
        mean = partial(_mean_seconds, usual.samples)
        seconds = tries.make(what, "ensemble()", cores, usual.samples * cores, mean)
        sharing = 1.0 if seconds is None else max(1.0, seconds / usual.seconds)
    alone, both = sharing * usual.whole, 2 * usual.samples
    if cores > 1:
        step = tries.step("two workers with allreduce", "allreduce()", 2, both)
        collective = 0.0 if step is None else max(0.0, step - alone)
        step = tries.step("two workers with sharded parameters", "fully_sharded()", 2, both)
        sharded = 0.0 if step is None else max(0.0, step - alone)
    step = tries.step("a worker and a server", "asynchronous()", 1, usual.samples)
    exchange = 0.0 if step is None else max(0.0, step - usual.whole)
    if cores > 1 and step is not None:
        step = tries.step("two workers and a server", "synchronous()", 2, both)
        if step is not None:
            # Both exchange at the same time: one waits while the server serves the other.
            later = step - alone - exchange
            served = min(max(_LEAST_SERVED * exchange, later), exchange)
    return Figures(
        compute=tuple(compute),
        sharing=sharing,
        exchange=exchange,
        served=served,
        collective=collective,
        sharded=sharded,
        missing=tuple(tries.missing),
        slowdown=tries.slowdown,
        noise=tries.noise,
    )


def _compute_time(samples: int, run: TimedRun) -> ComputeTime:
    return compute_time(samples, run.workers)


def _mean_seconds(samples: int, run: TimedRun) -> float:
    """Seconds of a batch, over workers that compute at the same time."""
    return statistics.mean(compute_time(samples, [one]).seconds for one in run.workers)
