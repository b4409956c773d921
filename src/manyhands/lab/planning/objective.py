"""What strategies are ranked by: speed or time to a target, or the price; with failures.

Failures and prices follow from predictions by formulas, so that the ranking at half and at twice an
assumed value of theirs takes no further run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, get_args

from manyhands.assumptions import Assumption
from manyhands.intervals import Every
from manyhands.lab.planning.failures import (
    CHECKPOINT,
    Failures,
    Goodput,
    checkpoint_seconds,
    long_seconds,
)
from manyhands.lab.planning.losses import loss_cost
from manyhands.lab.planning.planned import By
from manyhands.lab.planning.prices import STARTS, RunPrice, run_price
from manyhands.units import counted, seconds_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.lab.planning.failures import LossCost
    from manyhands.lab.planning.learning import TimedCandidate, TimeToTarget
    from manyhands.pacing import Pace

_MILLION: Final = 1_000_000
Values: TypeAlias = Mapping["Candidate", float]
"""By candidate, what it is ranked by; the least is the best."""


@dataclass(frozen=True)
class AssumedFactors:
    """What assumed values are multiplied by, to see what follows."""

    away: float = 1.0
    """The seconds until a lost worker is back."""
    interval: float = 1.0
    """The seconds between checkpoints."""
    starts: float = 1.0
    """The seconds that processes take to start."""


@dataclass(frozen=True)
class Retried:
    """An assumed value, and what strategies are ranked by at so many times of it."""

    assumption: Assumption
    values: Callable[[float], Values]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What strategies are ranked by, and the figures that it needs of each."""

    job: Job
    by: By
    reached: Mapping[Candidate, TimeToTarget]
    """How long those take until the target that reach it; empty without a target."""
    samples: int
    """Samples that are priced, without a target."""
    has_target: bool = False
    failures: Failures | None = None
    losses: Mapping[Candidate, LossCost] = field(default_factory=dict)
    checkpoint: Every
    """When checkpoints are stored, for those that go back to one."""
    assumes_checkpoint: bool = False
    prices: Mapping[Candidate, RunPrice] = field(default_factory=dict)
    start_up: float | None = None
    """Seconds until a run trains; None for the default."""

    @property
    def added_checkpoint(self) -> str | None:
        """How often checkpoints are stored beyond what the job says; None if it says it itself."""
        own = self.job.checkpoint
        return None if self.failures is None or own == self.checkpoint else str(self.checkpoint)

    def goodput(
        self, one: TimedCandidate, factors: AssumedFactors = AssumedFactors()
    ) -> Goodput | None:
        """What failures leave of its speed; None without failures."""
        if self.failures is None:
            return None
        rate = one.speed.rate
        return self.losses[one.candidate].goodput(
            self.failures,
            one.candidate.workers,
            interval=factors.interval * checkpoint_seconds(self.checkpoint, self.job, rate),
            lasts=self._seconds(one),
            away=factors.away,
        )

    def price(
        self, one: TimedCandidate, factors: AssumedFactors = AssumedFactors()
    ) -> float | None:
        """The price until the target, or of so many samples; None if it is not known."""
        found = self.prices.get(one.candidate)
        if found is None or (self.has_target and one.candidate not in self.reached):
            return None
        return found.of(self._seconds(one) / self._fraction(one, factors), self._starts(factors))

    def values(
        self, found: list[TimedCandidate], factors: AssumedFactors = AssumedFactors()
    ) -> Values:
        """What each is ranked by; those that did not reach a target that others reached are out."""
        return {
            one.candidate: self._value(one, factors)
            for one in found
            if not self.reached or one.candidate in self.reached
        }

    def retried(self, found: list[TimedCandidate]) -> Iterator[Retried]:
        """The assumed values of failures and prices."""
        kinds = {cost.effect for cost in self.losses.values()}
        back = self.failures is not None and self.failures.back is None
        if self.failures is not None and back and kinds & {"goes on", "goes back"}:
            each = [
                f"{seconds_words(seconds)} of {whom}"
                for seconds, whom, kind in (
                    (self.failures.joins, "a worker", "goes on"),
                    (self.failures.returns, "all workers from a checkpoint", "goes back"),
                )
                if kind in kinds
            ]
            remedy = f"--failures '{self.failures}, back after 90s'"
            yield self._retried(found, "return", ", ".join(each), remedy, "away")
        if "goes back" in kinds and self.assumes_checkpoint:
            value = f"every {CHECKPOINT}"
            yield self._retried(found, "checkpoints", value, "--checkpoint 1min", "interval")
        if self.prices and self.start_up is None:
            value = seconds_words(STARTS)
            yield self._retried(found, "start-up", value, "--start-up 3min", "starts")

    def _retried(
        self, found: list[TimedCandidate], name: str, value: str, remedy: str, factor: str
    ) -> Retried:
        return Retried(
            Assumption(name=name, value=value, remedy=remedy),
            lambda times: self.values(found, AssumedFactors(**{factor: times})),
        )

    def _value(self, one: TimedCandidate, factors: AssumedFactors) -> float:
        to_target = self.reached.get(one.candidate)
        # A run that missed the target counts as a long one.
        longer = 1.0 if to_target is None else to_target.rank / to_target.seconds
        price = self.price(one, factors)
        if self.by == "cost" and price is not None:
            return longer * price
        # Without a target: the seconds of a sample.
        seconds = 1 / one.speed.rate if to_target is None else to_target.seconds
        return longer * seconds / self._fraction(one, factors)

    def _seconds(self, one: TimedCandidate) -> float:
        """How long it trains, without failures."""
        to_target = self.reached.get(one.candidate)
        return self.samples / one.speed.rate if to_target is None else to_target.seconds

    def _fraction(self, one: TimedCandidate, factors: AssumedFactors) -> float:
        found = self.goodput(one, factors)
        return 1.0 if found is None else found.fraction

    def _starts(self, factors: AssumedFactors) -> float:
        return factors.starts * (STARTS if self.start_up is None else self.start_up)


