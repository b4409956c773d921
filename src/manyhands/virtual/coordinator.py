"""The virtual coordinator: the lease desk on the simulator's clock.

Its decisions are those of the live coordinator, `manyhands.leasing.lease_service`. Its time is not
modelled: asking for a lease, committing one and evaluating cost no virtual time. (Live, the next
lease is asked for while the present one is computed.) An evaluation happens when an epoch is done
and all of it committed, so nothing is under way: a consistent cut.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.virtual.simulator.kernel import happens
from manyhands.wire.leasing import Ask, Commit, Evaluate, Forgo, Nothing, Saved, Sum, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from simpy import Event

    from manyhands.job import Job
    from manyhands.leasing.lease_service import Letters
    from manyhands.virtual.log import Logs, WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.wire.leasing import Leasing

_DRAIN_EVERY = 2000
"""Changes of the account between two writings of the traces."""


class LeaseChannel:
    """What is between one life of a worker and the desk.

    Args:
        worker: its name.
        coordinator: whose desk it is.
        kernel: the clock.
    """

    def __init__(self, worker: str, coordinator: VirtualCoordinator, kernel: Kernel) -> None:
        self.worker = worker
        self.is_cut_off = False
        """Whether nothing comes through at present."""
        self._coordinator = coordinator
        self._kernel = kernel
        self._words: deque[Leasing] = deque()
        """What the desk has said, and the worker has not heard yet."""
        self._unheard: list[Leasing] = []
        """What the worker said while nothing came through."""
        self._listener: Event | None = None
        self._asks = False
        """Whether its last `Ask` has no answer yet."""

    async def lease(self, log: WorkerLog) -> Leasing:
        """What the desk has for a worker that asks, as soon as there is something."""
        if not self._asks:
            self._asks = True
            self.say(Ask())
        word = await self._receive(log)
        self._asks = isinstance(word, Nothing)
        return word

    async def looked_up(self, cut: Evaluate, log: WorkerLog) -> Leasing:
        """The worker has seen the shared state: wait for the others; or look again, on a `Cut`."""
        self.say(Tally(cut.round, ()))
        word = await self._receive(log)
        while not isinstance(word, Sum | Evaluate):
            word = await self._receive(log)
        return word

    def commit(self, number: int) -> bool:
        """An update is part of the shared state; False if the lease is not this worker's."""
        accepted = not self.is_cut_off and self._coordinator.is_held(self, number)
        self.say(Commit(number))
        return accepted

    def forgo(self, number: int) -> None:
        """What was made of a lease is not wanted."""
        self.say(Forgo(number))

    def saved(self) -> None:
        """The model is stored."""
        self.say(Saved())

    def say(self, message: Leasing) -> None:
        """Say something to the desk."""
        if self.is_cut_off:
            self._unheard.append(message)
        else:
            self._coordinator.hear(self, message)

    def tell(self, message: Leasing) -> None:
        """Say something to the worker."""
        self._words.append(message)
        self._wake()

    def heal(self) -> None:
        """What was said meanwhile comes through now."""
        self.is_cut_off = False
        unheard, self._unheard = self._unheard, []
        for message in unheard:
            self.say(message)
        self._wake()

    async def _receive(self, log: WorkerLog) -> Leasing:
        if not self._words or self.is_cut_off:
            begun, self._listener = self._kernel.now, self._kernel.env.event()
            await happens(self._listener)
            log.span("wait", begun)
        return self._words.popleft()

    def _wake(self) -> None:
        if self._listener is not None and self._words and not self.is_cut_off:
            listener, self._listener = self._listener, None
            listener.succeed()


