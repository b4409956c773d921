"""From a few repeated runs to an answer, or to the word that they are too few for one.

**A figure of one strategy** is the median over its repeats, with the interval between two of its
values that holds the true median in at least nine cases of ten, whatever the distribution. With
fewer than five repeats no two values do, and the interval is simply the lowest and the highest.

**Two strategies** are compared repeat by repeat, because runs of one repeat are neighbours in time
and share the machine's mood: d = log(a / b) for speeds, d = a − b for accuracies. The mean of d has
a 90 % interval by Student's t, and its place against the margin m is the answer:

    beyond +m or beyond −m       more, or less: they differ by more than the margin
    between −m and +m            same: there is no difference larger than the margin
    anything else                unknown: not enough runs to tell

So the end that decides is a one-sided test at 5 %, on either side: two one-sided tests for `same`
(Schuirmann 1987), their counterparts for `more` and `less`. That much is the chance of a mistake
where the truth lies *at* the margin; of two equal strategies it is far less. "The fastest" is said
of a strategy that is faster than *each* other one, so that having many adds no mistakes to it.

Three repeats leave a spread that is known from two degrees of freedom. Strategies of one comparison
run on one machine in one hour, so the spread of d is estimated from all of them together (the
residual of a randomised block design, (K − 1)(n − 1) degrees of freedom); if the two at hand differ
from each other by more than that, their own spread counts. `tests/reports/test_reports_statistics`
draws thousands of comparisons and counts the mistakes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal

Answer = Literal["more", "less", "same", "unknown"]
"""How one stands to the other; see above."""

CONFIDENCE: Final = 0.90
"""Of intervals: each of their ends is wrong in one case of twenty."""

Repeats = Mapping[int, float]
"""A figure by the number of the repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """The median of a figure over repeats, between `low` and `high`."""

    value: float
    low: float
    high: float
    runs: int

    @property
    def is_range(self) -> bool:
        """Whether there were too few runs for more than the lowest and the highest."""
        return _order_statistic(self.runs) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one strategy stands to another: a ratio or a difference, and what follows from it."""

    estimate: float | None
    """None without a repeat that both finished."""
    low: float | None
    """None where nothing bounds it: with fewer than two repeats."""
    high: float | None
    answer: Answer
    repeats: int


def middle(values: Sequence[float]) -> Middle | None:
    """The median with its interval; None of nothing.

    >>> middle([5.0, 1.0, 3.0])
    Middle(value=3.0, low=1.0, high=5.0, runs=3)
    """
    if not values:
        return None
    ordered = sorted(values)
    half = len(ordered) // 2
    centre = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    inner = _order_statistic(len(ordered)) or 0
    return Middle(value=centre, low=ordered[inner], high=ordered[-1 - inner], runs=len(ordered))


def ratio(figures: Mapping[str, Repeats], one: str, other: str, margin: float) -> Difference:
    """How many times the other's figure the one's is; a margin of 0.05 is that of 1.05 times.

    `figures` are those of all strategies of the comparison, which tell how much runs differ.
    A figure that is not above 0 has no ratio; its repeat is left out.
    """
    logs = {
        name: {repeat: math.log(value) for repeat, value in repeats.items() if value > 0}
        for name, repeats in figures.items()
    }
    return _difference(logs, one, other, math.log1p(margin), math.exp)


def gap(figures: Mapping[str, Repeats], one: str, other: str, margin: float) -> Difference:
    """By how much the one's figure is above the other's, in the figure's own unit."""
    return _difference(figures, one, other, margin, float)


def _difference(
    figures: Mapping[str, Repeats],
    one: str,
    other: str,
    margin: float,
    back: Callable[[float], float],
) -> Difference:
    pairs = _pairs(figures[one], figures[other])
    if not pairs:
        return Difference(estimate=None, low=None, high=None, answer="unknown", repeats=0)
    mean = sum(pairs) / len(pairs)
    if len(pairs) < 2:
        return Difference(
            estimate=back(mean), low=None, high=None, answer="unknown", repeats=len(pairs)
        )
    pooled, freedom = _pooled(figures)
    spread = max(pooled, _squares(pairs) / (len(pairs) - 1))
    half = student(freedom) * math.sqrt(spread / len(pairs))
    return Difference(
        estimate=back(mean),
        low=back(mean - half),
        high=back(mean + half),
        answer=_answer(mean - half, mean + half, margin),
        repeats=len(pairs),
    )


def _answer(low: float, high: float, margin: float) -> Answer:
    if low > margin:
        return "more"
    if high < -margin:
        return "less"
    # Ends that touch the margin are not beyond it.
    return "same" if -margin <= low and high <= margin else "unknown"


def _pooled(figures: Mapping[str, Repeats]) -> tuple[float, int]:
    """The variance of d between any two strategies, and the degrees of freedom it has.

    The mean of all pairs' variances is, where every strategy has every repeat, twice the residual
    mean square of the block design. With holes it is weighted by the repeats that a pair shares.
    """
    squares = freedom = 0.0
    for one, other in combinations(figures, 2):
        pairs = _pairs(figures[one], figures[other])
        if len(pairs) > 1:
            squares += _squares(pairs)
            freedom += len(pairs) - 1
    taking_part = [repeats for repeats in figures.values() if repeats]
    blocks = {repeat for repeats in taking_part for repeat in repeats}
    values = sum(len(repeats) for repeats in taking_part)
    left = values - len(taking_part) - len(blocks) + 1
    return (squares / freedom if freedom else 0.0), max(1, left)


def _pairs(one: Repeats, other: Repeats) -> list[float]:
    return [one[repeat] - other[repeat] for repeat in sorted(one.keys() & other.keys())]


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


@lru_cache(maxsize=256)
def student(freedom: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors a t interval reaches to either side.

    >>> [round(student(freedom), 3) for freedom in (1, 2, 8, 1000)]
    [6.314, 2.92, 1.86, 1.646]
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(80):
        half = (low + high) / 2
        low, high = (half, high) if _within(half, freedom) < confidence else (low, half)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t): Abramowitz and Stegun 26.7.3 and 26.7.4, finite sums for whole degrees."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@lru_cache(maxsize=256)
def _order_statistic(runs: int) -> int | None:
    """Which values from the ends bound the median in nine cases of ten; None if not even the first.

    The median lies outside the k-th values from both ends when at most k of the runs fall on one
    side of it: 2 · P(Binomial(runs, 1/2) ≤ k).
    """
    best = None
    outside = 0.0
    for k in range(runs // 2):
        outside += 2 * math.comb(runs, k) / 2**runs
        if outside > 1 - CONFIDENCE:
            break
        best = k
    return best
