"""Load of other programs while something is measured, and how much it can have slowed it down."""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BUSY: Final = 1.1
"""From how many times as long on, at most, a machine is called busy."""
UNKNOWN: Final = 0.5
"""The standard deviation / mean that is taken for that of a single time."""
_IDLE: Final = 0.1
"""The part of all cores that must be idle for other programs to have taken nothing."""
_BLOCKS: Final = 8
_NICE: Final = 1
_NOT_IDLE: Final = (0, 2, 5, 6, 7)
"""Columns of /proc/stat in which a core computes: user, system, interrupts, and the time that a
virtual machine below gives to others. Programs with a lower priority are in a column of their own;
they give way."""


@dataclass(frozen=True)
class Use:
    """Seconds of the processor up to a moment."""

    at: float
    all: float
    """Of all programs, on the cores that this process may use."""
    own: float
    """Of this process, and of those that it started and that have ended."""


def use() -> Use | None:
    """The use of the processor until now; None on systems that do not say it."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    columns = _NOT_IDLE if os.nice(0) == 0 else (*_NOT_IDLE, _NICE)
    ticks = sum(
        int(words[1 + column])
        for words in map(str.split, lines)
        if words and words[0] in cores
        for column in columns
        if column + 1 < len(words)
    )
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Use(
        at=time.monotonic(),
        all=ticks / os.sysconf("SC_CLK_TCK"),
        own=sum(one.ru_utime + one.ru_stime for one in own),
    )


def slowdown(before: Use | None, after: Use | None, cores: int) -> float:
    """How many times as long something took, at most, because other programs computed too.

    What other programs used could have been used by what was measured, if no core was idle.

    Args:
        before: the use of the processor when it began.
        after: the same when it had ended.
        cores: cores that this process may use.

    >>> slowdown(Use(0.0, 0.0, 0.0), Use(10.0, 20.0, 5.0), cores=2)
    4.0
    >>> slowdown(Use(0.0, 0.0, 0.0), Use(10.0, 15.0, 5.0), cores=2)
    1.0
    """
    if before is None or after is None or after.at <= before.at:
        return 1.0
    used, own = after.all - before.all, after.own - before.own
    if own <= 0 or used < (1 - _IDLE) * cores * (after.at - before.at):
        return 1.0
    return max(1.0, used / own)


def uncertainty(seconds: Sequence[float]) -> float:
    """Standard deviation / mean of the median of times that were measured one after the other.

    Times that follow each other are alike where other programs compute now and then, so more of
    them say less than as many that do not depend on each other would: the medians of consecutive
    blocks are compared.

    >>> uncertainty([1.0, 1.0, 1.0, 1.0]), uncertainty([1.0])
    (0.0, 0.5)
    """
    if len(seconds) < 2:
        return UNKNOWN
    whole, blocks = statistics.median(seconds), min(_BLOCKS, len(seconds))
    if not whole:
        return 0.0
    ends = [len(seconds) * at // blocks for at in range(blocks + 1)]
    medians = [statistics.median(seconds[first:last]) for first, last in pairwise(ends)]
    return statistics.stdev(medians) / math.sqrt(blocks) / whole