class VirtualCoordinator:
    """The state of one run.

    Args:
        job: what is trained.
        workers: among how many a global batch is divided.
        kernel: the clock.
        logs: the traces.
        evaluate: gives the validation metrics of what the servers hold now.
        lockstep: whether workers wait for each other: see `manyhands.leasing.leases`.
        by_rank: whether each has its own parts.
    """

    def __init__(
        self,
        job: Job,
        workers: int,
        kernel: Kernel,
        logs: Logs,
        evaluate: Callable[[], dict[str, float]],
        *,
        lockstep: bool = False,
        by_rank: bool = False,
    ) -> None:
        self._job = job
        self._kernel = kernel
        self._logs = logs
        self._evaluate = evaluate
        self._workers = workers
        self._lockstep = lockstep
        self._by_rank = by_rank
        self._service = self._new_service()
        self._channels: dict[str, LeaseChannel] = {}
        """By worker, the channel with its present life."""
        self._accounts = 0
        self._round = 0
        """The last evaluation that was seen."""
        self._evaluated = 0
        """Samples that were committed at the last evaluation."""
        self._accounted = (0, 0, 0)
        self._epochs = 0
        if job.seconds is not None:
            kernel.after(job.seconds, self.stop)

    def _new_service(self) -> LeaseService:
        """The desk as it is before it has heard anything."""
        evaluates = self._job.validation is not None
        leases = Leases(
            len(self._job.data),
            self._job.batch_sizes,
            self._workers,
            self._job.budget,
            pauses=evaluates,
            lockstep=self._lockstep,
            by_rank=self._by_rank,
        )
        return LeaseService(leases, evaluates=evaluates, lockstep=self._lockstep)

    @property
    def leases(self) -> Leases:
        """The book of leases."""
        return self._service.leases

    @property
    def is_over(self) -> bool:
        """Whether everything is committed, or enough of it, and the model is stored."""
        return self._service.is_over

    def begin(self, worker: str) -> LeaseChannel:
        """A worker takes part from now on; its channel with the desk."""
        channel = self._channels[worker] = LeaseChannel(worker, self, self._kernel)
        self._pass_on(self._service.admit(worker))
        return channel

    def hear(self, channel: LeaseChannel, message: Leasing) -> None:
        """A worker says something; a life that is over is not heard."""
        if self._channels.get(channel.worker) is channel:
            self._pass_on(self._service.hear(channel.worker, message))

    def is_held(self, channel: LeaseChannel, number: int) -> bool:
        """Whether a worker holds a lease, in the life of a channel."""
        return self._channels.get(channel.worker) is channel and self.leases.is_held(
            channel.worker, number
        )

    def lose(self, worker: str) -> None:
        """A worker is gone: what it held is given to others."""
        self._channels.pop(worker, None)
        samples = self.leases.samples_of(worker)
        letters = self._service.lose(worker)
        detail = {"member": worker, "samples": str(samples)}
        self._logs.coordinator.event("given again", detail)
        self._account()
        self._pass_on(letters)

    def stop(self) -> None:
        """Enough: give no more samples."""
        self._pass_on(self._service.stop())

    def _pass_on(self, letters: Letters) -> None:
        self._account()
        self._note_epochs()
        if self._service.round != self._round:
            self._round = self._service.round
            self._judge()
        for worker, message in letters:
            channel = self._channels.get(worker)
            if channel is not None:
                channel.tell(message)

    def _account(self) -> None:
        leases = self.leases
        account = (leases.committed, leases.repeated, leases.lost)
        if account == self._accounted:
            return
        self._accounted = account
        self._logs.coordinator.samples(*account)
        self._accounts += 1
        if self._accounts % _DRAIN_EVERY == 0:
            self._logs.drain()

    def _note_epochs(self) -> None:
        size = len(self._job.data)
        while self.leases.committed + self.leases.lost >= (self._epochs + 1) * size:
            detail = {"number": str(self._epochs), "samples": str((self._epochs + 1) * size)}
            self._logs.coordinator.event("epoch", detail)
            self._epochs += 1

    def _judge(self) -> None:
        """Evaluate, if anything was trained since the last time; stop at the target."""
        samples, goal = self.leases.committed, self._job.goal
        if self._job.validation is None or samples == self._evaluated:
            return
        self._evaluated = samples
        values = self._evaluate()
        record = self._logs.coordinator
        for name, value in values.items():
            record.point(f"validation/{name}", value, samples=samples)
        if goal is not None and goal.reached(values):
            record.event("target", {"target": str(goal), "samples": str(samples)})
            self.leases.stop()
