"""The coordinator's desk for leases: gives samples to workers that run free, and calls the cuts."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from manyhands.leases import Lease, Leases
from manyhands.transport.conversation import Conversation
from manyhands.wire.leasing import (
    Ask,
    Commit,
    Cut,
    Enough,
    Forgo,
    Granted,
    Nothing,
    Over,
    Sum,
    Tally,
    Word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from manyhands.live.assignment import Leasing
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub
    from manyhands.wire import Control, leasing


class LeaseDesk:
    """Leases, evaluations and the end of a free-running run.

    Every `Ask` is answered once: by a lease, by a call to evaluate, or by the end. One that can
    get neither waits until something changes.

    Args:
        numbers: the job's.
        workers: among how many a global batch is divided.
        hub: where workers are answered.
        recorder: the coordinator's trace; it accounts for the samples.
        clock: seconds.
    """

    def __init__(
        self,
        numbers: Leasing,
        workers: int,
        hub: Hub,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self._numbers = numbers
        self._leases = Leases(
            numbers.samples,
            numbers.global_batch,
            workers,
            numbers.budget,
            pauses=numbers.evaluates,
            lockstep=numbers.lockstep,
            by_rank=numbers.by_rank,
        )
        self._hub = hub
        self._recorder = recorder
        self._clock = clock
        self._begun: float | None = None
        self._epochs = 0
        self._living: set[str] = set()
        self._arriving: set[str] = set()
        """Those who came while the others evaluated, and take part when that is done."""
        self._ended = False
        self._talks: dict[str, Conversation] = {}
        self._waiting: list[str] = []
        self._told_nothing: set[str] = set()
        self._round = 0
        self._tallies: dict[str, tuple[float, ...]] | None = None
        self._evaluated = -1
        """Samples that were committed at the last evaluation."""

    @property
    def committed(self) -> int:
        """Samples that are trained on."""
        return self._leases.committed

    def open(self, workers: Iterable[str]) -> None:
        """All have joined: time runs from here."""
        self._living = set(workers)
        self._begun = self._clock()

    def admit(self, worker: str) -> None:
        """A worker comes back to a run that is under way."""
        (self._living if self._tallies is None else self._arriving).add(worker)
        self._told_nothing.discard(worker)

    def hear(self, worker: str, word: Control) -> None:
        """A worker wants something."""
        if not isinstance(word, Word):
            return
        talk = self._talks.get(worker)
        if talk is None or talk.life < word.life:
            send = partial(self._hub.send, f"{worker}.leases")
            talk = self._talks[worker] = Conversation(word.life, send, self._clock)
        if talk.life == word.life and (message := talk.hear(word)) is not None:
            self._do(worker, message)

    def _tell(self, worker: str, message: leasing.Leasing) -> None:
        if worker in self._talks:
            self._talks[worker].say(message)

    def _do(self, worker: str, message: leasing.Leasing) -> None:
        match message:
            case Ask() if self._ended:
                self._tell(worker, Over(stores=False))
            case Ask():
                self._waiting.append(worker)
            case Commit(number=number):
                if self._leases.commit(worker, number):
                    self._account()
            case Forgo(number=number):
                if self._leases.forgo(worker, number):
                    self._account()
            case Tally(round=number, values=values):
                self._gather(worker, number, values)
            case Enough():
                self._leases.stop()
            case _:
                return
        self._serve()

    def lose(self, worker: str) -> None:
        """A worker is gone: its samples are given again, and an evaluation begins anew."""
        self._living.discard(worker)
        self._arriving.discard(worker)
        self._waiting = [name for name in self._waiting if name != worker]
        samples = self._leases.give_back(worker)
        self._recorder.event("given again", {"member": worker, "samples": str(samples)})
        self._account()
        if self._tallies is not None:
            self._call_cut()
        self._serve()

    def look_at_clock(self) -> None:
        """Stop when the job's time is up, and say again what was not heard."""
        for talk in self._talks.values():
            talk.look_at_clock()
        limit = self._numbers.seconds
        if limit is not None and self._begun is not None and self._clock() - self._begun >= limit:
            self._leases.stop()
            self._serve()

    def _serve(self) -> None:
        """Give those who wait what there is for them."""
        if self._tallies is not None:
            return
        still: list[str] = []
        settled = True
        for worker in self._waiting:
            taken = self._leases.take(worker)
            settled = settled and taken in ("evaluate", "over")
            if isinstance(taken, Lease):
                self._tell(worker, Granted(**asdict(taken)))
                self._told_nothing.discard(worker)
            else:
                still.append(worker)
                if self._numbers.lockstep and worker not in self._told_nothing:
                    self._told_nothing.add(worker)
                    self._tell(worker, Nothing())
        self._waiting = still
        # Workers ask ahead, so one that waits may still be computing. Only when nobody holds
        # anything, and all wait, is everything committed that was ever given.
        if not settled or not self._living or set(self._waiting) != self._living:
            return
        if self._numbers.evaluates and self._evaluated != self._leases.committed:
            self._call_cut()
        else:
            self._end()

    def _call_cut(self) -> None:
        """Have all workers evaluate a part each of what they all see now."""
        self._round += 1
        self._tallies = {}
        for index, worker in enumerate(sorted(self._living)):
            cut = Cut(self._round, index, len(self._living), self._leases.committed)
            self._tell(worker, cut)
        self._waiting = []
        self._told_nothing.clear()

    def _gather(self, worker: str, number: int, values: tuple[float, ...]) -> None:
        if self._tallies is None or number != self._round:
            return
        self._tallies[worker] = values
        if set(self._tallies) != self._living:
            return
        columns = zip(*self._tallies.values(), strict=True)
        total = Sum(number, tuple(sum(column) for column in columns))
        self._tallies = None
        arriving, self._arriving = self._arriving, set()
        self._evaluated = self._leases.committed
        self._leases.evaluated()
        for name in self._living:
            self._tell(name, total)
        self._living |= arriving

    def _end(self) -> None:
        self._ended = True
        for index, worker in enumerate(sorted(self._living)):
            self._tell(worker, Over(stores=index == 0))
        self._waiting = []

    def _account(self) -> None:
        leases = self._leases
        self._recorder.samples(leases.committed, leases.repeated, leases.lost)
        while leases.committed + leases.lost >= (self._epochs + 1) * self._numbers.samples:
            samples = str((self._epochs + 1) * self._numbers.samples)
            self._recorder.event("epoch", {"number": str(self._epochs), "samples": samples})
            self._epochs += 1
