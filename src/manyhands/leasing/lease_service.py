"""Lease service: a state machine that assigns samples, evaluations and the storing of the model.

It has no clock and no connection. A runtime passes it the messages of workers and sends its
answers: live in the coordinator's process, virtually in the simulator, with the same decisions, so
that simulated faults test what live runs execute (`docs/decisions/0042-one-lease-service.md`).

    worker                    lease service
    `Ask`                     `Granted`, a lease, or several if the worker asked for them;
                              `Nothing`, if there is none at present
    `Commit`, `Forgo`
    `StreamEnded`             (it has read the end of a stream)
                              `Cut`, when all before an evaluation is committed: evaluate a part
    `Tally`                   `Sum`, when all parts have arrived; then workers ask again
                              `Over(stores=True)`, to one worker, when everything is committed
    `Saved`                   `Over(stores=False)`, to it and to all others

Every `Ask` is answered once, by leases, a cut or the end; `Nothing` only announces that the answer
will take a while. The tasks of a lost worker are given to another one: its samples, its part of an
evaluation, and the storing. So a run is over only when its model is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from manyhands.leasing.leases import Lease, Leases, LeasesState
from manyhands.wire.leasing import (
    MOST_LEASES,
    Ask,
    Commit,
    Enough,
    Evaluate,
    Forgo,
    Granted,
    Nothing,
    Over,
    Saved,
    StreamEnded,
    Sum,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.wire.leasing import Leasing

Letters: TypeAlias = "list[tuple[str, Leasing]]"
"""Messages, each with the worker to which it is sent."""


class LeaseServiceState(msgspec.Struct, frozen=True):
    """The state of a `LeaseService`: the position in the data, and the tasks of workers.

    Early stopping is decided by workers, and its state is theirs: see `manyhands.stopping`.
    """

    leases: LeasesState
    early: tuple[int, float] | None
    members: tuple[str, ...]
    arriving: tuple[str, ...]
    waiting: tuple[str, ...]
    """In the order of their requests."""
    idle: tuple[str, ...]
    round: int
    missing: tuple[str, ...] | None
    """Workers whose tally has not arrived; None if there is no evaluation under way."""
    tallies: dict[str, tuple[float, ...]]
    evaluated: int
    """Samples that were committed at the last evaluation."""
    evaluations: int
    ended: bool
    storing: str | None
    is_over: bool
    stores: bool = False
    """Whether the cut that is under way is for a checkpoint."""
    stored: int = -1
    """Samples that were committed at the last checkpoint."""
    pausing: tuple[str, ...] = ()
    """Idle workers that were told that all pause."""
    apart: bool = False
    """Whether workers may have contributed to different rounds."""
    joining: tuple[str, ...] = ()
    """Workers that were admitted while the run was under way and have not asked for a lease."""


class LeaseService:
    """The state of the lease service.

    Args:
        leases: the leases of the run.
        evaluates: whether the job has validation data.
        lockstep: whether workers wait for each other; if so, `Nothing` is sent to idle workers.
        early: workers that begin, by rank, and the epochs after which the others join them; None if
            all begin.
        stores_last: whether a checkpoint is stored when all samples are committed.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        evaluates: bool,
        lockstep: bool,
        early: tuple[int, float] | None = None,
        stores_last: bool = False,
    ) -> None:
        self.leases = leases
        self._early = early
        self._stores_last = stores_last
        self._evaluates = evaluates
        self._lockstep = lockstep
        self._members: set[str] = set()
        """The workers that take part."""
        self._arriving: set[str] = set()
        """Workers that joined during an evaluation, and take part when it is done."""
        self._waiting: dict[str, None] = {}
        """Workers whose `Ask` has no answer yet, in order."""
        self._idle: set[str] = set()
        """Waiting workers to which `Nothing` was sent."""
        self._pausing: set[str] = set()
        """Those of them that were told that all pause."""
        self._joining: set[str] = set()
        """Workers that were admitted while the run was under way and have not asked for a lease.

        They may have to finish a round of their predecessors first, which must not wait for workers
        that wait for an evaluation or for the end.
        """
        self._apart = early is not None
        """Whether workers may have contributed to different rounds: one was lost or came later.

        A round that waits for a worker which is ahead would never end: see
        `docs/decisions/0092-pauses.md`.
        """
        self._round = 0
        self._missing: set[str] | None = None
        """During an evaluation: the workers whose tally has not arrived."""
        self._stores = False
        """Whether the cut that is under way is for a checkpoint, and not for an evaluation."""
        self._tallies: dict[str, tuple[float, ...]] = {}
        self._evaluated = -1
        """Samples that were committed at the last evaluation."""
        self.evaluations = 0
        """Evaluations that were completed."""
        self.stored = -1
        """Samples that were committed at the last checkpoint; -1 before the first one."""
        self._ended = False
        self._storing: str | None = None
        """The worker that was appointed to store the model."""
        self.is_over = False
        """Whether all samples are committed, or a limit is reached, and the model is stored."""
        self._letters: Letters = []

    @property
    def round(self) -> int:
        """The number of the last evaluation that was started."""
        return self._round

    @property
    def has_ended(self) -> bool:
        """Whether no samples are left, and the model is being stored or is stored."""
        return self._ended

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation is under way, or a checkpoint."""
        return self._missing is not None

    @property
    def is_storing(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._missing is not None and self._stores

    def knows(self, worker: str) -> bool:
        """Whether a worker takes part."""
        return worker in self._members or worker in self._arriving

    def open(self, workers: Iterable[str]) -> None:
        """Begin with these workers."""
        self._members = set(workers)

    def admit(self, worker: str) -> Letters:
        """Admit a worker to a run that is under way."""
        # On another host a worker may be restarted before its loss is reported. What its
        # predecessor holds must be returned first, or no worker would ever commit it.
        if self.knows(worker):
            self._lose(worker)
        # A worker that arrives during an evaluation has no part of it: as a member it would be sent
        # the sum of an evaluation that it was never asked for.
        (self._members if self._missing is None else self._arriving).add(worker)
        # Before the others are served: the next call tells those that wait for an evaluation, a
        # checkpoint or the end that no round may wait for them, because this worker may have to
        # finish a round first (`docs/decisions/0092-pauses.md`, seed 674 of `hierarchical_coded`).
        self._joining.add(worker)
        self._serve(*self._waiting)
        return self._take_letters()

    def hear(self, worker: str, message: Leasing) -> Letters:
        """Process a message of a worker; without effect if it is no longer a member."""
        if worker in self._members or worker in self._arriving:
            self._hear(worker, message)
        letters, self._letters = self._letters, []
        return letters

    def lose(self, worker: str) -> Letters:
        """Note that a worker is lost: its tasks are given to others."""
        if self.knows(worker):
            self._lose(worker)
        return self._take_letters()

    def stop(self) -> Letters:
        """Lease no more samples, because a limit is reached; leases that are held stay valid."""
        self.leases.stop()
        self._settle()
        return self._take_letters()

    def pause(self) -> Letters:
        """Evaluate when the batches that were begun are committed."""
        if self._missing is None and not self._ended:
            self.leases.pause()
            self._settle()
        return self._take_letters()

    def pause_to_store(self) -> Letters:
        """Store a checkpoint when the batches that were begun are committed."""
        if self._missing is None and not self._ended:
            self.leases.pause_to_store()
            self._settle()
        return self._take_letters()

    def state(self) -> LeaseServiceState:
        """The state, from which `restore` continues in this or another process."""
        missing = None if self._missing is None else tuple(sorted(self._missing, key=_rank))
        return LeaseServiceState(
            leases=self.leases.state(),
            early=self._early,
            members=tuple(sorted(self._members, key=_rank)),
            arriving=tuple(sorted(self._arriving, key=_rank)),
            waiting=tuple(self._waiting),
            idle=tuple(sorted(self._idle, key=_rank)),
            pausing=tuple(sorted(self._pausing, key=_rank)),
            apart=self._apart,
            joining=tuple(sorted(self._joining, key=_rank)),
            round=self._round,
            missing=missing,
            tallies=dict(self._tallies),
            evaluated=self._evaluated,
            evaluations=self.evaluations,
            ended=self._ended,
            storing=self._storing,
            is_over=self.is_over,
            stores=self._stores,
            stored=self.stored,
        )

    def restore(self, state: LeaseServiceState) -> None:
        """Continue from a state; letters that were returned before it are not returned again."""
        self.leases.restore(state.leases)
        self._early = state.early
        self._members, self._arriving = set(state.members), set(state.arriving)
        self._waiting, self._idle = dict.fromkeys(state.waiting), set(state.idle)
        self._pausing, self._apart = set(state.pausing), state.apart
        self._joining = set(state.joining)
        self._round = state.round
        self._missing = None if state.missing is None else set(state.missing)
        self._tallies = dict(state.tallies)
        self._evaluated, self.evaluations = state.evaluated, state.evaluations
        self._ended, self._storing, self.is_over = state.ended, state.storing, state.is_over
        self._stores, self.stored = state.stores, state.stored
        self._letters = []

    def _take_letters(self) -> Letters:
        letters, self._letters = self._letters, []
        return letters

    def _tell(self, worker: str, message: Leasing) -> None:
        self._letters.append((worker, message))

    def _hear(self, worker: str, message: Leasing) -> None:
        match message:
            case Ask(leases=leases):
                self._waiting.setdefault(worker)
                # It has asked, so the rounds of its predecessor are finished: from here on the
                # others may be told again that all pause.
                self._joining.discard(worker)
                self._serve(worker, delayed=False)
                for _ in range(min(leases, MOST_LEASES) - 1):
                    # Further leases only if there was a first one: the `Ask` is answered once, and
                    # a worker that still waits gets its answer later.
                    if worker not in self._waiting:
                        self._grant(worker, self.leases.take(worker), delayed=False)
            case Commit(number=number, seconds=seconds):
                self.leases.commit(worker, number, seconds)
            case Forgo(number=number):
                self.leases.forgo(worker, number)
            case StreamEnded(samples=samples):
                self.leases.end(samples)
            case Tally(round=number, values=values):
                self._gather(worker, number, values)
            case Enough():
                self.leases.stop()
            case Saved():
                self._note_saved(worker)
        self._settle()

    def _lose(self, worker: str) -> None:
        # Before the worker is removed: whether a part of the evaluation was its own.
        evaluated = self._missing is not None and worker in self._members
        known = (self._members, self._arriving, self._joining, self._idle, self._pausing)
        for group in known:
            group.discard(worker)
        # After the lost worker was removed, so that no message goes to it, and before its leases
        # are given to others: from then on workers are in different rounds.
        self._part()
        self._waiting.pop(worker, None)
        # Before the waiting workers are served below: they get these leases.
        self.leases.give_back(worker)
        # The file of the model may be incomplete: `_settle` appoints another waiting worker, or the
        # run would end without a model (`docs/decisions/0042-one-lease-service.md`).
        if self._storing == worker:
            self._storing = None
        if evaluated and self._members:
            # The validation data is divided anew: without this the part of the lost worker would be
            # missing, and a second loss would stop the evaluation for ever.
            self._call_cut(stores=self._stores)
        elif evaluated:
            # No evaluating worker is left: the evaluation starts again when all arrivals wait.
            self._missing = None
            self._members, self._arriving = self._arriving, set()
        self._serve(*self._waiting)
        self._settle()

    def _serve(self, *workers: str, delayed: bool = True) -> None:
        """Grant a lease to each of these waiting workers, as long as there are any."""
        # During a cut no update may be under way: a lease that was granted now would change the
        # parameters between the parts of one evaluation.
        if self._missing is not None or self._ended:
            return
        # `_is_early` may find within the loop that the others may begin. Those that the loop has
        # passed by then are served once more below.
        held_back = self._early is not None
        for worker in workers:
            if self._is_early(worker):
                continue
            found = self.leases.take(worker)
            if self._grant(worker, found, delayed=delayed):
                del self._waiting[worker]
                # When it is idle again it has to be told again, because its servers count it as
                # present from its next pull on.
                self._idle.discard(worker)
                self._pausing.discard(worker)
                continue
            waits = found == "wait" or self._joining
            if waits and self._lockstep and worker not in self._idle:
                self._idle.add(worker)
                pauses = self.leases.are_alike and not (self._apart or self._joining)
                if pauses:
                    self._pausing.add(worker)
                self._tell(worker, Nothing(pauses))
        if held_back and self._early is None:
            self._serve(*self._waiting)

    def _part(self) -> None:
        """Note that workers contribute to different rounds from now on: some get what others had.

        Those that pause for all others have to say that no round must wait for them.
        """
        self._apart = True
        for worker in sorted(self._pausing, key=_rank):
            self._tell(worker, Nothing())
        self._pausing.clear()

    def _grant(self, worker: str, found: Lease | str, *, delayed: bool) -> bool:
        """Tell a worker of a lease that was found for it, if one was."""
        if not isinstance(found, Lease):
            return False
        about = (found.number, found.epoch, found.start, found.stop, found.total, found.dealt)
        self._tell(worker, Granted(*about, delayed))
        return True

    def _is_early(self, worker: str) -> bool:
        """Whether a worker waits because only some workers begin the run."""
        if self._early is None:
            return False
        first, epochs = self._early
        begun = self.leases.dealt >= epochs * self.leases.samples
        if begun or all(_rank(member) >= first for member in self._members):
            self._early = None
            return False
        return _rank(worker) >= first

    def _settle(self) -> None:
        """Start an evaluation, or end the run, if all samples before it are committed.

        Workers may ask ahead, so a waiting worker may still be computing. Only when no lease is
        held, and all workers wait, are all leases committed.
        """
        if self._ended:
            self._appoint()
            return
        all_wait = len(self._waiting) == len(self._members) > 0
        if self._missing is not None or not all_wait or self.leases.held:
            return
        outlook = self.leases.outlook()
        # After the last evaluation the outlook is "over" again; without this comparison it would be
        # evaluated for ever.
        is_new = self._evaluates and self._evaluated != self.leases.committed
        if outlook == "evaluate" or (outlook == "over" and is_new):
            self._call_cut()
        elif outlook == "store" or (outlook == "over" and self._is_last_store_due):
            self._call_cut(stores=True)
        elif outlook == "round":
            self.leases.round_over()
            self._serve(*self._waiting)
        elif outlook == "over":
            self._ended = True
            self._appoint()

    @property
    def _is_last_store_due(self) -> bool:
        return self._stores_last and self.stored != self.leases.committed

    def _call_cut(self, *, stores: bool = False) -> None:
        """Have each member evaluate its part of the validation data, on the same parameters.

        Or, at the same kind of moment, have each of them store its part of a checkpoint.
        """
        # A new number also when a cut is called again after a loss: tallies of the former division
        # may still arrive and must not be added to those of this one.
        self._round += 1
        self._stores = stores
        self._missing = set(self._members)
        self._tallies = {}
        # All workers pull during a cut, so servers count them as present again, and those that are
        # idle afterwards must be told once more (`docs/decisions/0017-rounds-and-rests.md`).
        self._idle.clear()
        self._pausing.clear()
        committed, parts = self.leases.committed, len(self._members)
        ordered = sorted(self._members, key=_rank)
        ranks = tuple(_rank(worker) for worker in ordered) if stores else ()
        for index, worker in enumerate(ordered):
            # The cut is the answer to its `Ask`; it asks again after the sum.
            self._waiting.pop(worker, None)
            self._tell(worker, Evaluate(self._round, index, parts, committed, ranks))

    def _gather(self, worker: str, number: int, values: tuple[float, ...]) -> None:
        if self._missing is None or number != self._round or worker not in self._missing:
            return
        self._tallies[worker] = values
        self._missing.discard(worker)
        if self._missing:
            return
        # In the order of ranks, so that the sums do not depend on the order of arrival.
        rows = [self._tallies[name] for name in sorted(self._tallies, key=_rank)]
        total = Sum(number, tuple(sum(column) for column in zip(*rows, strict=True)))
        self._missing = None
        if self._stores:
            self.stored = self.leases.committed
            self.leases.stored()
        else:
            self._evaluated = self.leases.committed
            self.evaluations += 1
            self.leases.evaluated()
        for name in sorted(self._members, key=_rank):
            self._tell(name, total)
        # After the sum is sent: workers that arrived meanwhile have asked for samples, and get no
        # sum.
        self._members |= self._arriving
        self._arriving = set()
        self._serve(*self._waiting)

    def _appoint(self) -> None:
        """Have the waiting worker of lowest rank store the model; it is on the first host."""
        if self._storing is None and not self.is_over and self._waiting:
            worker = self._storing = min(self._waiting, key=_rank)
            del self._waiting[worker]
            self._tell(worker, Over(stores=True))
        elif self.is_over:
            for worker in self._waiting:
                self._tell(worker, Over(stores=False))
            self._waiting.clear()

    def _note_saved(self, worker: str) -> None:
        if worker == self._storing:
            self.is_over = True
            self._tell(worker, Over(stores=False))


def _rank(worker: str) -> int:
    return int(worker.rpartition("-")[2])
