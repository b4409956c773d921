"""The virtual coordinator: leases, epochs, evaluations and the end of a run.

Its time is not modelled: asking for a lease, committing one and evaluating cost no virtual time.
(Live, the next lease is asked for while the present one is computed.) An evaluation happens when
an epoch is done and all of it committed, so nothing is under way: a consistent cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from manyhands.leases import Lease, Leases
from manyhands.virtual.kernel import happens

if TYPE_CHECKING:
    from collections.abc import Callable

    from simpy import Event

    from manyhands.job import Job
    from manyhands.virtual.kernel import Kernel
    from manyhands.virtual.log import Logs, WorkerLog

_DRAIN_EVERY = 2000
"""Commits between two writings of the traces."""


class Coordinator:
    """The state of one run.

    Args:
        job: what is trained.
        workers: among how many a global batch is divided.
        kernel: the clock.
        logs: the traces.
        evaluate: gives the validation metrics of what the servers hold now.
        lockstep: whether workers wait for each other: see `manyhands.leases`.
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
        self._lockstep = lockstep
        self.leases = Leases(
            len(job.data),
            job.batch_sizes,
            workers,
            job.budget,
            pauses=job.validation is not None,
            lockstep=lockstep,
            by_rank=by_rank,
        )
        self._working: set[str] = set()
        """Everybody who takes part, and lives as far as is known."""
        self._idle: set[str] = set()
        """Those who were told that there is nothing at present."""
        self._looking: set[str] | None = None
        """During an evaluation: those who have not looked up yet."""
        self._waiting: list[Event] = []
        self._commits = 0
        self._evaluated = 0
        """Samples that were committed at the last evaluation."""
        self._epochs = 0
        self.is_over = False
        """Whether everything is committed, or enough of it."""
        if job.seconds is not None:
            kernel.after(job.seconds, self.stop)

    def begin(self, worker: str) -> None:
        """A worker takes part from now on."""
        self._working.add(worker)

    async def lease(self, worker: str, log: WorkerLog) -> Lease | Literal["cut", "nothing", "over"]:
        """The next samples for a worker, as soon as there are any.

        Or `cut`: it is to look at the shared state, because everybody evaluates it; `nothing`: it
        is to rest, because others have what is left; `over`: the run is.
        """
        while True:
            if self._looking is not None:
                if worker in self._looking:
                    return "cut"
                await self._change(log)
                continue
            found = self.leases.take(worker)
            if isinstance(found, Lease):
                self._idle.discard(worker)
                return found
            if found == "wait":
                if self._lockstep and worker not in self._idle:
                    self._idle.add(worker)
                    return "nothing"
                await self._change(log)
                continue
            self._judge()
            if found == "over":
                self.is_over = True
                self._wake()
                return "over"
            self._idle.clear()
            self._looking = set(self._working)
            self._wake()

    async def _change(self, log: WorkerLog) -> None:
        """Wait until there is something new for those who wait."""
        begun, change = self._kernel.now, self._kernel.env.event()
        self._waiting.append(change)
        await happens(change)
        log.span("wait", begun)

    def looked_up(self, worker: str) -> None:
        """A worker has seen the shared state; when all have, the next epoch begins."""
        if self._looking is None:
            return
        self._looking.discard(worker)
        if not self._looking:
            self._looking = None
            self.leases.evaluated()
            self._wake()

    def forgo(self, worker: str, lease: Lease) -> None:
        """What was made of a lease is not wanted."""
        if self.leases.forgo(worker, lease.number):
            self._account()
            self._note_epochs()
            if not self.leases.held:
                self._wake()

    def commit(self, worker: str, lease: Lease) -> bool:
        """A worker's update is part of the shared state; False if the lease was not its own."""
        if not self.leases.commit(worker, lease.number):
            return False
        self._commits += 1
        self._account()
        self._note_epochs()
        if not self.leases.held:
            self._wake()
        if self._commits % _DRAIN_EVERY == 0:
            self._logs.drain()
        return True

    def lose(self, worker: str) -> None:
        """A worker is gone: its samples are given again."""
        self._working.discard(worker)
        self._idle.discard(worker)
        self.looked_up(worker)
        samples = self.leases.give_back(worker)
        detail = {"member": worker, "samples": str(samples)}
        self._logs.coordinator.event("given again", detail)
        self._account()
        self._wake()

    def stop(self) -> None:
        """Enough: give no more samples."""
        self.leases.stop()
        if not self.leases.held:
            self._wake()

    def _account(self) -> None:
        leases = self.leases
        self._logs.coordinator.samples(leases.committed, leases.repeated, leases.lost)

    def _wake(self) -> None:
        """Something changed for those who wait."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            change.succeed()

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
            self.stop()
