"""Recorder: writes a trace with little overhead, exact sums and bounded size.

The methods that the training loop calls only append to a list. `drain` and `flush` take the list's
content, add it to the sums, select what is kept and pass bytes to a sink. They may run on another
thread than those that record. That is safe without a lock because the list is never replaced: its
`append`, the copy of its first n entries and their deletion are each one operation under the
interpreter's lock, and an entry added in between comes after the first n, which neither operation
touches. (Swapping the list for an empty one would not be safe: a recording thread may hold a
reference to the old one and append to it after it was written.) The sums belong to the flushing
thread, so only one thread may flush at a time.

**Sampling.** Of the steps 0, 1, 2, … the first `full_steps` are all recorded, then every 2nd step
until as many again are recorded, then every 4th, and so on: about `full_steps · log2(steps /
full_steps)` in total. The selection depends only on the number of the step, so all workers keep the
same steps and their spans can be compared (`docs/decisions/0009-traces.md`). Points are sampled in
the same way by their number within their name, `start` and `evaluate` spans by their number within
their kind (they occur in few steps, which the sampling would mostly miss).

Bytes are recorded by peer for the `PEERS` with the most bytes; the rest is one sum, so that the
total of a process stays exact.

Staleness is recorded by sender for the first `SENDERS` senders. A sender's distribution is written
together with the sums if it has grown by a quarter, and always by `flush`: the number of records is
logarithmic in the number of updates.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import Final

import msgspec

from manyhands.trace.records import (
    KINDS,
    Event,
    Header,
    Kind,
    Offset,
    Point,
    Record,
    SampleCount,
    SenderStaleness,
    Setting,
    Span,
    Staleness,
    Totals,
)
from manyhands.trace.traffic import Flow

_KINDS: Final = frozenset(KINDS)
_RARE: Final = frozenset(("start", "evaluate"))

# `drain` writes sums when this fraction of the run has passed since the last ones, and at least a
# second: so their number is logarithmic in the length of the run, and a process that is killed
# loses at most a hundredth of its sums.
_DUE_SHARE: Final = 0.01
_DUE_SECONDS: Final = 1.0

SENDERS: Final = 64
"""Senders whose staleness is recorded separately; that of the others is only in the total."""
_GROWTH: Final = 1.25

PEERS: Final = 32
"""Peers whose bytes are recorded separately by a process. Without a limit the traces of all
processes would grow with the square of their number."""
OTHERS: Final = "others"
"""The name for all further peers."""

# The clock's resolution is a nanosecond; further digits are rounding noise.
_DIGITS: Final = 9


class _Count(msgspec.Struct, frozen=True):
    samples: int
    steps: int
    sent: dict[str, int]
    received: dict[str, int]
    traffic: dict[str, Flow]


class _Traffic(msgspec.Struct, frozen=True):
    sent: dict[str, int]
    received: dict[str, int]
    traffic: dict[str, Flow]


class _Applied(msgspec.Struct, frozen=True, gc=False):
    versions: int
    sender: str


_Pending = tuple[Kind, float, float, int] | _Applied | _Count | _Traffic | Record


def keeps(number: int, full: int) -> bool:
    """Whether the step or point of that number is recorded.

    >>> [n for n in range(20) if keeps(n, full=4)]
    [0, 1, 2, 3, 4, 6, 8, 10, 12, 16]
    """
    level = (number // full + 1).bit_length() - 1
    return number & ((1 << level) - 1) == 0


def _bounded(by_peer: Mapping[str, int]) -> dict[str, int]:
    """Bytes by peer, for the `PEERS` with the most bytes; those of the rest in one sum."""
    if len(by_peer) <= PEERS:
        return dict(by_peer)
    most = dict(nlargest(PEERS - 1, by_peer.items(), key=lambda each: (each[1], each[0])))
    return {**most, OTHERS: sum(by_peer.values()) - sum(most.values())}


class Recorder:
    """Writes one process's trace to a sink.

    Args:
        header: the process's header, part of the first bytes that are written.
        sink: writes complete lines, as `open(trace_file(folder, header), "ab", buffering=0).write`
            does. If it raises, the flushing call raises and that batch of spans and points is
            lost; the sums are written again later.
        clock: the clock of `header.clock` and of all spans.
        full_steps: number of steps that are recorded before sampling begins; see above.
        continues: whether a predecessor has written the header, and its records are continued.

    Call `drain` about every second and `flush` at the end. A virtual run calls both by its virtual
    clock, so that its trace does not depend on the machine's speed.
    """

    def __init__(
        self,
        header: Header,
        sink: Callable[[bytes], object],
        clock: Callable[[], float],
        full_steps: int = 2000,
        *,
        continues: bool = False,
    ) -> None:
        if full_steps < 1:
            raise ValueError(f"full_steps must be at least 1, got {full_steps}")
        self.header = header
        self.follows_staleness = False
        """Whether the staleness of updates is recorded over time, beside its distribution."""
        self._sink = sink
        self._clock = clock
        self._full = full_steps
        self._pending: list[_Pending] = [] if continues else [header]
        self._append = self._pending.append
        self._encoder = msgspec.json.Encoder()
        # The attributes from here on belong to the flushing thread.
        self._begun = False
        self._summed_at = header.clock
        self._steps = 0
        self._samples = 0
        self._seconds: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._traffic: dict[str, Flow] = {}
        self._staleness: Counter[int] = Counter()
        self._by_sender: dict[str, Counter[int]] = {}
        self._written: Counter[str] = Counter()
        self._accounted: SampleCount | None = None
        self._numbers: Counter[str] = Counter()
        self._latest: dict[str, Point] = {}
        self._error = float("inf")

    def span(self, kind: Kind, start: float, seconds: float, step: int = 0) -> None:
        """Record that `seconds` from `start` were spent on `kind` during `step`, from 0."""
        if kind not in _KINDS or step < 0:
            raise ValueError(
                f"invalid span ({kind!r}, step {step}): the kind must be one of "
                f"{', '.join(KINDS)}, and the step at least 0"
            )
        self._append((kind, start, seconds, step))

    def count(
        self,
        *,
        samples: int = 0,
        steps: int = 0,
        sent: Mapping[str, int] | None = None,
        received: Mapping[str, int] | None = None,
        traffic: Mapping[str, Flow] | None = None,
    ) -> None:
        """Add to the sums: `sent` and `received` by peer, `traffic` by phase and scope."""
        bytes_ = (dict(sent or {}), dict(received or {}), dict(traffic or {}))
        self._append(_Count(samples, steps, *bytes_))

    def traffic(
        self,
        *,
        sent: Mapping[str, int],
        received: Mapping[str, int],
        traffic: Mapping[str, Flow] | None = None,
    ) -> None:
        """Set the bytes so far, as counted by the kernel; replaces the last values."""
        self._append(_Traffic(dict(sent), dict(received), dict(traffic or {})))

    def point(self, name: str, value: float, *, samples: int, weight: float = 1.0) -> None:
        """Record the value of `name` now. `flush` always writes the latest value of a name."""
        self._append(Point(self._clock(), name, value, samples, weight))

    def staleness(self, versions: int, sender: str = "") -> None:
        """Record the staleness of an applied update, and the sender that computed it, if known."""
        self._append(_Applied(int(versions), sender))
        if self.follows_staleness:
            self.point("measure/staleness", versions, samples=0)

    def samples(self, seen: int, repeated: int = 0, lost: int = 0) -> None:
        """Set the samples that this process has counted so far; replaces the last values."""
        self._append(SampleCount(self._clock(), seen, repeated, lost))

    def event(self, what: str, detail: Mapping[str, str] | None = None) -> None:
        """Record an event; `Event` lists those that reports use."""
        self._append(Event(self._clock(), what, dict(detail or {})))

    def setting(self, name: str, value: object, source: str) -> None:
        """Record a setting of the run as text, and where it came from."""
        self._append(Setting(name, str(value), source))

    def offset(self, seconds: float, error: float) -> None:
        """Record reference clock minus own clock; kept if it is the best estimate so far."""
        self._append(Offset(self._clock(), seconds, error))

    def drain(self) -> None:
        """Write pending records, and the sums when they are due. To be called often."""
        records = self._fold()
        now = self._clock()
        due = max(_DUE_SECONDS, _DUE_SHARE * (now - self.header.clock))
        if not self._begun or now - self._summed_at >= due:
            records += self._sums(now)
        self._write(records)

    def flush(self) -> None:
        """Write pending records and the current sums. To be called at the end."""
        records = self._fold()
        self._write(records + self._sums(self._clock(), growth=1.0))

    def discard(self) -> None:
        """Discard pending records, which a predecessor has written; sums continue from theirs."""
        self._fold()

    def _fold(self) -> list[Record]:
        """Add pending records to the sums; return those that are to be written."""
        length = len(self._pending)
        batch = self._pending[:length]
        del self._pending[:length]
        kept: list[Record] = []
        spent, full = self._seconds, self._full
        for item in batch:
            if isinstance(item, tuple):
                kind, start, seconds, step = item
                spent[kind] = spent.get(kind, 0.0) + seconds
                if self._keeps_next(f"span/{kind}") if kind in _RARE else keeps(step, full):
                    kept.append(Span(kind, round(start, _DIGITS), round(seconds, _DIGITS), step))
            elif isinstance(item, SampleCount):
                self._accounted = item
            elif isinstance(item, _Applied):
                self._note_applied(item)
            elif isinstance(item, _Count):
                self._add(item)
            elif isinstance(item, _Traffic):
                # Counter.update adds and | takes the larger; dict.update replaces.
                dict.update(self._sent, item.sent)
                dict.update(self._received, item.received)
                self._traffic |= item.traffic
            elif self._keeps_record(item):
                kept.append(item)
        return kept

    def _note_applied(self, applied: _Applied) -> None:
        versions, sender = applied.versions, applied.sender
        self._staleness[versions] += 1
        known = self._by_sender
        if sender and (sender in known or len(known) < SENDERS):
            known.setdefault(sender, Counter())[versions] += 1

    def _add(self, count: _Count) -> None:
        self._samples += count.samples
        self._steps += count.steps
        self._sent.update(count.sent)
        self._received.update(count.received)
        for kind, flow in count.traffic.items():
            self._traffic[kind] = self._traffic.get(kind, Flow()) + flow

    def _keeps_record(self, record: Record) -> bool:
        """Whether to write it now; counts and skipped points are kept for `_sums`."""
        if isinstance(record, Point):
            if self._keeps_next(f"point/{record.name}"):
                self._latest.pop(record.name, None)
                return True
            self._latest[record.name] = record
            return False
        if isinstance(record, Offset):
            better = record.error < self._error
            self._error = min(record.error, self._error)
            return better
        return True

    def _keeps_next(self, name: str) -> bool:
        number = self._numbers[name]
        self._numbers[name] = number + 1
        return keeps(number, self._full)

    def _sums(self, now: float, growth: float = _GROWTH) -> list[Record]:
        """The cumulative records, and the latest points that sampling had skipped."""
        self._summed_at = now
        sums: list[Record] = list(self._latest.values())
        self._latest.clear()
        if self._staleness:
            sums.append(Staleness(now, dict(self._staleness)))
            sums += self._senders(now, growth)
        if self._accounted is not None:
            sums.append(self._accounted)
        sums.append(
            Totals(
                now,
                self._steps,
                self._samples,
                dict(self._seconds),
                _bounded(self._sent),
                _bounded(self._received),
                dict(self._traffic),
            )
        )
        return sums

    def _senders(self, now: float, growth: float) -> Iterator[Record]:
        """The staleness of each sender whose distribution has grown since it was last written."""
        for sender, counts in self._by_sender.items():
            total = counts.total()
            if total > self._written[sender] and total >= growth * self._written[sender]:
                self._written[sender] = total
                yield SenderStaleness(now, sender, dict(counts))

    def _write(self, records: list[Record]) -> None:
        if not records:
            return
        lines = self._encoder.encode_lines(records)
        if not self._begun:
            # A predecessor that was killed may have left an incomplete last line; an empty line
            # separates this header from it.
            lines = b"\n" + lines
            self._begun = True
        self._sink(lines)
