# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Samples are trained once, and what is committed was applied."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from manyhands.protocols import Add, ShardOperation, Step
from manyhands.testing.laws.law import BrokenLawError, Law

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.testing.laws.law import Life
    from manyhands.virtual import World


class SamplesOnce(Law):
    """Every sample of an epoch is committed once or counted as lost.

    A lease has one holder at a time, is given again only if its holder was lost, and is committed
    or discarded at most once by a worker. The counts of the coordinator are those of the leases.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._holders: dict[int, str] = {}
        self._leases: dict[int, Lease] = {}
        self._returned: set[int] = set()
        self._done: dict[int, str] = {}
        self._closed: set[tuple[str, int]] = set()
        """Leases that were committed or discarded, each with the worker's name for servers."""
        self._repeated = 0
        self._stopped = False

    def leased(self, worker: str, lease: Lease) -> None:
        number = lease.number
        if number in self._holders:
            raise BrokenLawError(f"{lease} is given, and {self._holders[number]} holds it")
        if number in self._done:
            raise BrokenLawError(f"{lease} is given, and was {self._done[number]} before")
        if number in self._leases:
            if number not in self._returned:
                raise BrokenLawError(f"{lease} is given again, and its holder was not lost")
            self._repeated += lease.samples
        self._returned.discard(number)
        self._leases[number], self._holders[number] = lease, worker

    def gave_back(self, worker: str, samples: int, *, alive: bool) -> None:
        if alive:
            raise BrokenLawError(f"{worker} is alive, and its leases are taken from it")
        mine = [number for number, holder in self._holders.items() if holder == worker]
        for number in mine:
            del self._holders[number]
        self._returned.update(mine)
        held = sum(self._leases[number].samples for number in mine)
        if samples != held:
            raise BrokenLawError(f"{worker} held {held} samples, and {samples} are taken from it")

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        self._close(life, number, "committed", accepted=accepted)

    def forwent(self, life: Life, number: int, *, accepted: bool) -> None:
        self._close(life, number, "lost", accepted=accepted)

    def _close(self, life: Life, number: int, how: str, *, accepted: bool) -> None:
        holder = self._holders.get(number)
        if accepted != (holder == life.name):
            raise BrokenLawError(
                f"{life.name} says of lease {number} that it is {how}, which "
                f"{'counts' if accepted else 'does not count'}; its holder is {holder}"
            )
        if (life.sender, number) in self._closed:
            raise BrokenLawError(f"{life.sender} says of lease {number} a second time: {how}")
        self._closed.add((life.sender, number))
        if accepted:
            del self._holders[number]
            self._done[number] = how

    def stopped(self) -> None:
        self._stopped = True

    def ended(self, world: World) -> None:
        if not world.coordinator.is_over:
            raise BrokenLawError("the run has ended, and the model is not stored")
        book, size = world.coordinator.leases, len(self.case.targets)
        sums = Counter[str]()
        seen = Counter[tuple[int, int]]()
        for number, how in self._done.items():
            lease = self._leases[number]
            sums[how] += lease.samples
            seen.update((lease.epoch, place) for place in range(lease.start, lease.stop))
        told = (book.committed, book.lost, book.repeated)
        found = (sums["committed"], sums["lost"], self._repeated)
        if told != found:
            raise BrokenLawError(
                f"(committed, lost, repeated) is {found}, and the coordinator says {told}"
            )
        if not all(times == 1 for times in seen.values()):
            raise BrokenLawError(f"samples are counted twice: {seen}")
        if self._holders:
            raise BrokenLawError(f"the run is over, and leases are held: {self._holders}")
        noted = world.coordinator._epochs
        if noted != len(seen) // size:
            raise BrokenLawError(f"{noted} epochs are recorded, with {len(seen)} samples of {size}")
        if self._stopped:
            return
        budget = self.case.job.budget
        if len(seen) != budget:
            raise BrokenLawError(f"{len(seen)} samples were trained or lost, of {budget}")
        wanted = {(place // size, place % size) for place in range(budget)}
        if seen.keys() != wanted:
            raise BrokenLawError(f"these samples were never trained: {wanted - seen.keys()}")


class Acknowledged(Law):
    """The samples that a worker has committed are those of its updates that servers have applied.

    Holds if every update is pushed to all servers, and applied with `Add`, `Step` or an operation
    of the protocol's own.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._used: Counter[tuple[str, int]] = Counter()
        self._committed: Counter[str] = Counter()
        self._leases: dict[int, Lease] = {}

    def leased(self, worker: str, lease: Lease) -> None:
        self._leases[lease.number] = lease

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        for action in actions:
            if isinstance(action, Add | Step | ShardOperation) and action.call is not None:
                message = action.call.message
                self._used[action.call.sender, server] += getattr(message, "samples", 0)

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        if accepted:
            self._committed[life.sender] += self._leases[number].samples
            self._compare(life.sender, at_most=True)

    def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
        protocol = self.case.protocol
        several = protocol.local_optimizer and getattr(protocol, "every", 2) > 1
        self._compare(life.sender, at_most=several or not life.is_heard)

    def _compare(self, sender: str, *, at_most: bool) -> None:
        for server in range(self.case.servers):
            used, committed = self._used[sender, server], self._committed[sender]
            if not (committed == used or (at_most and committed < used)):
                raise BrokenLawError(
                    f"server-{server} applied {used} samples of {sender}, which has committed "
                    f"{committed}"
                )
