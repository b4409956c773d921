"""Virtual coordinator: the lease service on the simulator's clock.

Its decisions are those of the live coordinator, `manyhands.leasing.lease_service`. Its time is not
modelled: leases, commits and evaluations take no virtual time. (Live, the next lease is requested
while the current one is computed.) An evaluation happens when all samples before it have been
committed, so no message is in flight: a consistent cut.

It may crash. Workers then keep their messages until there is a successor, which has the state that
the journal leads to; losses of workers, admissions and time limits are handled by it, too.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from manyhands.faults import CoordinatorCrash
from manyhands.leasing.lease_journal import LeaseInput, LeaseJournal
from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.stopping import Improvement
from manyhands.virtual.simulator.kernel import happens
from manyhands.wire.leasing import Ask, Commit, Evaluate, Forgo, Nothing, Over, Saved, Sum, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.faults import Fault
    from manyhands.job import Job
    from manyhands.leasing.lease_service import Letters
    from manyhands.stopping import ImprovementState
    from manyhands.virtual.log import Logs, WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel, VirtualEvent
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.wire.leasing import Leasing

_ASK = Ask()
_DRAIN_EVERY = 2000
"""Commits between two writes of the traces."""


class LeaseChannel:
    """Connection between one incarnation of a worker and the lease service.

    Args:
        member: the worker.
        coordinator: the coordinator of the service.
        kernel: the clock.
    """

    def __init__(
        self, member: VirtualProcess, coordinator: VirtualCoordinator, kernel: Kernel
    ) -> None:
        self.worker = member.name
        self._member, self._life = member, member.life
        self.is_cut_off = False
        """Whether the link is cut."""
        self._coordinator = coordinator
        self._kernel = kernel
        self._words: deque[Leasing] = deque()
        """Messages of the service that the worker has not received yet."""
        self._unheard: list[Leasing] = []
        """Messages of the worker that were sent while the link was cut, or had no receiver."""
        self._listener: VirtualEvent | None = None
        self._asks = False
        """Whether its last `Ask` has not been answered yet."""
        self.has_spoken = False
        """Whether the service has received a message of the worker."""

    @property
    def is_alive(self) -> bool:
        """Whether this incarnation of the worker is alive."""
        return self._member.is_in(self._life)

    async def lease(self, log: WorkerLog) -> Leasing:
        """Ask for a lease, and wait for the answer."""
        if not self._asks:
            self._asks = True
            self.say(_ASK)
        if self._words and not self.is_cut_off:
            word = self._words.popleft()
        else:
            word = await self._receive(log)
        # `Nothing` only announces an answer: asked again, the worker would be given two leases.
        self._asks = isinstance(word, Nothing)
        return word

    async def looked_up(self, cut: Evaluate, log: WorkerLog) -> Leasing:
        """Report that the worker has read the shared state; wait, or read again on a `Cut`."""
        self.say(Tally(cut.round, ()))
        word = await self._receive(log)
        while not isinstance(word, Sum | Evaluate):
            word = await self._receive(log)
        return word

    def commit(self, number: int, seconds: float = 0.0) -> bool:
        """Commit a lease, computed in so many seconds; False if this worker does not hold it."""
        # Before the commit is sent, by which the lease ends.
        accepted = not self.is_cut_off and self._coordinator.is_held(self, number)
        self.say(Commit(number, seconds))
        return accepted

    def forgo(self, number: int) -> None:
        """Discard a lease: its update was not applied."""
        self.say(Forgo(number))

    async def saved(self, log: WorkerLog) -> None:
        """Report that the model has been stored, and wait until the coordinator has noted it."""
        self.say(Saved())
        while not isinstance(await self._receive(log), Over):
            pass

    def say(self, message: Leasing) -> None:
        """Send a message to the service."""
        if self.is_cut_off or self._coordinator.is_down:
            self._unheard.append(message)
        else:
            self._coordinator.hear(self, message)

    def tell(self, message: Leasing) -> None:
        """Send a message to the worker."""
        self._words.append(message)
        self._wake()

    def heal(self) -> None:
        """Restore the link, and deliver the messages sent meanwhile."""
        self.is_cut_off = False
        self._deliver()

    def reconnect(self) -> None:
        """Deliver the messages that a coordinator which crashed has not received.

        They were kept by the worker, and are lost with it.
        """
        if not self.is_cut_off and self.is_alive:
            self._deliver()

    def _deliver(self) -> None:
        # Taken away first: the coordinator may be down again, and then what is sent now is kept
        # once more.
        unheard, self._unheard = self._unheard, []
        for message in unheard:
            self.say(message)
        self._wake()

    async def _receive(self, log: WorkerLog) -> Leasing:
        if not self._words or self.is_cut_off:
            begun, self._listener = self._kernel.now, self._kernel.event()
            await happens(self._listener)
            log.span("wait", begun)
        return self._words.popleft()

    def _wake(self) -> None:
        if self._listener is not None and self._words and not self.is_cut_off:
            listener, self._listener = self._listener, None
            listener.succeed()


class VirtualCoordinator:
    """Coordinator of one virtual run.

    Args:
        job: the job to train.
        workers: number of workers that a global batch is divided among.
        kernel: the clock.
        logs: the traces.
        evaluate: returns the validation metrics of the current shared parameters; None if there
            are none to evaluate, until workers have started again.
        lockstep: whether workers wait for each other: see `manyhands.leasing.leases`.
        by_rank: whether parts of a global batch are assigned by rank.
        by_speed: whether they are in proportion to measured speeds.
        early: see `LeaseService`.
    """

    leases_class: ClassVar[type[Leases]] = Leases

    def __init__(
        self,
        job: Job,
        workers: int,
        kernel: Kernel,
        logs: Logs,
        evaluate: Callable[[], dict[str, float] | None],
        *,
        lockstep: bool = False,
        by_rank: bool = False,
        by_speed: bool = False,
        early: tuple[int, float] | None = None,
        rounds: tuple[int, int] | None = None,
    ) -> None:
        self._job = job
        self._kernel = kernel
        self._logs = logs
        self._evaluate = evaluate
        self._workers = workers
        self._lockstep = lockstep
        self._by_rank, self._by_speed = by_rank, by_speed
        self._early = early
        self._rounds = rounds
        self.improvement = Improvement(job.early_stopping)
        """What early stopping has noted."""
        self._since = (0, 0)
        """Samples and global batches before the checkpoint that the run continues from."""
        self.on_arrival: Callable[[str], None] = lambda _: None
        """Called with the name of a worker whose first message has arrived."""
        self.store: Callable[[int], None] = lambda _: None
        """Stores a checkpoint after so many samples; set by a run with numbers."""
        self._service = self._new_service()
        self._channels: dict[str, LeaseChannel] = {}
        """By worker, the channel of its current incarnation."""
        self._journal: LeaseJournal | None = None
        """Inputs for a successor; None in a run without crashes of the coordinator."""
        self.is_down = False
        """Whether the coordinator has crashed and is not restarted yet."""
        self._meanwhile: list[Callable[[], None]] = []
        """What is to be done when it is restarted."""
        self._lost_meanwhile: set[str] = set()
        self._up_since = 0.0
        self._accounts = 0
        self._round = 0
        """The round of the last evaluation or checkpoint."""
        self._judged = 0
        """Evaluations so far."""
        self._stored = -1
        """Samples committed at the last checkpoint."""
        self._evaluated = 0
        """Samples committed at the last evaluation."""
        self._accounted = (0, 0, 0)
        self._shares = self._service.leases.shares
        self._epochs = 0
        self._size = job.epoch_samples
        if job.seconds is not None:
            kernel.after(job.seconds, self.stop)
        self._evaluate_later()
        self._store_later()

    def continue_from(
        self, samples: int, steps: int, seconds: float, noted: ImprovementState | None
    ) -> None:
        """Continue from a checkpoint; called before anything is leased.

        Args:
            samples: samples of the run before it.
            steps: global batches before it.
            seconds: seconds of training before it.
            noted: what early stopping has noted.
        """
        self._since, self._evaluated = (samples, steps), -1
        self._epochs = samples // self._size
        self._service = self._new_service()
        if noted is not None:
            self.improvement.restore(noted)
        if self._job.seconds is not None:
            self._kernel.after(max(0.0, self._job.seconds - seconds), self.stop)

    def _new_service(self) -> LeaseService:
        """A lease service in its initial state."""
        evaluates = self._job.validation is not None
        leases = self.leases_class(
            self._job.epoch_samples,
            self._job.batch_sizes,
            self._workers,
            self._job.budget,
            pauses=evaluates,
            lockstep=self._lockstep,
            by_rank=self._by_rank,
            by_speed=self._by_speed,
            points=self._job.evaluation_points,
            storing=self._job.checkpoint_points,
            since=self._since,
            rounds=self._rounds,
        )
        return LeaseService(
            leases,
            evaluates=evaluates,
            lockstep=self._lockstep,
            early=self._early,
            stores_last=self._job.checkpoint_on_disk is not None,
        )

    def _evaluate_later(self) -> None:
        """Have an evaluation follow when the job's interval in seconds is over."""
        interval, number = self._job.evaluation_seconds, self._judged

        def pause() -> None:
            # If there was one meanwhile, the interval has begun anew.
            if self._judged != number or self.is_over:
                return
            if self.is_down:
                self._meanwhile.append(pause)
            elif self._service.is_evaluating:
                self._evaluate_later()
            else:
                self._note(LeaseInput("pause"))
                self._pass_on(self._service.pause())

        if interval is not None and self._job.validation is not None:
            self._kernel.after(interval, pause)

    def _store_later(self) -> None:
        """Have a checkpoint follow when the job's interval in seconds is over."""
        interval = None if self._job.checkpoint is None else self._job.checkpoint.seconds

        def pause() -> None:
            if self.is_over:
                return
            if self.is_down:
                self._meanwhile.append(pause)
                return
            if not self._service.is_evaluating:
                self._note(LeaseInput("store"))
                self._pass_on(self._service.pause_to_store())
            self._store_later()

        if interval is not None:
            self._kernel.after(interval, pause)

    @property
    def leases(self) -> Leases:
        """The leases."""
        return self._service.leases

    @property
    def is_over(self) -> bool:
        """Whether all samples, or enough of them, are committed and the model is stored."""
        return self._service.is_over

    def begin(self, member: VirtualProcess) -> LeaseChannel:
        """A worker takes part from now on; returns its channel to the lease service."""
        channel = LeaseChannel(member, self, self._kernel)
        if self.is_down:
            self._meanwhile.append(partial(self._admit, channel))
        else:
            self._admit(channel)
        return channel

    def _admit(self, channel: LeaseChannel) -> None:
        self._channels[channel.worker] = channel
        self._note(LeaseInput("admit", channel.worker))
        self._pass_on(self._service.admit(channel.worker))

    def _note(self, taken: LeaseInput) -> None:
        """Write an input of the lease service to the journal, before it takes effect."""
        if self._journal is not None:
            self._journal.note(self._service, taken)

    def expect(self, fault: Fault) -> None:
        """Schedule a crash of the coordinator."""
        if not isinstance(fault, CoordinatorCrash):
            raise TypeError(f"{fault} is no fault of the coordinator")
        self._journal = self._journal or LeaseJournal(self._service)
        self._kernel.after(fault.at, partial(self._crash, fault))

    def _crash(self, fault: CoordinatorCrash) -> None:
        if self.is_down:
            return
        self.is_down = True
        self._logs.coordinator.event("fault", {"what": str(fault)})
        self._kernel.after(fault.restart, partial(self._restart, self._kernel.now))

    def _restart(self, died: float) -> None:
        # Before anything that waited is handled: those inputs come after the ones in the journal.
        self._service = self._recovered()
        self.is_down, self._up_since = False, self._kernel.now
        words = f"coordinator died after {died:g} s"
        self._logs.coordinator.event("restart", {"member": "coordinator", "words": words})
        self._lost_meanwhile.clear()
        meanwhile, self._meanwhile = self._meanwhile, []
        # Losses and admissions first, in their order: a message that a lost worker has kept must
        # have no effect.
        for action in meanwhile:
            action()
        for channel in list(self._channels.values()):
            channel.reconnect()

    def judge_after(self, seconds: float, judge: Callable[[], None]) -> None:
        """Judge a silent worker when there was a coordinator for so many seconds without a break.

        A coordinator that is restarted waits anew: it cannot know who was silent before.
        """

        def due() -> None:
            left = self._up_since + seconds - self._kernel.now
            if self.is_down:
                self._meanwhile.append(partial(self.judge_after, seconds, judge))
            elif self._up_since > 0 and left > 1e-9:
                self._kernel.after(left, due)
            else:
                judge()

        self._kernel.after(seconds, due)

    def _recovered(self) -> LeaseService:
        """The lease service of a successor."""
        service = self._new_service()
        if self._journal is not None:
            self._journal.replay(service)
        return service

    def hear(self, channel: LeaseChannel, message: Leasing) -> None:
        """Handle a message of a worker; messages of ended incarnations are ignored."""
        if self._channels.get(channel.worker) is channel:
            if not channel.has_spoken:
                channel.has_spoken = True
                self.on_arrival(channel.worker)
            if self._journal is not None:
                self._note(LeaseInput("hear", channel.worker, message))
            self._pass_on(self._service.hear(channel.worker, message))

    def is_held(self, channel: LeaseChannel, number: int) -> bool:
        """Whether the incarnation of a channel holds a lease."""
        worker = channel.worker
        current = self._channels.get(worker) is channel and worker not in self._lost_meanwhile
        return current and self.leases.is_held(worker, number)

    def lose(self, worker: str) -> None:
        """Handle the loss of a worker: its leases are given to other workers."""
        if self.is_down:
            self._lost_meanwhile.add(worker)
            self._meanwhile.append(partial(self.lose, worker))
            return
        # Before the service returns them to others.
        samples = self.leases.samples_of(worker)
        self._note(LeaseInput("lose", worker))
        letters = self._service.lose(worker)
        # Before the messages are passed on, which are for the others only.
        self._channels.pop(worker, None)
        detail = {"member": worker, "samples": str(samples)}
        self._logs.coordinator.event("given again", detail)
        self._account()
        self._pass_on(letters)

    def stop(self) -> None:
        """Stop giving leases."""
        if self.is_down:
            self._meanwhile.append(self.stop)
            return
        self._note(LeaseInput("stop"))
        self._pass_on(self._service.stop())

    def _stop_leases(self) -> None:
        """Stop giving leases during an evaluation, which decides what follows."""
        self._note(LeaseInput("enough"))
        self.leases.stop()

    def _pass_on(self, letters: Letters) -> None:
        leases = self._service.leases
        if self._accounted != (leases.committed, leases.repeated, leases.lost):
            self._account()
        # The evaluation comes before the messages below: they let workers go on, and the parameters
        # change.
        if self._service.round != self._round:
            self._round = self._service.round
            if not self._service.is_storing:
                self._judged += 1
                self._judge()
                self._evaluate_later()
        if self._service.stored != self._stored:
            self._stored = self._service.stored
            self._take_checkpoint()
        for worker, message in letters:
            channel = self._channels.get(worker)
            if channel is not None:
                channel.tell(message)

    def _account(self) -> None:
        leases = self._service.leases
        account = (leases.committed, leases.repeated, leases.lost)
        if account == self._accounted:
            return
        self._accounted = account
        self._logs.coordinator.samples(*account)
        if self._shares != leases.shares:
            self._shares = leases.shares
            self._logs.coordinator.event("shares", leases.share_words())
        self._accounts += 1
        if self._accounts % _DRAIN_EVERY == 0:
            self._logs.drain()
        self._note_epochs(leases.committed + leases.lost)

    def _note_epochs(self, done: int) -> None:
        size = self._size
        while done >= (self._epochs + 1) * size:
            detail = {"number": str(self._epochs), "samples": str((self._epochs + 1) * size)}
            self._logs.coordinator.event("epoch", detail)
            self._epochs += 1

    def _take_checkpoint(self) -> None:
        """Store a checkpoint: all workers have read the shared state, and nothing is under way."""
        position = self.leases.position
        if position is not None:
            self.store(position)
            return
        words = "a limit was reached in the middle of a global batch"
        self._logs.coordinator.event("not stored", {"words": words})

    def _judge(self) -> None:
        """Evaluate, if samples were committed since the last time; stop at the target."""
        samples, goal = self.leases.committed, self._job.goal
        if self._job.validation is None or samples == self._evaluated:
            return
        values = self._evaluate()
        if values is None:
            return
        self._evaluated = samples
        record = self._logs.coordinator
        for name, value in values.items():
            record.point(f"validation/{name}", value, samples=samples)
        if goal is not None and goal.reached(values):
            record.event("target", {"target": str(goal), "samples": str(samples)})
            self._stop_leases()
        elif self.improvement.is_over(values):
            record.event("stopped", {"why": str(self._job.early_stopping), "samples": str(samples)})
            self._stop_leases()
