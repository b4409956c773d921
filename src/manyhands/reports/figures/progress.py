"""Progress of a run while it goes on, from the records of its trace as they are written.

A process writes its sums once a second, and in a run of hours every hundredth of the time so far;
events are written within a second. So the figures of a worker are as old as its last sums.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from manyhands.reports.figures.trace_figures import VALIDATION
from manyhands.trace import (
    Event,
    Header,
    Offset,
    Point,
    SampleCount,
    SenderStaleness,
    Setting,
    Span,
    Staleness,
    Totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from manyhands.trace import Record

_WINDOW: Final = 10.0
"""Seconds over which a worker's speed is measured, at least."""
_WINDOW_SHARE: Final = 0.05
"""The window as a share of the time so far: sums become rarer."""
_SILENT: Final = 5.0
_SILENT_SHARE: Final = 0.04
_ENDED: Final = ("lost", "trained", "left")
_FAULTS: Final = (
    *("lost", "restart", "returned", "suspect", "back", "failure", "diverged"),
    *("fault", "fault over", "fault failed"),
)


@dataclass(slots=True)
class MemberProgress:
    """One process of the run, in its current incarnation."""

    name: str
    header: Header
    restarts: int = 0
    state: str = "starting"
    """starting, training, lost, trained or left."""
    at: float = 0.0
    """Unix time of the last record."""
    samples: int = 0
    """Samples of this incarnation."""
    before: int = 0
    """Samples of earlier incarnations."""
    sent: int = 0
    sent_before: int = 0
    loss: float | None = None
    weight: float = 0.0
    doing: str = ""
    """What most of the time between the last two sums was spent on, as in `compute 81 %`."""
    _seconds: dict[str, float] = field(default_factory=dict)
    _counted: deque[tuple[float, int]] = field(default_factory=deque)
    """Times of its clock and samples until then, of late."""
    _first: tuple[float, int] = (0.0, 0)

    @property
    def all_samples(self) -> int:
        """Samples of all incarnations."""
        return self.before + self.samples

    @property
    def all_sent(self) -> int:
        """Bytes that all incarnations sent."""
        return self.sent_before + self.sent

    @property
    def rate(self) -> float:
        """Samples per second of late, of a worker that has ended over its whole life."""
        if not self._counted:
            return 0.0
        (begun, first), (ended, last) = self._counted[0], self._counted[-1]
        if self.state in _ENDED:
            begun, first = self._first
        return (last - first) / (ended - begun) if ended > begun else 0.0

    def begin_again(self, header: Header) -> None:
        """A successor of the process writes from here on."""
        self.before, self.samples = self.all_samples, 0
        self.sent_before, self.sent = self.all_sent, 0
        self.header = header
        self.restarts += 1
        self.state, self.doing = "starting", ""
        self._seconds.clear()
        self._counted.clear()

    def time(self, at: float) -> float:
        """Unix time of a time on the process's clock."""
        return at - self.header.clock + self.header.wall

    def count(self, at: float, samples: int) -> None:
        """Note how many samples there were at a time of the process's clock."""
        self.samples = max(self.samples, samples)
        if self.samples and self.state == "starting":
            self.state = "training"
        if not self._counted:
            self._first = (at, self.samples)
        elif at < self._counted[-1][0] or self.state in _ENDED:
            return
        self._counted.append((at, self.samples))
        window = max(_WINDOW, _WINDOW_SHARE * (at - self.header.clock))
        while len(self._counted) > 2 and at - self._counted[0][0] > window:
            self._counted.popleft()

    def sum_up(self, totals: Totals) -> None:
        """Note the sums that the process wrote."""
        self.sent = sum(totals.sent.values())
        spent = {
            kind: seconds - self._seconds.get(kind, 0.0) for kind, seconds in totals.seconds.items()
        }
        whole = sum(spent.values())
        if whole > 0:
            most = max(spent, key=lambda kind: spent[kind])
            self.doing = f"{most} {100 * spent[most] / whole:.0f} %"
        self._seconds = dict(totals.seconds)
        self.count(totals.at, totals.samples)


@dataclass(frozen=True, slots=True)
class FaultNote:
    """A fault of the run, or the end of one."""

    seconds: float
    """Seconds since the run's start."""
    words: str