@dataclass(frozen=True)
class Extras:
    """What was asked of a plan about failures and prices."""

    failures: Failures | None
    checkpoint: Every | None
    price: float | None
    start_up: float | None
    by: By

    @classmethod
    def read(
        cls,
        *,
        failures: str | Failures | None,
        checkpoint: str | Every | None,
        price: float | None,
        start_up: str | float | None,
        by: By,
    ) -> Extras:
        """Check the options of a plan.

        Raises:
            ValueError: one cannot be read, or would have no effect.
        """
        if by not in get_args(By):
            raise ValueError(f"by is {' or '.join(get_args(By))}, not {by!r}")
        if by == "cost" and price is None:
            raise ValueError("ranked by cost, but a worker has no price: give --price, for an hour")
        if price is not None and not 0 <= price < math.inf:
            raise ValueError(f"price must be 0 or more for an hour of a worker, got {price:g}")
        if start_up is not None and price is None:
            raise ValueError(
                "the start-up is part of the price, and there is none: give --price, or leave "
                "--start-up out"
            )
        if checkpoint is not None and failures is None:
            raise ValueError(
                "checkpoints matter to a plan only where workers are lost: give --failures, or "
                "leave --checkpoint out"
            )
        return cls(
            None if failures is None else Failures.read(failures),
            None if checkpoint is None else Every.read(checkpoint, bare=False),
            price,
            None if start_up is None else long_seconds(start_up),
            by,
        )

    def objective(
        self,
        job: Job,
        found: Sequence[TimedCandidate],
        about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
        reached: Mapping[Candidate, TimeToTarget],
        *,
        has_target: bool,
        tell: Callable[[str], None],
    ) -> Objective:
        """What strategies are ranked by, after virtual runs for what losses cost and starts take.

        Args:
            job: the job.
            found: the strategies with their predicted speeds.
            about: the job, where it trains, how long a batch takes, and slower workers.
            reached: how long those take until the target that reach it.
            has_target: whether there is a target.
            tell: receives what is timed at the moment.
        """
        losses, prices = {}, {}
        for one in found:
            candidate, rate = one.candidate, one.speed.rate
            if self.failures is not None:
                tell(f"the loss of one of {counted(candidate.workers, 'worker')} under {candidate}")
                away = self.failures.joins
                losses[candidate] = loss_cost(candidate, about, rate, away)
            if self.price is not None:
                prices[candidate] = run_price(candidate, about, self.price)
        return Objective(
            job=job,
            by=self.by,
            reached=reached,
            samples=job.budget or _MILLION,
            has_target=has_target,
            failures=self.failures,
            losses=losses,
            checkpoint=self.checkpoint or job.checkpoint or Every.read(CHECKPOINT),
            assumes_checkpoint=self.checkpoint is None and job.checkpoint is None,
            prices=prices,
            start_up=self.start_up,
        )
