"""Writing a trace: cheap while training, exact in its sums, bounded in its volume.

What the training loop calls only appends to a list. `drain` and `flush` take the list's content,
add it to the sums, choose what to keep and hand bytes to a sink. They may run on another thread
than those that record. That is safe without a lock because the list is never replaced: its
`append`, the copy of its first n entries and their deletion are each one operation under the
interpreter's lock, and an entry added in between stands behind the first n, where neither touches
it. (Swapping the list for an empty one would not be safe: a recording thread may have looked the
old one up and append to it after it was written.) The sums belong to whoever flushes, so only one
thread at a time may.

**What is kept.** Of the steps 0, 1, 2, … the first `full_steps` are all recorded, then every 2nd
step until as many again are recorded, then every 4th, and so on: about `full_steps · log2(steps /
full_steps)` in all. The choice looks at the number of the step and at nothing else, so all workers
keep the same steps and their spans can be held against each other. Points are thinned likewise by
their number within their name, `start` and `evaluate` spans by their number within their kind
(they fall on few steps, which the sampling would mostly miss).

Bytes are told apart by peer for the `PEERS` with most of them; the rest is one sum, so that what a
process sent in all stays exact.

Staleness is told apart by sender for the first `SENDERS` of them. A sender's distribution is
written when the sums are and it has grown by a quarter, and by `flush` in any case: as often as the
logarithm of its updates.
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

_KINDS: Final = frozenset(KINDS)
_RARE: Final = frozenset(("start", "evaluate"))

# `drain` writes sums when this share of the run has passed since it last did, and a second at
# least: their number then grows with the logarithm of the run's length, and a process that is
# killed has lost a hundredth of its sums at most.
_DUE_SHARE: Final = 0.01
_DUE_SECONDS: Final = 1.0

SENDERS: Final = 64
"""Senders whose staleness is told apart; that of the others is in the sum of all."""
_GROWTH: Final = 1.25

PEERS: Final = 32
"""Peers whose bytes are told apart in the sums of a process. Without a limit the traces of all
processes would grow with the square of their number."""
OTHERS: Final = "others"
"""What stands for the peers beyond these."""

# A nanosecond is what the clock resolves; further digits are the subtraction's noise.
_DIGITS: Final = 9


class _Count(msgspec.Struct, frozen=True):
    samples: int
    steps: int
    sent: dict[str, int]
    received: dict[str, int]


class _Traffic(msgspec.Struct, frozen=True):
    sent: dict[str, int]
    received: dict[str, int]


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
    """Bytes by peer, of the `PEERS` with most; those of the rest in one sum."""
    if len(by_peer) <= PEERS:
        return dict(by_peer)
    most = dict(nlargest(PEERS - 1, by_peer.items(), key=lambda each: (each[1], each[0])))
    return {**most, OTHERS: sum(by_peer.values()) - sum(most.values())}


class Recorder:
    """Writes one process's trace to a sink.

    Args:
        header: who writes; it is part of the first bytes the sink gets.
        sink: takes whole lines, as in `open(trace_file(folder, header), "ab", buffering=0).write`.
            If it raises, the error reaches whoever flushed and that batch of spans and points is
            lost; the sums are not, they come again.
        clock: the clock that `header.clock` and all spans are read from.
        full_steps: see above.

    Call `drain` every second or so and `flush` at the end. A virtual run calls both by its virtual
    clock, or its trace would depend on the machine's speed.
    """

    def __init__(
        self,
        header: Header,
        sink: Callable[[bytes], object],
        clock: Callable[[], float],
        full_steps: int = 2000,
    ) -> None:
        if full_steps < 1:
            raise ValueError(f"full_steps is {full_steps}: record at least 1 step in full")
        self.header = header
        self._sink = sink
        self._clock = clock
        self._full = full_steps
        self._pending: list[_Pending] = [header]
        self._append = self._pending.append
        self._encoder = msgspec.json.Encoder()
        # From here on the flushing thread's own.
        self._begun = False
        self._summed_at = header.clock
        self._steps = 0
        self._samples = 0
        self._seconds: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._staleness: Counter[int] = Counter()
        self._by_sender: dict[str, Counter[int]] = {}
        self._told: Counter[str] = Counter()
        self._accounted: SampleCount | None = None
        self._numbers: Counter[str] = Counter()
        self._latest: dict[str, Point] = {}
        self._error = float("inf")

    def span(self, kind: Kind, start: float, seconds: float, step: int = 0) -> None:
        """`seconds` from `start` went into `kind` during `step` (counted from 0)."""
        if kind not in _KINDS or step < 0:
            raise ValueError(
                f"no span ({kind!r}, step {step}): kinds are {', '.join(KINDS)}; steps count from 0"
            )
        self._append((kind, start, seconds, step))

    def count(
        self,
        *,
        samples: int = 0,
        steps: int = 0,
        sent: Mapping[str, int] | None = None,
        received: Mapping[str, int] | None = None,
    ) -> None:
        """Add to the sums; `sent` and `received` are bytes by peer."""
        self._append(_Count(samples, steps, dict(sent or {}), dict(received or {})))

    def traffic(self, *, sent: Mapping[str, int], received: Mapping[str, int]) -> None:
        """Bytes by peer so far, as the kernel counts them, in place of what was said before."""
        self._append(_Traffic(dict(sent), dict(received)))

    def point(self, name: str, value: float, *, samples: int, weight: float = 1.0) -> None:
        """`name` has this value now. The latest of a name is written by `flush` in any case."""
        self._append(Point(self._clock(), name, value, samples, weight))

    def staleness(self, versions: int, sender: str = "") -> None:
        """An update this many versions old was applied; `sender` computed it, if that is known."""
        self._append(_Applied(int(versions), sender))

    def samples(self, seen: int, repeated: int = 0, lost: int = 0) -> None:
        """What this process answers for so far, in place of what it said before."""
        self._append(SampleCount(self._clock(), seen, repeated, lost))

    def event(self, what: str, detail: Mapping[str, str] | None = None) -> None:
        """Something happened; `Event` says which words the reports understand."""
        self._append(Event(self._clock(), what, dict(detail or {})))

    def setting(self, name: str, value: object, source: str) -> None:
        """The run's setting `name`, written as text, and where it came from."""
        self._append(Setting(name, str(value), source))

    def offset(self, seconds: float, error: float) -> None:
        """Reference clock minus own clock, as `estimate_offset` says; kept if the best so far."""
        self._append(Offset(self._clock(), seconds, error))

    def drain(self) -> None:
        """Write what is pending, and the sums when they are due. For calling often."""
        records = self._fold()
        now = self._clock()
        due = max(_DUE_SECONDS, _DUE_SHARE * (now - self.header.clock))
        if not self._begun or now - self._summed_at >= due:
            records += self._sums(now)
        self._write(records)

    def flush(self) -> None:
        """Write what is pending and the sums, fresh. For the end, and before anything risky."""
        records = self._fold()
        self._write(records + self._sums(self._clock(), growth=1.0))

    def _fold(self) -> list[Record]:
        """Add what is pending to the sums; return what of it is to be written."""
        length = len(self._pending)
        batch = self._pending[:length]
        del self._pending[:length]
        kept: list[Record] = []
        for item in batch:
            if isinstance(item, tuple):
                kind, start, seconds, step = item
                self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
                if self._keeps_next(f"span/{kind}") if kind in _RARE else keeps(step, self._full):
                    kept.append(Span(kind, round(start, _DIGITS), round(seconds, _DIGITS), step))
            elif isinstance(item, _Applied):
                self._note_applied(item)
            elif isinstance(item, _Count):
                self._add(item)
            elif isinstance(item, _Traffic):
                # Counter.update and | add or take the larger; a dict's own update replaces.
                dict.update(self._sent, item.sent)
                dict.update(self._received, item.received)
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

    def _keeps_record(self, record: Record) -> bool:
        """Whether to write it now; sums, and points left out, are remembered for `_sums`."""
        if isinstance(record, Point):
            if self._keeps_next(f"point/{record.name}"):
                self._latest.pop(record.name, None)
                return True
            self._latest[record.name] = record
            return False
        if isinstance(record, SampleCount):
            self._accounted = record
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
        """The cumulative records, and the latest points that thinning had left out."""
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
            )
        )
        return sums

    def _senders(self, now: float, growth: float) -> Iterator[Record]:
        """The staleness of each sender that has more to tell than when it was last told."""
        for sender, counts in self._by_sender.items():
            total = counts.total()
            if total > self._told[sender] and total >= growth * self._told[sender]:
                self._told[sender] = total
                yield SenderStaleness(now, sender, dict(counts))

    def _write(self, records: list[Record]) -> None:
        if not records:
            return
        lines = self._encoder.encode_lines(records)
        if not self._begun:
            # A predecessor that was killed may have left its last line torn; an empty line keeps
            # this header from becoming a part of it.
            lines = b"\n" + lines
            self._begun = True
        self._sink(lines)
