# ruff: noqa: ARG002 - a law hears of more than it looks at
"""What must hold in every run, whatever the protocol."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simulated_events import BrokenLawError, Law

from manyhands.endpoint import Push
from manyhands.protocols import Add, Answer, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from simulated_case import Case
    from simulated_events import Life

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.virtual import World


class Calls(Law):
    """Each call is decided about once, in order, and answered once at most; no dead one's is."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._numbers: Counter[tuple[int, str]] = Counter()
        self._fenced: set[str] = set()
        self._answered: dict[tuple[int, str, int], bool] = {}
        self._used: set[tuple[int, str, int]] = set()

    def fenced(self, sender: str) -> None:
        self._fenced.add(sender)

    def began_anew(self, server: int, x: np.ndarray) -> None:
        for book in (self._numbers, self._answered):
            for key in [key for key in book if key[0] == server]:
                del book[key]
        self._used = {key for key in self._used if key[0] != server}

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if call.sender in self._fenced:
            raise BrokenLawError(f"{call} is heard though its sender is fenced")
        self._numbers[server, call.sender] += 1
        expected = self._numbers[server, call.sender]
        if call.number != expected:
            raise BrokenLawError(f"{call} is heard where number {expected} is due")
        self._check(server, before, after, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._check(server, before, after, actions)

    def _check(
        self, server: int, before: ServerState, after: ServerState, actions: Sequence[Action]
    ) -> None:
        if after.version < before.version:
            raise BrokenLawError(
                f"server-{server} went back from version {before.version} to {after.version}"
            )
        for action in actions:
            call = getattr(action, "call", None)
            if call is None:
                continue
            key = (server, call.sender, call.number)
            if call.number > self._numbers[server, call.sender]:
                raise BrokenLawError(f"{call} was never heard")
            if isinstance(action, Answer):
                if key in self._answered:
                    raise BrokenLawError(f"{call} is answered twice")
                self._answered[key] = action.message.applied
            else:
                if key in self._used:
                    raise BrokenLawError(f"what came with {call} is used twice")
                self._used.add(key)

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        applied = self._answered.get((server, *call))
        if applied is None:
            raise BrokenLawError(f"{call} gets a reply before it is answered")
        if applied != message.applied:
            raise BrokenLawError(
                f"{call} is told that its update was applied={message.applied}: it is {applied}"
            )


class Samples(Law):
    """Every sample of an epoch is committed once or counted as lost; repeats have a reason."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._holders: dict[int, str] = {}
        self._leases: dict[int, Lease] = {}
        self._returned: set[int] = set()
        self._done: dict[int, str] = {}
        self._repeated = 0
        self._stopped = False

    def leased(self, worker: str, lease: Lease) -> None:
        number = lease.number
        if number in self._holders:
            raise BrokenLawError(f"{lease} is with {self._holders.get(number)} already")
        if number in self._done:
            raise BrokenLawError(f"{lease} is given though it is done")
        if number in self._leases:
            if number not in self._returned:
                raise BrokenLawError(f"{lease} is given again though its holder lives")
            self._repeated += lease.samples
        self._returned.discard(number)
        self._leases[number], self._holders[number] = lease, worker

    def gave_back(self, worker: str, samples: int, *, alive: bool) -> None:
        if alive:
            raise BrokenLawError(f"{worker} lives and loses what it holds")
        mine = [number for number, holder in self._holders.items() if holder == worker]
        for number in mine:
            del self._holders[number]
        self._returned.update(mine)
        held = sum(self._leases[number].samples for number in mine)
        if samples != held:
            raise BrokenLawError(f"{worker} held {held} samples, and {samples} are given back")

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        self._close(life, number, "committed", accepted=accepted)

    def forwent(self, life: Life, number: int, *, accepted: bool) -> None:
        self._close(life, number, "lost", accepted=accepted)

    def _close(self, life: Life, number: int, how: str, *, accepted: bool) -> None:
        if accepted != (self._holders.get(number) == life.name):
            raise BrokenLawError(
                f"lease {number} is with {self._holders.get(number)}, and {life.name} ends it"
            )
        if accepted:
            del self._holders[number]
            self._done[number] = how

    def stopped(self) -> None:
        self._stopped = True

    def ended(self, world: World) -> None:
        if not world.coordinator.is_over:
            raise BrokenLawError("the run has ended, and its model is not stored")
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
                f"(committed, lost, repeated) is {found}, and the book says {told}"
            )
        if not all(times == 1 for times in seen.values()):
            raise BrokenLawError(f"samples are counted twice: {seen}")
        if self._holders:
            raise BrokenLawError(f"the run is over, and {self._holders} hold leases")
        drops = getattr(self.case.protocol, "late", "queue") == "drop"
        if not (drops or not book.lost):
            raise BrokenLawError(f"{book.lost} samples are lost")
        noted = world.coordinator._epochs
        if noted != len(seen) // size:
            raise BrokenLawError(f"{noted} epochs noted, {len(seen)} samples of {size}")
        if self._stopped:
            return
        budget = self.case.job.budget
        if len(seen) != budget:
            raise BrokenLawError(f"{len(seen)} samples of {budget} were trained or lost")
        wanted = {(place // size, place % size) for place in range(budget)}
        if seen.keys() != wanted:
            raise BrokenLawError(f"never seen: {wanted - seen.keys()}")


class Staleness(Law):
    """What is recorded as staleness is the versions between what was computed on and now."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._lies: dict[tuple[str, int], int] = {}
        self._used: dict[tuple[str, int], int] = {}
        self._posted: Counter[tuple[str, int]] = Counter()
        self._reads: dict[tuple[str, int, int], int] = {}
        self._seen: dict[int, Counter[int]] = {}

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None and not beside:
            self._lies[life.sender, server] = message.version

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        for server in range(self.case.servers):
            self._used[life.sender, server] = self._lies[life.sender, server]

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        self._posted[life.sender, server] += 1
        if not isinstance(message, Push):
            return
        number = self._posted[life.sender, server]
        read = (self._used if message.samples else self._lies)[life.sender, server]
        if message.version != read:
            raise BrokenLawError(
                f"{life.sender} computed on version {read}, and says {message.version}"
            )
        self._reads[life.sender, server, number] = read

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        for action in actions:
            if isinstance(action, Add | Step) and action.staleness is not None:
                read = self._reads[call.sender, server, call.number]
                found = before.version - read
                if action.staleness != found:
                    raise BrokenLawError(
                        f"{call} is {found} versions stale, and {action.staleness} is recorded"
                    )
                self._seen.setdefault(server, Counter())[found] += 1

    def ended(self, world: World) -> None:
        for number, server in enumerate(world._servers.values()):
            told = server._log.recorder._staleness
            seen = self._seen.get(number, Counter())
            if told != seen:
                raise BrokenLawError(f"server-{number} saw {seen}, and its trace says {told}")


class Fresh(Law):
    """Nobody gives to a round what was made of the parameters of an earlier one."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if isinstance(call.message, Push) and call.message.version != before.version:
            raise BrokenLawError(f"{call} reached server-{server} in version {before.version}")


class Acknowledged(Law):
    """What a worker has committed is what the servers have used of it, no more and no less."""

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
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        for action in actions:
            if isinstance(action, Add | Step) and action.call is not None:
                self._used[action.call.sender, server] += action.call.message.samples

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        if accepted:
            self._committed[life.sender] += self._leases[number].samples
            self._compare(life.sender, at_most=True)

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        several = getattr(self.case.protocol, "every", 1) > 1
        self._compare(life.sender, at_most=several or not life.is_heard)

    def _compare(self, sender: str, *, at_most: bool) -> None:
        for server in range(self.case.servers):
            used, committed = self._used[sender, server], self._committed[sender]
            if not (committed == used or (at_most and committed < used)):
                raise BrokenLawError(
                    f"server-{server} used {used} samples of {sender}, which committed {committed}"
                )
