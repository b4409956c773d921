"""Check a protocol: run seeds under laws, and report the first that breaks one.

By default only laws that need no knowledge of the protocol are applied, so that a protocol of one's
own is tested as the built-in ones are (`docs/decisions/0050-testing-protocols.md`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from manyhands.strategies import protocol_of, strategy
from manyhands.strategies.kinds import protocol_class_of
from manyhands.testing.cases.drawing import draw, with_probes, without_faults
from manyhands.testing.cases.random_faults import with_more_faults
from manyhands.testing.laws.calls import CallsOnce
from manyhands.testing.laws.coding import NothingLost
from manyhands.testing.laws.law import BrokenLawError, Law
from manyhands.testing.laws.pure_decisions import PureDecisions
from manyhands.testing.laws.samples import SamplesOnce
from manyhands.testing.laws.staleness import RecordedStaleness, ReportedVersions
from manyhands.testing.laws.weighting import Weighting
from manyhands.testing.observation import one_thread, run
from manyhands.testing.reference import ReferenceServer
from manyhands.testing.reference import reference as equal_to
from manyhands.testing.replay import replay_command
from manyhands.testing.seed_search import choose_processes, first_broken

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.protocols import StrategyProtocol
    from manyhands.testing.cases.case import Case

    DrawnProtocol: TypeAlias = Callable[[random.Random, int, int], StrategyProtocol]

DEFAULT_LAWS: Final[tuple[type[Law], ...]] = (
    CallsOnce,
    SamplesOnce,
    ReportedVersions,
    RecordedStaleness,
    PureDecisions,
    Weighting,
    NothingLost,
)
"""The laws that hold for every protocol."""
_AGAIN: Final = 25
"""Every so many seeds one is run twice."""


@dataclass(frozen=True)
class CheckingPlan:
    """What `check` was asked for: how cases are drawn, and the laws for them."""

    protocol: StrategyProtocol | DrawnProtocol
    laws: tuple[Callable[[Case], Law], ...]
    workers: Sequence[int]
    faults: bool

    def case(self, seed: int) -> Case:
        """The case of a seed."""
        case = draw(self._draw, seed, self.workers)
        return with_probes(with_more_faults(case, seed) if self.faults else without_faults(case))

    def _draw(self, rng: random.Random, workers: int, servers: int) -> StrategyProtocol:
        return _drawn(self.protocol, rng, workers, servers)

    def run(self, seed: int, more: Sequence[Callable[[Case], Law]] = ()) -> str:
        """Run a seed; return a digest of the run."""
        return run(self.case(seed), (*self.laws, *more))

    def verify(self, seed: int) -> None:
        """Run a seed, and some seeds twice.

        Raises:
            BrokenLawError: a law was broken.
            Exception: the protocol raised an error.
        """
        first = self.run(seed)
        if seed % _AGAIN == 0 and self.run(seed) != first:
            raise BrokenLawError("the same seed gave another run", law="SameSeedSameRun")

    def breaks(self, seed: int) -> bool:
        """Whether a seed breaks a law, or its run raises an error."""
        try:
            self.verify(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is reported by running the seed again
            return True
        return False


@dataclass(frozen=True)
class CheckReport:
    """The result of a check in which no law was broken."""

    protocol: str
    first: int
    seeds: int
    """Number of seeds."""
    laws: tuple[str, ...]
    """The names of the laws."""
    seconds: float
    """Real seconds that the check took."""

    def __str__(self) -> str:
        last = self.first + self.seeds - 1
        return (
            f"{self.protocol}: {self.seeds:,} seeds ({self.first} to {last}) broke no law "
            f"({', '.join(self.laws)}) in {self.seconds:.1f} s"
        )


def check(
    protocol: str | StrategyProtocol | type[StrategyProtocol] | DrawnProtocol,
    seeds: int = 1000,
    *,
    first: int = 0,
    laws: Sequence[type[Law]] = (),
    without: Sequence[type[Law]] = (),
    reference: Callable[[Case, NDArray[np.float64]], ReferenceServer] | None = None,
    workers: tuple[int, int] = (2, 6),
    faults: bool = True,
    processes: int | None = None,
) -> CheckReport:
    """Run a protocol under many random schedules, and check that no law is broken in any of them.

    Each seed stands for a case: a small problem, a number of workers, their speeds and links, and
    crashes, pauses, cut links and lost messages. It is run on the virtual cluster, in milliseconds,
    and the same seed is always the same run. A run that does not end (a deadlock) is an error, too.

    Args:
        protocol: a strategy, its text if it is a built-in one, its class, or a function
            `(rng, workers, servers) -> strategy` that draws one for every seed.
        seeds: number of seeds.
        first: the first seed.
        laws: further laws, such as `Acknowledged`, or classes of one's own.
        without: laws of `DEFAULT_LAWS` that the protocol does not obey on purpose.
        reference: makes a `ReferenceServer`; after every decision the parameters of the servers
            must be equal to the reference's, to within 1e-9.
        workers: least and largest number of workers.
        faults: whether processes crash and links fail; without, only speeds and links vary.
        processes: number of processes; by default one per core if there are many seeds. It does
            not change the result.

    Returns:
        A report; its text is one line.

    Raises:
        BrokenLawError: a law was broken. Its message names the seed, the case, the law, and a
            command that runs this seed again and shows what happens in it.
        ValueError: the protocol cannot run with any of these numbers of workers.
        TypeError: it is not a protocol.

    Example:
        >>> from manyhands.testing import Acknowledged, check
        >>> check("ssp(staleness=2)", seeds=10, laws=[Acknowledged]).seeds
        10
    """
    begun = time.perf_counter()
    plan = make_plan(
        protocol, laws=laws, without=without, reference=reference, workers=workers, faults=faults
    )
    if seeds < 1 or first < 0:
        raise ValueError(f"seeds must be at least 1 and first at least 0, got {seeds} and {first}")
    with one_thread():
        found = first_broken(
            plan.breaks, range(first, first + seeds), choose_processes(processes, seeds)
        )
        if found is not None:
            options = replay_command(
                protocol, found, laws, without, reference, workers, faults=faults
            )
            raise_broken(plan, found, options)
    names = tuple(getattr(law, "__name__", str(law)) for law in plan.laws)
    shown = getattr(plan.protocol, "__name__", None) or str(plan.protocol)
    return CheckReport(shown, first, seeds, names, time.perf_counter() - begun)


def make_plan(
    protocol: str | StrategyProtocol | type[StrategyProtocol] | DrawnProtocol,
    *,
    laws: Sequence[type[Law]],
    without: Sequence[type[Law]],
    reference: Callable[[Case, NDArray[np.float64]], ReferenceServer] | None,
    workers: tuple[int, int],
    faults: bool,
) -> CheckingPlan:
    """The plan of a check; see `check`."""
    chosen = to_protocol(protocol)
    for law in (*laws, *without):
        if not (isinstance(law, type) and issubclass(law, Law)):
            raise TypeError(f"laws are subclasses of manyhands.testing.Law, got {law!r}")
    if unknown := [law.__name__ for law in without if law not in DEFAULT_LAWS]:
        raise ValueError(f"without names laws that are no default: {', '.join(unknown)}")
    default = [law for law in DEFAULT_LAWS if law not in without]
    more = [law for law in laws if law not in default]
    compared = [] if reference is None else [equal_to(reference)]
    return CheckingPlan(
        chosen, (*default, *more, *compared), _worker_counts(chosen, workers), faults
    )


def to_protocol(
    protocol: str | StrategyProtocol | type[StrategyProtocol] | DrawnProtocol,
) -> StrategyProtocol | DrawnProtocol:
    """The protocol, or the function that draws one.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(protocol, str):
        read = protocol_of(strategy(protocol))
        if read is None:
            raise TypeError(
                f"{protocol} is executed by PyTorch and exchanges no messages that could be "
                "simulated: only protocols can be checked"
            )
        return read
    made = protocol_class_of(protocol)
    if made is not None:
        with_defaults: Callable[[], StrategyProtocol] = made
        return with_defaults()
    given = protocol_of(protocol)
    if given is not None:
        return given
    if not callable(protocol):
        raise TypeError(
            "expected a protocol, or a function (rng, workers, servers) that draws one, got "
            f"{protocol!r}"
        )
    return protocol


