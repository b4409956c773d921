"""Leases of samples to workers, for strategies whose workers run at their own pace.

Samples are leased in order: the parts of one global batch, then of the next. A lease ends when the
update made from it is part of the shared state; the lease of a lost worker is given to another one.
So every sample of an epoch is trained on at least once, and repeats are counted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from manyhands.sampling.batches import AFTER_EPOCHS, deal
from manyhands.sampling.division import part
from manyhands.sampling.rounds import RoundEnds, RoundLength
from manyhands.sampling.speed_shares import MeasuredShares, SpeedState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.sampling.batches import BatchSizes, EvaluationPoints


@dataclass(frozen=True)
class Lease:
    """Positions `start` to `stop` in the order of an epoch, until it is committed."""

    number: int
    epoch: int
    start: int
    stop: int
    total: int = 0
    """Samples in its global batch."""
    dealt: int = 0
    """Samples of the run before that global batch."""

    @property
    def samples(self) -> int:
        """Number of samples in the lease."""
        return self.stop - self.start

    def before(self, end: int) -> Lease:
        """The part of the lease that is before the end of a stream."""
        total = max(0, min(self.total, end - self.dealt))
        return replace(self, start=min(self.start, end), stop=min(self.stop, end), total=total)


class LeasesState(msgspec.Struct, frozen=True):
    """The state of `Leases`: what is leased next, held, given back and committed.

    It holds for the same data, batch sizes and budget. Where no batch is begun and no lease is
    held, as at an evaluation, it also holds for another number of workers.
    """

    workers: int
    """Number of workers among which the global batches were divided."""
    following: Lease | None
    """The next lease that was never taken; None at the end of the run."""
    index: int
    """Which lease of its global batch that is."""
    committed: int
    repeated: int
    lost: int
    evaluate_at: int | None
    """Batches that begin at or after so many samples wait for an evaluation."""
    store_at: int | None
    """Batches that begin at or after so many samples wait for a checkpoint."""
    last: int
    """Samples of the run before the global batch that was leased last."""
    stopped: bool
    end: int | None
    """The number of samples of a stream, if it is known."""
    held: tuple[tuple[str, Lease], ...]
    returned: tuple[Lease, ...]
    own: tuple[tuple[Lease, ...], ...]
    """By rank, the parts that are not taken yet."""
    gone: tuple[int, ...]
    speeds: SpeedState | None = None
    """Measured speeds, if global batches are divided by them."""
    round_at: int | None = None
    """Batches that begin at or after so many samples wait for the end of a round."""


class Leases:
    """All leases of one run, owned by one process.

    Args:
        samples: samples in the data.
        sizes: the global batch.
        workers: number of workers among which a global batch is divided.
        budget: samples until the run ends; None for no limit.
        pauses: whether there are evaluations: the batches after one wait until all before it are
            committed and evaluated.
        lockstep: whether a global batch with fewer samples than workers has empty parts.
        by_rank: whether each worker gets the part of its rank in every global batch, instead of the
            next free part; the parts of lost workers are given to any worker.
        by_speed: whether these parts are in proportion to the speeds of workers, which commits
            report.
        points: where evaluations are; by default after every epoch.
        storing: where checkpoints are; None for none by samples.
        since: samples and global batches of the run that are over, if it is continued.
        rounds: the length of rounds, as in `RuntimeNeeds`. Evaluations and checkpoints then follow
            the end of a round, and a round ends with an epoch.
    """

    def __init__(
        self,
        samples: int,
        sizes: int | BatchSizes,
        workers: int,
        budget: int | None,
        *,
        pauses: bool = False,
        lockstep: bool = False,
        by_rank: bool = False,
        by_speed: bool = False,
        points: EvaluationPoints = AFTER_EPOCHS,
        storing: EvaluationPoints | None = None,
        since: tuple[int, int] = (0, 0),
        rounds: tuple[int, int] | None = None,
    ) -> None:
        length = RoundLength(*rounds) if rounds else None
        self._rounds = RoundEnds(samples, sizes, length, since) if length else None
        self._round_at = None if self._rounds is None else self._rounds.epoch_after(since[0])
        """Batches that begin at or after so many samples wait for the end of a round."""
        self._cut_from = partial(_cut, samples, sizes, workers, budget, empty=lockstep)
        self._workers, self._budget = workers, budget
        self._base = since[1] * workers
        """The number of the first lease of some global batch."""
        self._fresh = self._cut_from(dealt=since[0], number=self._base)
        self._next: Lease | None = next(self._fresh, None)
        self._own: list[deque[Lease]] = [deque() for _ in range(workers)] if by_rank else []
        """By rank, the parts that are not taken yet."""
        self._cut = 0
        """Number of those parts."""
        self._speeds = MeasuredShares(workers) if by_rank and by_speed else None
        self._shared_from = 0
        """The first global batch that is divided by the shares of now."""
        self._gone: set[int] = set()
        self._returned: deque[Lease] = deque()
        self._held: dict[int, tuple[str, Lease]] = {}
        self._samples = samples
        self._points = points
        self._storing = storing
        self._evaluate_at = self._at_round(points.after(since[0], samples) if pauses else None)
        """Batches that begin at or after so many samples wait for an evaluation."""
        self._store_at = self._at_round(storing.after(since[0], samples) if storing else None)
        """Batches that begin at or after so many samples wait for a checkpoint."""
        self._pauses = pauses
        self._last = -1
        """Samples of the run before the global batch that was leased last."""
        self._stopped = False
        self._lockstep = lockstep
        self._end: int | None = None
        """The number of samples of a stream, when a worker has read its end."""
        self.committed = since[0]
        """Samples whose update is part of the shared state."""
        self.repeated = 0
        """Samples that were leased again because their worker was lost."""
        self.lost = 0
        """Samples whose update was discarded."""

    @property
    def dealt(self) -> float:
        """Samples of the run before the global batch that is leased next; infinite if none is."""
        return math.inf if self._next is None else self._next.dealt

    @property
    def samples(self) -> int:
        """Samples of the data."""
        return self._samples

    @property
    def position(self) -> int | None:
        """Samples of the run that are over, if all before them are and none after; or None.

        It is where a checkpoint can be. There is none in the middle of a global batch, and none if
        samples were given up when a limit was reached.
        """
        over = self.committed + self.lost
        if self._held or self._returned or self._cut:
            return None
        if self._next is not None:
            return over if over == self._next.dealt else None
        limits = [limit for limit in (self._budget, self._end) if limit is not None]
        # A run that continues beyond its budget has no batch.
        return over if over >= min(limits, default=0) else None

    def _at_round(self, samples: int | None) -> int | None:
        """The end of the round in which so many samples are reached."""
        if samples is None or self._rounds is None:
            return samples
        return self._rounds.at_or_after(samples)

    def take(self, worker: str) -> Lease | Literal["wait", "evaluate", "store", "round", "over"]:
        """A lease for a worker, or why there is none.

        wait: other workers hold the remaining leases. evaluate, store: all samples before an
        evaluation, or a checkpoint, are committed. round: all samples of an epoch are committed,
        with which a round ends. over: all samples of the run are committed.
        """
        # Leases of lost workers first: a worker that got a part of a later batch would skip a round
        # that still needs one of an earlier batch, and be waited for in that round for ever.
        if self._returned:
            lease: Lease | None = self._take_returned()
        else:
            lease = self._take_own(worker) if self._own else self._take_fresh()
        if lease is not None:
            self._held[lease.number] = (worker, lease)
            return lease
        return self.outlook()

    def outlook(self) -> Literal["wait", "evaluate", "store", "round", "over"]:
        """Why a worker gets no lease, as returned by `take`."""
        if self._held or self._returned or self._cut:
            return "wait"
        if self._next is None or self._stopped:
            return "over"
        if self._evaluate_at is not None and self._next.dealt >= self._evaluate_at:
            return "evaluate"
        if self._store_at is not None and self._next.dealt >= self._store_at:
            return "store"
        return "round" if self._round_at is not None else "evaluate"

    def _take_returned(self) -> Lease:
        lease = self._returned.popleft()
        self.repeated += lease.samples
        return lease

    def _take_fresh(self) -> Lease | None:
        lease = self._next
        if lease is None or self._stopped:
            return None
        pauses = (self._evaluate_at, self._store_at, self._round_at)
        if any(at is not None and lease.dealt >= at for at in pauses):
            return None
        self._last = lease.dealt
        self._next = self._following()
        return lease

    def _following(self) -> Lease | None:
        """The next lease of those that were never taken, as far as the data reaches."""
        for lease in self._fresh:
            if self._end is None:
                return lease
            if lease.dealt >= self._end:
                return None
            if self._is_left(lease):
                return lease.before(self._end)
        return None

    def _is_left(self, lease: Lease) -> bool:
        """Whether a lease is needed, now that the end of the stream is known."""
        if self._end is None:
            return True
        return lease.dealt < self._end and (self._lockstep or lease.start < self._end)

    def end(self, samples: int) -> None:
        """Note that the data is a stream with so many samples: what is after them is not leased.

        A lease that a worker holds counts only the samples before the end.

        Args:
            samples: the length of the stream.
        """
        if self._end is not None:
            return
        self._end = samples
        if self._next is not None:
            left_of_it = self._next.before(samples) if self._is_left(self._next) else None
            self._next = left_of_it or self._following()
        for waiting in (self._returned, *self._own):
            left = [lease.before(samples) for lease in waiting if self._is_left(lease)]
            waiting.clear()
            waiting.extend(left)
        self._cut = sum(map(len, self._own))
        self._held = {
            number: (holder, lease.before(samples))
            for number, (holder, lease) in self._held.items()
        }

    def _take_own(self, worker: str) -> Lease | None:
        """A worker's next part, or that of a lost worker, whichever is earlier.

        So no worker gets a part of a later batch while a part of an earlier one is open to it.
        """
        rank = int(worker.rpartition("-")[2])
        # A successor asks for samples: from here on its parts are its own again, and no other
        # worker takes them.
        self._gone.discard(rank)
        if rank < len(self._own) and not self._own[rank]:
            # The parts of all ranks at once: a part that its worker never takes, because it is
            # lost, stays in `_cut`, so that no pause and no end comes before another worker has
            # trained on it.
            taken = [self._take_fresh() for _ in self._own]
            fresh = self._by_speed([lease for lease in taken if lease is not None])
            self._cut += len(fresh)
            for parts, lease in zip(self._own, fresh, strict=False):
                parts.append(lease)
        open_to_it = [self._own[one] for one in {rank, *self._gone} if one < len(self._own)]
        if not any(open_to_it):
            return None
        self._cut -= 1
        return min(filter(None, open_to_it), key=lambda parts: parts[0].number).popleft()

    def _by_speed(self, parts: list[Lease]) -> list[Lease]:
        """The parts of a global batch, cut again by the speeds of workers."""
        # A batch in which the samples end has fewer parts than workers, so that shares of ranks do
        # not apply to it.
        if self._speeds is None or len(parts) != self._workers:
            return parts
        start, divided, before = parts[0].start, [], self._speeds.shares
        counts = self._speeds.divide(parts[-1].stop - start, self._gone)
        if self._speeds.shares != before:
            self._shared_from = parts[0].number // self._workers
        for lease, count in zip(parts, counts, strict=True):
            divided.append(replace(lease, start=start, stop=start + count))
            start += count
        return divided

    @property
    def are_alike(self) -> bool:
        """Whether each worker gets a part of every global batch until the next pause."""
        return bool(self._own) and not self._stopped

    @property
    def shares(self) -> tuple[float, ...]:
        """By rank, the share of a global batch, if batches are divided by speed; or empty."""
        return () if self._speeds is None else self._speeds.shares

    def share_words(self) -> dict[str, str]:
        """The shares as an event of a trace, with the global batch from which on they hold."""
        words = ", ".join(f"{share:.4f}" for share in self.shares)
        return {"step": str(self._shared_from), "shares": words}

    def evaluated(self) -> None:
        """Note that an evaluation is done: the batches after it may begin."""
        if self._pauses and self._next is not None:
            due = self._points.after(self._next.dealt, self._samples)
            self._evaluate_at = self._at_round(due)
        self.round_over()

    def stored(self) -> None:
        """Note that a checkpoint is stored: the batches after it may begin."""
        self._store_at = None
        if self._storing is not None and self._next is not None:
            due = self._storing.after(self._next.dealt, self._samples)
            self._store_at = self._at_round(due)
        self.round_over()

    def round_over(self) -> None:
        """Note that all samples before the next batch are committed."""
        if self._rounds is not None and self._next is not None:
            self._round_at = self._rounds.epoch_after(self._next.dealt)

    def pause(self) -> None:
        """Have an evaluation follow the global batch that was begun last, if one was.

        Or the round of that batch, if workers synchronise every few steps.
        """
        if self._pauses and self._last >= 0:
            self._evaluate_at = self._at_round(self._last + 1)

    def pause_to_store(self) -> None:
        """Have a checkpoint follow the global batch, or the round, that was begun last, if any."""
        if self._last >= 0:
            self._store_at = self._at_round(self._last + 1)

    def commit(self, worker: str, number: int, seconds: float = 0.0) -> bool:
        """Note that the update of a lease is applied; False if the worker no longer holds it.

        Args:
            worker: the worker.
            number: the number of the lease.
            seconds: how long it computed; 0 if that is not known.
        """
        holder, lease = self._held.get(number, (None, None))
        # A worker that counts as lost may still send its commit after its lease was returned: then
        # the samples are counted when the other worker commits them.
        if holder != worker or lease is None:
            return False
        del self._held[number]
        if self._speeds is not None:
            self._speeds.note(int(worker.rpartition("-")[2]), lease.samples, seconds)
        self.committed += lease.samples
        return True

    def forgo(self, worker: str, number: int) -> bool:
        """Note that the update of a lease is discarded: its samples are lost."""
        holder, lease = self._held.get(number, (None, None))
        if holder != worker or lease is None:
            return False
        del self._held[number]
        self.lost += lease.samples
        return True

    def give_back(self, worker: str) -> int:
        """Return a lost worker's leases, unless the run is stopping; how many samples they have."""
        if self._own and worker.rpartition("-")[2].isdigit():
            # Parts that were cut for this rank and not taken are open to every worker until a
            # successor asks.
            self._gone.add(int(worker.rpartition("-")[2]))
        numbers = [number for number, (holder, _) in self._held.items() if holder == worker]
        # In the order of the data: the earliest batch is the one that others wait for.
        back = [self._held.pop(number)[1] for number in sorted(numbers)]
        # After a limit is reached no samples are leased, not even again: the run waits only for
        # leases that are held.
        if not self._stopped:
            self._returned.extend(lease for lease in back if self._is_left(lease))
        return sum(lease.samples for lease in back)

    def samples_of(self, worker: str) -> int:
        """Number of samples that a worker holds."""
        return sum(lease.samples for holder, lease in self._held.values() if holder == worker)

    def is_held(self, worker: str, number: int) -> bool:
        """Whether a worker holds a lease."""
        return self._held.get(number, ("",))[0] == worker

    def stop(self) -> None:
        """Lease no more samples, because a limit is reached; leases that are held stay valid."""
        if self._stopped:
            return
        self._stopped = True
        self._returned.clear()
        # Parts that were cut and never taken would keep `outlook` at "wait" for ever.
        self._cut = 0
        for parts in self._own:
            parts.clear()

    @property
    def held(self) -> int:
        """Number of leases that workers hold."""
        return len(self._held)

    def state(self) -> LeasesState:
        """The state, from which `restore` continues in this or another process."""
        return LeasesState(
            workers=self._workers,
            following=self._next,
            index=0 if self._next is None else self._index(self._next),
            committed=self.committed,
            repeated=self.repeated,
            lost=self.lost,
            evaluate_at=self._evaluate_at,
            store_at=self._store_at,
            last=self._last,
            stopped=self._stopped,
            end=self._end,
            held=tuple(self._held.values()),
            returned=tuple(self._returned),
            own=tuple(tuple(parts) for parts in self._own),
            gone=tuple(sorted(self._gone)),
            speeds=None if self._speeds is None else self._speeds.state(),
            round_at=self._round_at,
        )

    def _index(self, lease: Lease) -> int:
        """Which part of its global batch a lease is."""
        if self._lockstep:
            return (lease.number - self._base) % self._workers
        # Without empty parts, each begins elsewhere; the end of a stream moves no beginning.
        starts = (part.start for part in self._cut_from(dealt=lease.dealt))
        return next(index for index, start in enumerate(starts) if start == lease.start)

    def restore(self, state: LeasesState) -> None:
        """Continue from a state.

        Raises:
            ValueError: the state belongs to another number of workers, and a batch is begun.
        """
        parted = state.index or state.held or state.returned or any(state.own)
        if state.workers != self._workers and parted:
            raise ValueError(
                f"the state has a batch that is divided among {state.workers} workers, got "
                f"{self._workers} workers: continue with as many, or from an evaluation"
            )
        self._next = state.following
        self._fresh = iter(())
        if state.following is not None:
            self._base = state.following.number - state.index
            self._fresh = self._cut_from(dealt=state.following.dealt, number=self._base)
            begun = next(self._fresh)
            for _ in range(state.index):
                begun = next(self._fresh)
            # Another number of workers has other parts.
            self._next = begun if state.end is None else begun.before(state.end)
        self.committed, self.repeated, self.lost = state.committed, state.repeated, state.lost
        self._evaluate_at, self._store_at = state.evaluate_at, state.store_at
        self._last = state.last
        if self._rounds is not None and state.round_at is not None:
            self._round_at = state.round_at
        self._stopped, self._end = state.stopped, state.end
        self._held = {lease.number: (holder, lease) for holder, lease in state.held}
        self._returned = deque(state.returned)
        if self._own:
            given = dict(enumerate(state.own))
            self._own = [deque(given.get(rank, ())) for rank in range(self._workers)]
        self._cut = sum(len(parts) for parts in self._own)
        self._gone = set(state.gone)
        if self._speeds and state.speeds:
            self._speeds.restore(state.speeds)


def _cut(
    samples: int,
    sizes: int | BatchSizes,
    workers: int,
    budget: int | None,
    *,
    empty: bool,
    dealt: int = 0,
    number: int = 0,
) -> Iterator[Lease]:
    """The leases of a run, in order.

    Args:
        samples: as in `Leases`, and so are the following four.
        sizes: the global batch.
        workers: number of workers.
        budget: samples until the run ends.
        empty: whether a global batch has empty parts.
        dealt: samples of the run before the first of these leases.
        number: the number of the first of these leases.
    """
    for batch in deal(samples, sizes, budget, dealt=dealt):
        for rank in range(workers):
            piece = part(batch.total, rank, workers)
            if empty or piece.stop > piece.start:
                begin, end = batch.start + piece.start, batch.start + piece.stop
                yield Lease(number, batch.epoch, begin, end, batch.total, batch.dealt)
                number += 1
