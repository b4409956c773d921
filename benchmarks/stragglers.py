"""What a straggler costs each strategy, on real processes and on the virtual cluster.

Four workers, of which the last takes four times as long; computing is paced (`benchmarks.paced`).
Throughput is given as a fraction of the sum of the workers' speeds. Those who wait for all go at
the pace of the slowest: 4·(1/4) / (3 + 1/4) = 0.308. Those who wait for nobody would reach 1 if
exchanging took no time. A round of `softsync(wait_for=3)` takes three workers, and any two rounds
in a row have a fast one in common, so there is at most one in the time of a fast batch: 3 / 3.25.

The virtual run knows the times that the workers are given, and nothing of the machine. What falls
short is measured once more: other processes on a busy machine are not what is measured.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import paced
from benchmarks.figures import keep, report, write_table
from benchmarks.paced import Launch, Pace

SECONDS, SLOW = 0.1, 4.0
NEAR = 0.05
"""How far a fraction may be from that of theory, or of the virtual run, relatively."""
PLAUSIBLE = 0.2
"""The same where only the waiting is judged: one round in five more, or fewer, would be seen."""
_SUM = 3 + 1 / SLOW


@dataclass(frozen=True)
class Case:
    """A strategy, and what theory says of it."""

    strategy: str
    theory: float
    """The fraction of the sum of the workers' speeds that nothing can exceed."""
    epoch: int
    """Updates in an epoch: whole rounds, or what is done while the slow one computes once."""
    least: float | None = None
    """The fraction that must be reached; None where it must be near the one of theory."""

    def pace(self, epochs: int) -> Pace:
        """A run of so many epochs."""
        return Pace(SECONDS, SLOW, epoch=self.epoch, epochs=epochs)


@dataclass(frozen=True)
class Fractions:
    """Throughput as a fraction of the sum of the workers' speeds."""

    strategy: str
    theory: float
    live: float
    virtual: float
    least: float
    """What `live` has to reach."""
    attempts: int = 1

    @property
    def hold(self) -> bool:
        """Whether they are what they must be: neither too little, nor more than theory allows."""
        sound = self.least <= self.live <= self.theory * (1 + NEAR)
        return sound and abs(self.live / self.virtual - 1) <= NEAR

    @property
    def plausible(self) -> bool:
        """Whether the strategy waits as it should, on a machine that may itself be slow or busy."""
        waits = abs(self.live / self.theory - 1) <= PLAUSIBLE
        return waits and abs(self.live / self.virtual - 1) <= PLAUSIBLE

    @property
    def row(self) -> str:
        """For the table."""
        ratio = self.live / self.virtual
        return (
            f"| `{self.strategy}` | {self.theory:.3f} | {self.live:.3f} | {self.virtual:.3f} "
            f"| {ratio:.3f} |"
        )


HEADING = "| strategy | theory | live | virtual | live / virtual |\n| --- | --- | --- | --- | --- |"


def _in_step(strategy: str) -> Case:
    return Case(strategy, theory=4 / SLOW / _SUM, epoch=16)


def _free(strategy: str) -> Case:
    return Case(strategy, theory=1.0, epoch=39, least=0.95)


CASES = (
    _in_step("allreduce()"),
    _in_step("synchronous()"),
    _in_step("central_storage()"),
    _in_step("softsync(wait_for=4)"),
    _in_step("ssp(staleness=0)"),
    # One that is always slow holds up everybody, as soon as the bound is used up.
    _in_step("ssp(staleness=2)"),
    _in_step("averaging()"),
    _in_step("local_sgd(every=4)"),
    _in_step("diloco(every=4)"),
    _in_step("hierarchical(outer=averaging(every=4))"),
    _in_step("easgd()"),
    _in_step("easgd(order=round_robin)"),
    _in_step("gossip()"),
    Case("softsync(wait_for=3)", theory=3 / _SUM, epoch=36, least=0.85),
    _free("asynchronous()"),
    _free("easgd(order=asynchronous)"),
    _free("gossip(order=asynchronous)"),
    _free("push_sum()"),
    _free("broadcast()"),
    _free("hogwild()"),
    _free("ensemble()"),
)

_VIRTUALLY = {"allreduce()": "synchronous()"}
"""What PyTorch's own engine does is not simulated; this is the protocol that it equals."""


def measure(
    case: Case, folder: Path, *, epochs: int = 5, launch: Launch = paced.run_to_end
) -> Fractions:
    """Train virtually and for real, and for real up to twice more if that falls short."""
    pace = case.pace(epochs)
    strategy = _VIRTUALLY.get(case.strategy, case.strategy)
    virtual = paced.simulate(strategy, pace, paced.Conditions(pace.times), folder / "virtual")
    least = case.theory * (1 - NEAR) if case.least is None else case.least
    for attempt in (1, 2, 3):
        live = paced.train(case.strategy, pace, folder / f"live-{attempt}", launch)
        fractions = [paced.steady_rate(run) / pace.speed for run in (live, virtual)]
        found = Fractions(case.strategy, case.theory, *fractions, least, attempt)
        if found.hold:
            break
    return found


def table(figures: dict[str, Any]) -> str:
    """The fractions as they are shown in the documentation."""
    return "\n".join([HEADING, *(Fractions(**each).row for each in figures.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs; nothing is stored")
    parser.add_argument("--only", help="the strategies whose text holds this; nothing is stored")
    given = parser.parse_args()
    print(f"4 workers, {1e3 * SECONDS:g} ms a batch, the last {SLOW:g} times as long")
    print(HEADING)
    figures: dict[str, object] = {}
    for case in CASES:
        if given.only and given.only not in case.strategy:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measure(case, Path(folder), epochs=3 if given.quick else 5)
        print(found.row, "" if found.hold else "falls short", flush=True)
        figures[case.strategy] = asdict(found)
    if not given.quick and not given.only:
        keep("stragglers", figures)
        write_table("stragglers", table(figures))
    report("stragglers", figures)


if __name__ == "__main__":
    main()