def raise_broken(plan: CheckingPlan, seed: int, replay: str) -> None:
    """Run a broken seed again, and raise its error with all that is known about it."""
    try:
        plan.verify(seed)
    except Exception as error:
        raise explained(error, plan, seed, replay) from error
    raise BrokenLawError(
        f"seed {seed} broke a law in a forked process, and does not here: the run depends on more "
        "than its seed, such as a global variable",
        law="SameSeedSameRun",
    )


def explained(error: Exception, plan: CheckingPlan, seed: int, replay: str) -> BrokenLawError:
    """The error of a run, with its seed, its case and the command that runs it again."""
    case = plan.case(seed)
    if isinstance(error, BrokenLawError):
        law, what = error.law, str(error)
    else:
        law, what = "NoErrors", f"{type(error).__name__}: {error}"
    full = BrokenLawError(
        f"{case.protocol} breaks {law} with seed {seed}: {what}\n"
        f"  case    {case}\n"
        f"  replay  {replay}",
        law=law,
    )
    full.seed, full.case, full.replay = seed, str(case), replay
    return full


def _drawn(
    protocol: StrategyProtocol | DrawnProtocol, rng: random.Random, workers: int, servers: int
) -> StrategyProtocol:
    given = protocol_of(protocol)
    if given is not None:
        return given
    if not callable(protocol):
        raise TypeError(f"{protocol!r} draws no protocol")
    drawn = protocol(rng, workers, servers)
    drawn.check(workers)
    return drawn


def _worker_counts(
    protocol: StrategyProtocol | DrawnProtocol, workers: tuple[int, int]
) -> Sequence[int]:
    """The numbers of workers that the protocol can run with."""
    least, most = workers
    if not 2 <= least <= most:
        raise ValueError(f"workers must be two numbers from 2 on, as in (2, 6), got {workers}")
    counts = range(least, most + 1)
    given = protocol_of(protocol)
    if given is None:
        return counts
    refused: ValueError | None = None
    possible = []
    for count in counts:
        try:
            given.check(count)
            possible.append(count)
        except ValueError as error:
            refused = error
    if refused is not None and not possible:
        raise ValueError(f"{given} cannot run with {least} to {most} workers: {refused}")
    return possible
