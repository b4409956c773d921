# ruff: noqa: ARG002 - a law hears of more than it looks at
"""What must hold in every run, whatever the protocol, and on either side of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from simulated_servers import alpha
from simulated_world import BrokenLawError, Law

from manyhands.endpoint import Push
from manyhands.protocols import Add, Answer, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulated_case import Case
    from simulated_servers import Expected, Model
    from simulated_world import Life

    from manyhands.endpoint import Parameters, Said
    from manyhands.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.virtual import World


def near(one: np.ndarray, other: np.ndarray) -> bool:
    """The same but for rounding."""
    return all(
        abs(mine - its) <= 1e-9 * (1 + abs(mine))
        for mine, its in zip(one.tolist(), other.tolist(), strict=True)
    )


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
        self._compare(life.sender, at_most=getattr(self.case.protocol, "every", 1) > 1)

    def _compare(self, sender: str, *, at_most: bool) -> None:
        for server in range(self.case.servers):
            used, committed = self._used[sender, server], self._committed[sender]
            if not (committed == used or (at_most and committed < used)):
                raise BrokenLawError(
                    f"server-{server} used {used} samples of {sender}, which committed {committed}"
                )


def reference(model: Callable[[Case, np.ndarray], Model]) -> type[Law]:
    """A law: the servers do what a model of them does."""

    class Reference(Law):
        def __init__(self, case: Case) -> None:
            super().__init__(case)
            first = np.concatenate([p.detach().numpy() for p in case.job.model().parameters()])
            parts = np.split(first, case.servers)
            self._models = [model(case, part.copy()) for part in parts]
            self._due: dict[tuple[int, str, int], np.ndarray | None] = {}

        def decided(
            self,
            server: int,
            before: ServerState,
            call: Call,
            payload: np.ndarray | None,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            self._compare(server, self._models[server].hear(call, payload), after, actions, call)

        def left(
            self,
            server: int,
            worker: str,
            before: ServerState,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            about = f"the death of {worker}"
            self._compare(server, self._models[server].leave(worker), after, actions, about)

        def _compare(
            self,
            server: int,
            due: list[Expected],
            after: ServerState,
            actions: Sequence[Action],
            about: object,
        ) -> None:
            answers = sorted(
                (a.call.sender, a.call.number, a.message.version, a.message.applied, a.parameters)
                for a in actions
                if isinstance(a, Answer)
            )
            expected = sorted((*one[:4], one.x is not None) for one in due)
            if answers != expected:
                raise BrokenLawError(
                    f"at {about} server-{server} answers {answers}, and {expected} are due"
                )
            version = self._models[server].version
            if after.version != version:
                raise BrokenLawError(
                    f"at {about} server-{server} is at version {after.version}, not {version}"
                )
            for one in due:
                self._due[server, one.sender, one.number] = one.x

        def settled(self, server: int, x: np.ndarray) -> None:
            expected = self._models[server].x
            if not near(x, expected):
                raise BrokenLawError(f"server-{server} holds {x}, and {expected} is right")

        def replied(
            self,
            server: int,
            call: tuple[str, int],
            message: Parameters,
            payload: np.ndarray | None,
        ) -> None:
            model = self._models[server]
            if (server, *call) in self._due:
                expected = self._due.pop((server, *call))
            else:
                model.again(call[0])
                expected = model.x
                if message.version != model.version:
                    raise BrokenLawError(
                        f"{call} is told version {message.version} and not {model.version}"
                    )
            if payload is None or expected is None:
                return
            if not near(payload, expected):
                raise BrokenLawError(
                    f"server-{server} sends {payload} to {call}, and {expected} is right"
                )

    return Reference


class Gradients(Law):
    """A worker pushes the gradient at the parameters that it was given last."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x: dict[str, list[np.ndarray]] = {}
        self._found: dict[str, list[np.ndarray]] = {}

    def started(self, life: Life) -> None:
        self._x[life.sender] = [np.zeros(1)] * self.case.servers

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None:
            self._x[life.sender][server] = payload

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        expected = np.concatenate(self._x[life.sender])
        if not near(x, expected):
            raise BrokenLawError(f"{life.sender} computes at {x}, and was given {expected}")
        found = self.case.gradient(expected, lease)
        self._found[life.sender] = np.split(found, self.case.servers)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push) and message.samples:
            expected = self._found[life.sender][server]
            if not near(payload, expected):
                raise BrokenLawError(f"{life.sender} pushes {payload}, not {expected}")


