"""Distributions of a virtual worker's compute time per batch, written as text.

A drawn time is that of one batch, whatever its size. Every worker has its own random generator, so
that one more draw of one worker changes nothing for the others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from manyhands.notation import Catalog, Value
from manyhands.trace import read

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_LEAST = 0.01
"""A normal distribution is truncated at this share of its mean."""
_SHORTEST = 1e-9
"""Smallest compute time of a batch, in seconds."""


@dataclass(frozen=True, repr=False)
class Slow(Value):
    """A worker that is slower than the others.

    Example: `slow(rank=0, factor=4.0)`
    """

    name: ClassVar[str] = "slow"

    rank: int
    """Rank of the worker."""
    factor: float
    """Factor of its compute times; below 1 it is faster."""
    after: int = 0
    """Batches that it computes at full speed before."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"rank must be 0 or more, got {self.rank}")
        if self.after < 0:
            raise ValueError(f"after must be 0 or more batches, got {self.after}")
        _check_positive("factor", self.factor)


@dataclass(frozen=True, repr=False)
class Times(Value, ABC):
    """Distribution of the compute time of a batch.

    Example:
        >>> import random
        >>> import manyhands as mh
        >>> times = mh.virtual.times("constant(0.1, slow=[slow(rank=2, factor=4.0)])")
        >>> isinstance(times, mh.Times), times.of(2, random.Random(0))()
        (True, 0.4)
    """

    slow: tuple[Slow, ...] = field(default=(), kw_only=True)
    """Workers that differ from the others."""

    def of(self, rank: int, rng: random.Random) -> Callable[[], float]:
        """A function that draws the times of one worker from its random generator."""
        own = [one for one in self.slow if one.rank == rank]
        factor = math.prod(one.factor for one in own if not one.after)
        draw, later = self.drawer(rank, rng), [one for one in own if one.after]
        if not later:
            return lambda: max(_SHORTEST, factor * draw())
        batches = count()

        def drawn() -> float:
            number = next(batches)
            more = math.prod(one.factor for one in later if number >= one.after)
            return max(_SHORTEST, factor * more * draw())

        return drawn

    @abstractmethod
    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:
        """As `of`, for a worker that is not slowed."""


@dataclass(frozen=True, repr=False)
class Constant(Times):
    """Always the same time.

    Example: `constant(0.1)`
    """

    name: ClassVar[str] = "constant"

    mean: float
    """Seconds."""

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:  # noqa: ARG002 - the contract
        """The mean."""
        return lambda: self.mean


@dataclass(frozen=True, repr=False)
class Normal(Times):
    """Normally distributed times.

    Example: `normal(0.1, cv=0.2)`
    """

    name: ClassVar[str] = "normal"

    mean: float
    """Mean in seconds, before truncation at a hundredth of it."""
    cv: float
    """Standard deviation / mean."""

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)
        _check_positive("cv", self.cv)

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:  # noqa: ARG002 - the contract
        """A truncated normal distribution."""
        least = _LEAST * self.mean
        return lambda: max(least, rng.gauss(self.mean, self.cv * self.mean))


@dataclass(frozen=True, repr=False)
class LogNormal(Times):
    """Log-normally distributed times, with a long tail, as on most real machines.

    Example: `lognormal(0.1, cv=0.5)`
    """

    name: ClassVar[str] = "lognormal"

    mean: float
    """Seconds."""
    cv: float
    """Standard deviation / mean."""

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)
        _check_positive("cv", self.cv)

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:  # noqa: ARG002 - the contract
        """exp(N(μ, σ)) with σ² = ln(1 + cv²) and μ = ln mean − σ²/2."""
        variance = math.log1p(self.cv**2)
        middle, sigma = math.log(self.mean) - variance / 2, math.sqrt(variance)
        return lambda: rng.lognormvariate(middle, sigma)


@dataclass(frozen=True, repr=False)
class Exponential(Times):
    """Exponentially distributed times.

    Example: `exponential(0.1)`
    """

    name: ClassVar[str] = "exponential"

    mean: float
    """Seconds."""

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:  # noqa: ARG002 - the contract
        """An exponential distribution."""
        return lambda: rng.expovariate(1 / self.mean)


@dataclass(frozen=True, repr=False)
class Gamma(Times):
    """Gamma-distributed times: between constant (cv = 0) and exponential (cv = 1).

    Example: `gamma(0.1, cv=0.5)`
    """

    name: ClassVar[str] = "gamma"

    mean: float
    """Seconds."""
    cv: float
    """Standard deviation / mean."""

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)
        _check_positive("cv", self.cv)

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:  # noqa: ARG002 - the contract
        """A gamma distribution of shape 1/cv² and scale mean·cv²."""
        shape = 1 / self.cv**2
        return lambda: rng.gammavariate(shape, self.mean / shape)


@dataclass(frozen=True, repr=False)
class MeasuredTimes(Times):
    """Times that the workers of a live run took to load and compute a batch, resampled.

    Worker r draws from the times of worker r, so that a slow worker stays slow; if more workers are
    simulated than were measured, ranks wrap around. The first step, a warm-up, is left out.

    Example: `measured("runs/20260102-allreduce-4")`
    """

    name: ClassVar[str] = "measured"

    path: str
    """Folder of the live run."""

    def drawer(self, rank: int, rng: random.Random) -> Callable[[], float]:
        """One of the measured times."""
        by_worker = _steps(self.path)
        times = by_worker[rank % len(by_worker)]
        return lambda: rng.choice(times)


TIMES: Catalog[Times] = Catalog(
    kind="compute time",
    classes=(Constant, Normal, LogNormal, Exponential, Gamma, MeasuredTimes),
    nested=(Catalog(kind="slow worker", classes=(Slow,)),),
)


def times(source: str | Times) -> Times:
    """The times that a text describes: `times("lognormal(0.1, cv=0.3)")`.

    Raises:
        NotationError: the text is malformed; the message says where and what to write.
    """
    return TIMES.read(source)


@lru_cache(maxsize=8)
def _steps(path: str) -> tuple[tuple[float, ...], ...]:
    """For each worker of a live run, its load and compute time in each recorded step."""
    by_rank: dict[int, dict[tuple[int, int], float]] = {}
    for worker in read(path).workers:
        steps = by_rank.setdefault(worker.header.rank, {})
        for span in worker.spans:
            if span.kind in ("data", "compute"):
                step = (worker.life, span.step)
                steps[step] = steps.get(step, 0.0) + span.seconds
    found = []
    for _, steps in sorted(by_rank.items()):
        warm = [seconds for (_, step), seconds in sorted(steps.items()) if step > 0 and seconds > 0]
        if warm:
            found.append(tuple(warm))
    if not found:
        raise ValueError(f"the run in {path} has no recorded compute times: choose another run")
    return tuple(found)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, got {value}")
