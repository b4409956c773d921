"""A strategy of a plan: what is predicted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from manyhands.lab.planning.failures import Goodput
    from manyhands.lab.planning.learning import TimeToTarget

By: TypeAlias = Literal["time", "cost"]
"""What a plan is ranked by: the speed, or with a target the time to it; or the price."""

MARGIN: Final = 0.05
"""Predictions that differ by less than this cannot be told apart, whatever their spread."""


@dataclass(frozen=True)
class PlannedStrategy:
    """A strategy of a plan, with its predicted speed.

    Example:
        >>> import manyhands as mh
        >>> one = mh.PlannedStrategy("allreduce()", 4, 980.0, 970.0, 990.0, "computing")
        >>> two = mh.PlannedStrategy("gossip()", 4, 1000.0, 990.0, 1010.0, "computing")
        >>> one.resembles(two)
        True
    """

    strategy: str
    workers: int
    rate: float
    """Samples per second, without failures."""
    low: float
    high: float
    limit: str
    """Without what it would be clearly faster: the network, or slower workers; or computing."""
    to_target: TimeToTarget | None = None
    """How long until the target, if one was given and the strategy reached it in virtual runs;
    without failures."""
    price: float | None = None
    """Of the training until the target, or else of `Plan.samples`: all hosts that it needs, from
    the start of the run on, with failures if they were given."""
    least: float = 0.0
    """Within `least` and `most` nine of ten real runs are expected: the range over repeats with the
    measured error of predictions. Of samples per second, or of seconds to the target, without
    failures."""
    most: float = 0.0
    assumed: tuple[str, ...] = ()
    """What its prediction takes from elsewhere: speeds of codecs that were not measured here."""
    goodput: Goodput | None = None
    """What failures leave of the speed, if they were given."""
    paid: int | None = None
    """Workers whose price is paid, if one was given: all of every host that the run needs."""

    hosts: tuple[tuple[str, int], ...] = ()
    """The workers of each host, where the first hosts of the cluster have no room for them."""

    @property
    def counting_rate(self) -> float:
        """Samples per second that count: the speed times the goodput."""
        return self.rate * self._fraction

    @property
    def counting_seconds(self) -> float | None:
        """Seconds to the target, failures included; None if it was not reached."""
        if self.to_target is None:
            return None
        return self.to_target.seconds / self._fraction

    @property
    def _fraction(self) -> float:
        return 1.0 if self.goodput is None else self.goodput.fraction

    def resembles(self, other: PlannedStrategy, by: Literal["time", "cost"] = "time") -> bool:
        """Whether the predictions of two cannot be told apart.

        Args:
            other: the other one.
            by: what they are ranked by.
        """
        mine, its = self.to_target, other.to_target
        if (mine is None) != (its is None):
            return False
        if mine is not None and its is not None and mine.share != its.share:
            return False
        (value, low, high), (its_value, its_low, its_high) = self._range(by), other._range(by)
        return (low <= its_high and its_low <= high) or abs(value / its_value - 1) < MARGIN

    def _range(self, by: By) -> tuple[float, float, float]:
        """What it is ranked by, the least and the most over repeats."""
        found, part = self.to_target, self._fraction
        if found is None:
            value, low, high = (part * one for one in (self.rate, self.low, self.high))
        else:
            value, low, high = (one / part for one in (found.seconds, found.low, found.high))
        if by == "time" or self.price is None:
            return value, low, high
        if found is None:
            return self.price, self.price * value / high, self.price * value / low
        return self.price, self.price * low / value, self.price * high / value