class Alone(Law):
    """x ← x − λ·∇f(x) between two meetings; a worker gives where it is, and takes the mean."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x: dict[str, list[np.ndarray]] = {}
        self._velocity: dict[str, np.ndarray] = {}
        self._samples: Counter[str] = Counter()

    def started(self, life: Life) -> None:
        self._x[life.sender] = [np.zeros(1)] * self.case.servers

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None:
            self._x[life.sender][server] = payload
            self._samples[life.sender] = 0

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        here = np.concatenate(self._x[life.sender])
        if not near(x, here):
            raise BrokenLawError(f"{life.sender} computes at {x}, and should be at {here}")
        gradient = self.case.gradient(here, lease)
        before = self._velocity.get(life.sender)
        now = gradient if before is None else self.case.momentum * before + gradient
        self._velocity[life.sender] = now
        rate = self.case.rate * lease.total / self.case.job.global_batch
        self._x[life.sender] = np.split(here - rate * now, self.case.servers)
        self._samples[life.sender] += lease.samples

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push):
            expected = self._x[life.sender][server]
            if not near(payload, expected):
                raise BrokenLawError(f"{life.sender} gives {payload}, not {expected}")
            samples = self._samples[life.sender]
            if message.samples != samples:
                raise BrokenLawError(
                    f"{life.sender} gives {message.samples} samples, and trained on {samples}"
                )


class Elastic(Law):
    """x_i ← x_i − η·∇f(x_i) − α·(x_i − x̄), with the centre that its order has."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x: dict[str, dict[int, np.ndarray]] = {}
        self._centre: dict[str, dict[int, np.ndarray]] = {}
        self._new: dict[str, dict[int, tuple[int, np.ndarray]]] = {}
        self._version: dict[tuple[str, int], int] = {}
        self._pull: dict[str, np.ndarray] = {}
        self._velocity: dict[str, np.ndarray] = {}
        self._steps: Counter[str] = Counter()
        self._asked: dict[str, list[bool]] = {}

    def started(self, life: Life) -> None:
        for book in (self._x, self._centre, self._new):
            book[life.sender] = {}

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is None:
            return
        if not beside:
            # Later ones are looked at in an evaluation, and nothing is kept of them.
            self._x[life.sender].setdefault(server, payload)
        elif self.case.protocol.order == "parallel" and life.sender in self._asked:
            self._new[life.sender][server] = (message.version, payload)
        else:
            self._centre[life.sender][server] = payload
            self._version[life.sender, server] = message.version

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        here = self._whole(self._x[life.sender])
        if not near(x, here):
            raise BrokenLawError(f"{life.sender} computes at {x}, and should be at {here}")
        gradient = self.case.gradient(here, lease)
        before = self._velocity.get(life.sender)
        self._velocity[life.sender] = (
            gradient if before is None else self.case.momentum * before + gradient
        )
        rate = self.case.rate * lease.total / self.case.job.global_batch
        self._pull[life.sender] = rate * self._velocity[life.sender]

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push):
            expected = self._x[life.sender][server]
            if not near(payload, expected):
                raise BrokenLawError(f"{life.sender} gives {payload}, not {expected}")
            self._asked[life.sender] = []

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if isinstance(call.message, Push) and self.case.protocol.order == "parallel":
            known = self._version[call.sender, server]
            if known != before.version:
                raise BrokenLawError(
                    f"{call.sender} is drawn to version {known} in version {before.version}"
                )

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        sender = life.sender
        self._steps[sender] += 1
        x = self._whole(self._x[sender])
        to = x - self._pull.pop(sender, 0.0)
        meets = self._steps[sender] % self.case.protocol.every == 0
        if meets != (sender in self._asked):
            raise BrokenLawError(f"{sender} meets the centre: not {meets}")
        if meets:
            to = to + alpha(self.case) * (self._whole(self._centre[sender]) - x)
        for server, (version, payload) in self._new[sender].items():
            self._centre[sender][server] = payload
            self._version[sender, server] = version
        self._new[sender] = {}
        self._asked.pop(sender, None)
        self._x[sender] = dict(enumerate(np.split(to, self.case.servers)))
        real = np.concatenate(
            [part.numpy().view(np.float64) for part in life.replication.parameters]
        )
        if not near(real, to):
            raise BrokenLawError(f"{sender} is at {real}, and should be at {to}")

    def _whole(self, parts: dict[int, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts[server] for server in range(self.case.servers)])
