"""A real run of every protocol and its virtual twin: the same staleness, and the same speed.

Four workers, the last a quarter slower; the times of batches are log-normal, and computing is
paced (`benchmarks.paced`). The twin is given what was measured of the real run: each worker's times
to load and compute a batch, a server's mean time for an update and the mean time of a message. It
is three times as long, so that most of the chance is the real run's.

Staleness is compared by the Kolmogorov-Smirnov distance between the two distributions, of all
updates and of each worker's own. Strategies whose updates have no staleness (workers step alone and
average, or never exchange) are compared by their throughput alone. A pair that is further apart
than it may be is made once more: other processes on a busy machine are not what is measured.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import paced
from benchmarks.figures import keep, report, write_table
from benchmarks.paced import Launch, Pace
from manyhands.reports import Run

PACE = Pace(seconds=0.016, slow=1.25, cv=0.3, epoch=400, epochs=10)
FAR, APART = 0.05, 0.1
"""How large the distance may be, and how far from 1 the ratio of speeds."""

STRATEGIES = (
    "synchronous(servers=2)",
    "central_storage()",
    "softsync(wait_for=3)",
    "ssp(staleness=2)",
    "asynchronous()",
    "hogwild()",
    "averaging(every=4)",
    "local_sgd(every=8, warmup=20)",
    "diloco(every=10)",
    "hierarchical(outer=averaging(every=4))",
    "easgd()",
    "easgd(order=asynchronous)",
    "easgd(order=round_robin)",
    "gossip()",
    "gossip(order=asynchronous)",
    "push_sum()",
    "broadcast()",
    "ensemble()",
)


@dataclass(frozen=True)
class Twins:
    """How a real run and its virtual twin compare."""

    strategy: str
    updates: int
    live: float
    """Updates per second of the real run."""
    virtual: float
    staleness: float | None
    """Mean staleness of the real run."""
    distance: float | None
    """Between the distributions of staleness; None where there is none."""
    worst: float | None
    """The same for the worker whose distributions are furthest apart."""
    attempts: int = 1

    @property
    def ratio(self) -> float:
        """Of their speeds."""
        return self.live / self.virtual

    @property
    def agree(self) -> bool:
        """Whether they are as close as they must be."""
        return abs(self.ratio - 1) <= APART and (self.worst or 0.0) <= FAR

    @property
    def row(self) -> str:
        """For the table."""
        stale = ["none", "", ""]
        if self.staleness is not None and self.distance is not None and self.worst is not None:
            stale = [f"{self.staleness:.2f}", f"{self.distance:.3f}", f"{self.worst:.3f}"]
        words = [f"`{self.strategy}`", f"{self.live:.1f}", f"{self.virtual:.1f}"]
        return "| " + " | ".join([*words, f"{self.ratio:.3f}", *stale]) + " |"


HEADING = (
    "| strategy | live | virtual | live / virtual | mean staleness | distance | worst worker's |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def distance(one: Mapping[int, int], other: Mapping[int, int]) -> float:
    """The Kolmogorov-Smirnov distance of two histograms."""
    most = below_one = below_other = 0.0
    for value in sorted({*one, *other}):
        below_one += one.get(value, 0) / sum(one.values())
        below_other += other.get(value, 0) / sum(other.values())
        most = max(most, abs(below_one - below_other))
    return most


def staleness(run: Run) -> dict[str, Counter[int]]:
    """By worker, how many of its updates were how stale, whoever applied them."""
    found: dict[str, Counter[int]] = {}
    for process in run.trace.processes:
        for sender, counts in process.staleness_by_sender.items():
            found.setdefault(sender, Counter()).update(counts)
    return found


def compare(strategy: str, live: Run, virtual: Run) -> Twins:
    """Hold two runs against each other."""
    one, other = staleness(live), staleness(virtual)
    if one.keys() != other.keys():
        raise ValueError(f"live {sorted(one)} recorded staleness, virtually {sorted(other)}")
    all_live, all_virtual = (sum(each.values(), Counter()) for each in (one, other))
    updates = all_live.total()
    return Twins(
        strategy,
        live.samples,
        live=paced.steady_rate(live),
        virtual=paced.steady_rate(virtual),
        staleness=sum(s * n for s, n in all_live.items()) / updates if updates else None,
        distance=distance(all_live, all_virtual) if updates else None,
        worst=max((distance(one[name], other[name]) for name in one), default=None),
    )


def pace_of(strategy: str) -> Pace:
    """How long batches take under a strategy."""
    # Between its write and its next read a worker asks for samples, which twins do not know. Under
    # other strategies this is a little less speed; here it is also a little less staleness.
    return replace(PACE, seconds=0.03) if strategy.startswith("hogwild") else PACE


def measure(
    strategy: str, folder: Path, pace: Pace | None = None, launch: Launch = paced.run_to_end
) -> Twins:
    """Make both runs, once more if the two are too far apart."""
    pace = pace or pace_of(strategy)
    for attempt in (1, 2):
        live = paced.train(strategy, pace, folder / f"live-{attempt}", launch)
        longer = replace(pace, epochs=3 * pace.epochs)
        conditions = paced.measured(live)
        virtual = paced.simulate(strategy, longer, conditions, folder / f"virtual-{attempt}")
        found = replace(compare(strategy, live, virtual), attempts=attempt)
        if found.agree:
            break
    return found


def table(figures: dict[str, Any]) -> str:
    """The comparison as it is shown in the documentation."""
    return "\n".join([HEADING, *(Twins(**each).row for each in figures.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs; nothing is stored")
    parser.add_argument("--only", help="the strategies whose text holds this; nothing is stored")
    given = parser.parse_args()
    print(f"4 workers, {1e3 * PACE.seconds:g} ms a batch (cv {PACE.cv:g})")
    print(HEADING)
    figures: dict[str, object] = {}
    for strategy in STRATEGIES:
        if given.only and given.only not in strategy:
            continue
        with tempfile.TemporaryDirectory() as folder:
            pace = pace_of(strategy)
            pace = replace(pace, epochs=3) if given.quick else pace
            found = measure(strategy, Path(folder), pace)
        print(found.row, "" if found.agree else "too far apart", flush=True)
        figures[strategy] = asdict(found)
    if not given.quick and not given.only:
        keep("twins", figures)
        write_table("twins", table(figures))
    report("twins", figures)


if __name__ == "__main__":
    main()
