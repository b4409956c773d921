"""Failures of workers, and what they leave of a strategy's speed.

Goodput is the samples per second that count, with failures, divided by those without. Workers fail
independently of each other, so N of them lose one every M = `every` / N seconds on average. If the
loss of one costs c seconds of training,

    goodput = M / (M + c)

which is the availability of a machine whose repair takes c. What c is depends on what a run does
when it has lost a worker: `manyhands.lab.planning.losses` finds that out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from manyhands.units import seconds_words

if TYPE_CHECKING:
    from manyhands.intervals import Every
    from manyhands.job import Job

JOINS: Final = 1.24
"""Seconds from the kill of a worker until its successor trains: the median of 90 kills,
`benchmarks/results/elastic.json` ("back_from_signal")."""
STEPS: Final = 0.23
"""Seconds from the kill of a worker until the others step again in a new group: the median of 84,
the same file ("stepped_from_signal")."""
RETURNS: Final = 3.05
"""Seconds until all workers train again where all go back: the median of ten faults,
`benchmarks/results/process_faults.json`, two workers of a small model on two cores."""
NOTICED: Final = 0.05
"""Seconds until the kill of a worker is noticed: the median of ten, the same file ("gone")."""
CHECKPOINT: Final = "10min"
"""How often checkpoints are stored, where nothing says it."""

_NUMBER: Final = r"(\d+\.?\d*|\.\d+)\s*([a-z]*)"
_TEXT: Final = re.compile(
    rf"\s*every\s+{_NUMBER}(?:\s+per\s+worker)?(?:\s*,\s*back\s+after\s+{_NUMBER})?\s*"
)
_SECONDS: Final = {
    **dict.fromkeys(("s", "seconds"), 1.0),
    **dict.fromkeys(("min", "minutes"), 60.0),
    **dict.fromkeys(("h", "hours", "hour"), 3600.0),
    **dict.fromkeys(("d", "days", "day"), 86400.0),
}
_EXAMPLE: Final = "'every 6h' or 'every 6h, back after 90s'"


@dataclass(frozen=True)
class Failures:
    """How often a worker is lost, and how long until its successor trains.

    Example:
        >>> import manyhands as mh
        >>> mh.Failures.read("every 6h, back after 2min")
        Failures(every=21600.0, back=120.0)
    """

    every: float
    """Seconds between two losses of the same worker, on average."""
    back: float | None = None
    """Seconds until its successor trains, or all workers where all go back. Default: as measured,
    1.2 s and 11 s."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("back", self.back)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 seconds, got {value:g}")

    @classmethod
    def read(cls, text: str | Failures) -> Failures:
        """The failures that a text describes.

        Args:
            text: "every 6h" for one loss of each worker in 6 hours; "every 6h, back after 90s".
                Failures are returned as they are.

        Raises:
            ValueError: the text has another form, or a number has no unit.
        """
        if isinstance(text, Failures):
            return text
        found = _TEXT.fullmatch(text.lower())
        if found is None:
            raise ValueError(f"expected failures such as {_EXAMPLE}, got {text!r}")
        back = None if found[3] is None else _seconds(found[3], found[4], text)
        return cls(_seconds(found[1], found[2], text), back)

    @property
    def joins(self) -> float:
        """Seconds until a worker is back, where the others go on."""
        return JOINS if self.back is None else self.back

    @property
    def returns(self) -> float:
        """Seconds until all workers train again, where all go back."""
        return RETURNS if self.back is None else self.back

    def __str__(self) -> str:
        again = "" if self.back is None else f", back after {long_words(self.back)}"
        return f"every {long_words(self.every)}{again}"