class RunProgress:
    """The state of a run, from the records that were read so far.

    Example:
        >>> progress = RunProgress()
        >>> progress.phase, progress.samples
        ('starting', 0)
    """

    def __init__(self) -> None:
        self.members: dict[str, MemberProgress] = {}
        self.settings: dict[str, str] = {}
        self.faults: list[FaultNote] = []
        self.lost = 0
        """How many times a worker was lost."""
        self.metrics: dict[str, float | None] = {}
        """The last validation metrics."""
        self.end: Event | None = None
        """The event that ended the run."""
        self.began: float | None = None
        """Unix time of the run's start."""
        self.at = 0.0
        """Unix time of the last record."""
        self._budget: int | None = None
        self._epoch: int | None = None
        """Samples of an epoch, once one has ended."""
        self._counts: dict[str, SampleCount] = {}
        self._stale: dict[tuple[str, int], Mapping[int, int]] = {}
        self._told: set[str] = set()
        self._gone: dict[str, tuple[float, str]] = {}
        """By name, when other processes wrote that it was lost or has left. Its own records may be
        read later than theirs."""
        self._by_sender: dict[str, dict[tuple[str, int], Mapping[int, int]]] = {}
        self._training: tuple[float, float] | None = None
        """Unix times of the first batch of any worker and of the end of the last one."""

    def add(self, records: Iterable[tuple[str, Record]]) -> None:
        """Take in new records, each with the name of its process."""
        for name, record in records:
            if isinstance(record, Header):
                self._begin(name, record)
            elif name in self.members:
                self._take(self.members[name], record)
        for name, (at, state) in self._gone.items():
            member = self.members.get(name)
            # A successor that began later is not concerned.
            if member is not None and member.state != "trained" and member.header.wall <= at:
                member.state = state

    @property
    def workers(self) -> list[MemberProgress]:
        """The workers, lost ones first, then silent ones, then by speed, the slowest first."""
        found = [one for one in self.members.values() if one.header.role == "worker"]
        return sorted(found, key=self._order)

    @property
    def phase(self) -> str:
        """starting, training, evaluating, or how the run ended."""
        if self.end is not None:
            return self.end.detail.get("status", "ended")
        workers = [one for one in self.workers if one.state == "training"]
        if not workers:
            ended = any(one.state in _ENDED for one in self.workers)
            return "ending" if ended else "starting"
        evaluating = sum(one.doing.startswith("evaluate") for one in workers)
        return "evaluating" if 2 * evaluating > len(workers) else "training"

    @property
    def samples(self) -> int:
        """Samples that the run has trained on."""
        seen = sum(count.seen for count in self._counts.values())
        # The coordinator's count is exact; the workers' is earlier.
        counted = sum(worker.all_samples for worker in self.workers)
        most = counted if not self.lost else 0
        return min(max(seen, most), self.total or max(seen, most))

    @property
    def total(self) -> int | None:
        """Samples until the run ends; None if that is not known."""
        if self._budget is not None:
            return self._budget
        limits = []
        if self.settings.get("samples", "").isdecimal():
            limits.append(int(self.settings["samples"]))
        if self._epoch is not None and "epochs" in self.settings:
            limits.append(round(float(self.settings["epochs"]) * self._epoch))
        return min(limits, default=None)

    @property
    def rate(self) -> float:
        """Samples per second of all workers of late; of the whole run, if it has ended."""
        if self.end is not None and self._training is not None:
            begun, ended = self._training
            return self.samples / (ended - begun) if ended > begun else 0.0
        return sum(worker.rate for worker in self.workers)

    @property
    def seconds(self) -> float:
        """Seconds from the run's start to the last record."""
        return 0.0 if self.began is None else max(0.0, self.at - self.began)

    @property
    def loss(self) -> float | None:
        """The mean of the workers' last losses, by their samples; None if one is not finite."""
        known = [worker for worker in self.workers if worker.weight]
        if not known or any(worker.loss is None for worker in known):
            return None
        whole = sum(worker.weight for worker in known)
        return sum((worker.loss or 0.0) * worker.weight for worker in known) / whole

    @property
    def staleness(self) -> tuple[float, int] | None:
        """Mean and largest staleness of all updates; None if none was recorded."""
        return mean_and_most(_summed(self._stale.values()))

    def staleness_of(self, worker: MemberProgress) -> tuple[float, int] | None:
        """Mean and largest staleness of a worker's updates; None if none was recorded."""
        return mean_and_most(_summed(self._by_sender.get(worker.name, {}).values()))

    @property
    def sent(self) -> int:
        """Bytes that all processes sent."""
        return sum(member.all_sent for member in self.members.values())

    @property
    def restarts(self) -> int:
        """How many times a process was started again."""
        return sum(member.restarts for member in self.members.values())

    def is_silent(self, member: MemberProgress) -> bool:
        """Whether a process that should write has written nothing for long."""
        patience = max(_SILENT, _SILENT_SHARE * self.seconds)
        ended = self.end is not None or member.state in _ENDED
        return not ended and self.at - member.at > patience

    def state(self, member: MemberProgress) -> str:
        """A process's state, in one word."""
        if self.end is not None and member.state not in _ENDED:
            return "ended"
        return "silent" if self.is_silent(member) else member.state

    def _order(self, worker: MemberProgress) -> tuple[int, float, int]:
        if worker.state == "lost":
            return 0, 0.0, worker.header.rank
        if self.is_silent(worker):
            return 1, worker.at, worker.header.rank
        return 2 + (worker.state in _ENDED), worker.rate, worker.header.rank

    def _begin(self, name: str, header: Header) -> None:
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = MemberProgress(name, header)
        else:
            member.begin_again(header)
        self.began = header.wall if self.began is None else min(self.began, header.wall)
        self._reach(member, header.clock)

    def _take(self, member: MemberProgress, record: Record) -> None:
        match record:
            case Totals():
                member.sum_up(record)
                self._reach(member, record.at)
                if member.state == "training" and member.header.kind == "virtual":
                    self._train(member.at)
            case Point():
                self._take_point(member, record)
            case Event():
                self._take_event(member, record)
            case SampleCount():
                self._counts[member.name] = record
            case Staleness():
                self._stale[member.name, member.restarts] = record.counts
            case SenderStaleness():
                held = self._by_sender.setdefault(record.sender, {})
                held[member.name, member.restarts] = record.counts
            case Setting():
                self.settings.setdefault(record.name, record.value)
            case Span(kind="data" | "compute") if member.header.role == "worker":
                self._train(member.time(record.start))
            case Span() | Offset():
                pass

    def _take_point(self, member: MemberProgress, point: Point) -> None:
        self._reach(member, point.at)
        if point.name == "loss":
            member.loss, member.weight = point.value, point.weight
            member.count(point.at, point.samples)
        elif point.name.startswith(VALIDATION):
            self.metrics[point.name.removeprefix(VALIDATION)] = point.value

    def _take_event(self, member: MemberProgress, event: Event) -> None:
        self._reach(member, event.at)
        if event.what in ("lost", "left"):
            gone = _name(event.detail.get("member", ""))
            self._gone[gone] = (member.time(event.at), event.what)
        match event.what:
            case "begin":
                budget = event.detail.get("samples", "")
                self._budget = int(budget) if budget.isdecimal() else None
            case "training" | "trained":
                member.state = event.what
                self._train(member.time(event.at), begins=False)
            case "epoch":
                number, samples = int(event.detail["number"]), int(event.detail["samples"])
                self._epoch = self._epoch or round(samples / (number + 1))
            case "end" if member.header.rank == 0:
                self.end = event
        if event.what in _FAULTS:
            self._note_fault(member, event)

    def _note_fault(self, member: MemberProgress, event: Event) -> None:
        words = event.detail.get("words") or event.detail.get("what") or ""
        if event.what == "returned":
            words = f"{event.detail.get('member', '')} has rejoined"
        # Agent and coordinator both write that a worker is lost.
        key = words if event.what == "lost" else f"{event.what} {words} {event.at}"
        if key in self._told:
            return
        self._told.add(key)
        self.lost += event.what == "lost"
        again = ", restarted" if event.what == "restart" else ""
        seconds = member.time(event.at) - (self.began or 0.0)
        self.faults.append(FaultNote(seconds, f"{words}{again}"))

    def _train(self, at: float, *, begins: bool = True) -> None:
        begun, ended = self._training or (at, at)
        self._training = (min(begun, at) if begins else begun, max(ended, at))

    def _reach(self, member: MemberProgress, at: float) -> None:
        member.at = max(member.at, member.time(at))
        self.at = max(self.at, member.at)


def mean_and_most(counts: Mapping[int, int]) -> tuple[float, int] | None:
    """The mean and the largest of the staleness of updates; None if there are none.

    >>> mean_and_most({0: 3, 4: 1})
    (1.0, 4)
    """
    updates = sum(counts.values())
    if not updates:
        return None
    return sum(versions * count for versions, count in counts.items()) / updates, max(counts)


def _summed(histograms: Iterable[Mapping[int, int]]) -> Counter[int]:
    whole: Counter[int] = Counter()
    for histogram in histograms:
        whole.update(histogram)
    return whole


def _name(member: str) -> str:
    """The name of a process in a trace, of `worker-3` or `worker 3 on hostA`.

    >>> _name("worker 3 on hostA"), _name("worker-3")
    ('worker-3', 'worker-3')
    """
    return "-".join(member.partition(" on ")[0].split(" ", 1))