@dataclass(frozen=True)
class Goodput:
    """What failures leave of a strategy's speed.

    Example:
        >>> import manyhands as mh
        >>> one = mh.Goodput(0.97, "goes back", 311.2, 3 * 3600.0)
        >>> one.words
        'goes back, 311 s a loss, ends after some 3 h'
    """

    fraction: float
    """Samples per second that count, divided by those without failures."""
    effect: Literal["goes on", "goes back", "is not replaced"]
    """What follows the loss of a worker: the run "goes on" without it until it is back, all workers
    "go back" to the last checkpoint, or it "is not replaced"."""
    seconds: float | None = None
    """Seconds of training that one loss costs; None if the worker is not replaced."""
    ends_after: float | None = None
    """Seconds after which a second loss before the next checkpoint ends the run, on average; None
    if that does not end it."""

    @property
    def short(self) -> str:
        """What a loss costs, for a table; "back" where all workers go back to a checkpoint."""
        if self.seconds is None:
            return "not replaced"
        back = ", back" if self.effect == "goes back" else ""
        return f"{seconds_words(self.seconds)}{back}"

    @property
    def words(self) -> str:
        """What a loss does and costs."""
        costs = "" if self.seconds is None else f", {seconds_words(self.seconds)} a loss"
        ends = "" if self.ends_after is None else f", ends after some {long_words(self.ends_after)}"
        return f"{self.effect}{costs}{ends}"


@dataclass(frozen=True)
class LossCost:
    """Seconds of training that the loss of one worker costs: they grow with its absence."""

    effect: Literal["goes on", "goes back", "is not replaced"]
    fixed: float = 0.0
    """Those that do not depend on how long it is away."""
    share: float = 1.0
    """Those for each second that it is away."""

    def goodput(
        self, failures: Failures, workers: int, *, interval: float, lasts: float, away: float = 1.0
    ) -> Goodput:
        """What failures leave of the speed.

        Args:
            failures: how often a worker is lost.
            workers: number of workers.
            interval: seconds between two checkpoints.
            lasts: seconds of the whole training.
            away: factor of the seconds until a worker is back.
        """
        if self.effect == "is not replaced":
            # On average over the run, the share of the workers that are still there.
            gone = lasts / failures.every
            return Goodput(-math.expm1(-gone) / gone if gone > 0 else 1.0, self.effect)
        between = failures.every / workers
        if self.effect == "goes on":
            cost = max(0.0, self.fixed + self.share * away * failures.joins)
            return Goodput(between / (between + cost), self.effect, cost)
        back = away * failures.returns
        cost = interval / 2 + back
        # After a loss, nothing may be lost until the next checkpoint is stored.
        second = -math.expm1(-(interval + back) / between)
        ends = (between + cost) / second
        return Goodput(between / (between + cost), self.effect, cost, ends)


def checkpoint_seconds(every: Every, job: Job, rate: float) -> float:
    """Seconds between two checkpoints, those in memory included.

    Args:
        every: when checkpoints are stored.
        job: the job.
        rate: samples per second.
    """
    found = []
    for one in (every.on_disk, every.memory):
        if one is None:
            continue
        if one.seconds is not None:
            found.append(one.seconds)
        elif one.steps is not None:
            found.append(one.steps * job.batch_sizes.at(0) / rate)
        elif one.epochs is not None:
            found.append(one.epochs * job.epoch_samples / rate)
        elif one.samples is not None:
            found.append(one.samples / rate)
    # An interval is never shorter than a step.
    return max(min(found), job.batch_sizes.at(0) / rate)


def long_seconds(value: str | float) -> float:
    """Seconds, of a text with its unit: "90s", "3min", "6h"; a number is in seconds.

    >>> long_seconds("3min"), long_seconds(4)
    (180.0, 4.0)

    Raises:
        ValueError: the text has another form, or no unit.
    """
    if isinstance(value, str):
        found = re.fullmatch(rf"\s*{_NUMBER}\s*", value.lower())
        if found is None or found[2] not in _SECONDS:
            raise ValueError(f"expected a time such as '90s', '3min' or '6h', got {value!r}")
        return float(found[1]) * _SECONDS[found[2]]
    if not 0 <= value < math.inf:
        raise ValueError(f"expected 0 or more seconds, got {value:g}")
    return float(value)


def _seconds(number: str, unit: str, text: str) -> float:
    if not unit:
        raise ValueError(f"failures {text!r}: {number} has no unit: write {number}h or {number}min")
    if unit not in _SECONDS:
        raise ValueError(f"failures {text!r}: {unit!r} is not s, min, h or d: write {_EXAMPLE}")
    return float(number) * _SECONDS[unit]


def long_words(seconds: float) -> str:
    """A long time with its unit.

    >>> long_words(21600.0), long_words(90.0), long_words(5400.0)
    ('6 h', '90 s', '90 min')
    """
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
