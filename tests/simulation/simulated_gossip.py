# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Gossip: mixing keeps the sum of all replicas, what is on its way included, between crashes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from simulated_peers import Replicas

from manyhands.endpoint import Change, Join, Mix, Push
from manyhands.protocols import Add, Answer
from manyhands.testing import BrokenLawError, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Parameters, Said
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing import Case, Life
    from manyhands.virtual import World


@cache
def neighbours(graph: str, rank: int, workers: int, number: int) -> set[int]:
    """Who mixes with whom: on a ring, at distances of powers of two, in a tournament."""
    if graph == "random_pairs":
        seats = workers - 1 + workers % 2
        pairs = [{one, (number - one) % seats} for one in range(seats)]
        pairs = [pair if len(pair) == 2 else {*pair, seats} for pair in pairs]
        return {one for pair in pairs if rank in pair for one in pair if one < workers} - {rank}
    steps = {1} if graph == "ring" else {2**power for power in range(8) if 2**power <= workers // 2}
    return {(rank + way * step) % workers for step in steps for way in (1, -1)} - {rank}


def rank_of(sender: str) -> int:
    """The rank of one of a worker's lives: `worker-3.1` is the second life of worker 3."""
    return int(sender.partition(".")[0].partition("-")[2])


class Mass(Replicas):
    """What all replicas are together changes by steps alone, unless somebody comes or goes."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.held = {rank: self.begin() for rank in range(case.workers)}
        """By rank, the replica that should be there."""
        self.on_the_way: dict[object, np.ndarray] = {}
        """What is to be added somewhere, because it was taken off elsewhere."""
        self.dead: set[str] = set()
        self._settled: dict[int, np.ndarray] = {}
        self._sum = self._together()

    def begin(self) -> np.ndarray:
        """What everybody has at the start."""
        return self.case.first()

    def _together(self) -> np.ndarray:
        there = [x for rank, x in self.held.items() if rank not in self.fresh]
        return sum((*there, *self.on_the_way.values()), np.zeros(1))

    def add_step(self, step: np.ndarray) -> None:
        """A step has reached the replica that others meet."""
        self._sum = self._sum + step

    def count_again(self) -> None:
        """Somebody came or went."""
        self._sum = self._together()

    def began_anew(self, server: int, x: np.ndarray) -> None:
        if not near(x, self.begin()):
            raise BrokenLawError(f"server-{server} returns with {x}")
        self.held[server] = x
        self.fresh.add(server)
        self.count_again()

    def fenced(self, sender: str) -> None:
        self.dead.add(sender)
        self.held.pop(rank_of(sender), None)
        self.fresh.discard(rank_of(sender))
        self.forget(sender)
        self.count_again()

    def forget(self, sender: str) -> None:
        """A life is over: what was on its way to or from it may be lost."""
        raise NotImplementedError

    def changed(self, server: int, sender: str, change: np.ndarray) -> None:
        """A worker adds its step to its own replica; or takes up another's, when it returns."""
        self.held[server] = self.held[server] + change
        step = self.step.pop(sender, None)
        if step is not None:
            self.check_replica(server)
            if not near(change, step):
                raise BrokenLawError(f"{sender} adds {change}, and stepped by {step}")
            self.add_step(step)
        elif server in self.fresh:
            given = self.copied.get(sender)
            if given is None or not near(self.held[server], given):
                raise BrokenLawError(
                    f"{sender} takes up {self.held[server]}, and was given {given}"
                )
            self.fresh.discard(server)
            self.count_again()
        else:
            raise BrokenLawError(f"{sender} adds {change} to its replica without a reason")

    def check_replica(self, server: int) -> None:
        """A worker that has returned takes a step only after it has taken up a replica."""
        if server in self.fresh:
            raise BrokenLawError(f"worker-{server} trains what nobody else had")

    def settled(self, server: int, x: np.ndarray) -> None:
        if server not in self.held:
            return
        if not near(x, self.held[server]):
            raise BrokenLawError(f"server-{server} holds {x}, and {self.held[server]} is right")
        if self._settled.get(server) is self.held[server]:
            return
        self._settled[server] = self.held[server]
        together = self._together()
        if not near(together, self._sum):
            raise BrokenLawError(f"all replicas are {together} together, and {self._sum} is right")

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        if payload is not None and not near(payload, self.held[server]):
            raise BrokenLawError(f"server-{server} sends {payload}, not {self.held[server]}")

    def ended(self, world: World) -> None:
        if self.on_the_way:
            raise BrokenLawError(f"{self.on_the_way} never arrived")


class Meetings(Mass):
    """x_i, x_j ← (x_i + x_j) / 2: j's half when i calls, i's with the step that it takes then.

    The step's gradient is that of where i was when it called.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._met: dict[tuple[int, str, int], np.ndarray] = {}
        """By call, what the caller met."""
        self._with: dict[str, int] = {}
        self._perhaps: dict[str, np.ndarray] = {}
        """What was on its way when one of the two died."""
        self._beside: dict[str, np.ndarray] = {}
        """By life, the replica that it met last, until it steps from the mean of the two."""

    def forget(self, sender: str) -> None:
        self.on_the_way.pop(sender, None)
        server = rank_of(sender)
        for one in [one for one, other in self._with.items() if other == server]:
            if one in self.on_the_way:
                self._perhaps[one] = self.on_the_way.pop(one)

    def began_anew(self, server: int, x: np.ndarray) -> None:
        super().began_anew(server, x)
        self._met = {key: what for key, what in self._met.items() if key[0] != server}

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        super().took(life, server, message, payload, beside=beside)
        if payload is not None and beside and life.sender not in self._looking:
            self._beside[life.sender] = payload

    def stepped(self, life: Life, x: np.ndarray) -> None:
        met = self._beside.pop(life.sender, None)
        if met is not None:
            mean = (self.x[life.sender] + met) / 2
            # An answer counts for nothing if its sender was known to be dead before it was read.
            if not self.dead or near(x, mean + self._next[life.sender]):
                self.x[life.sender] = mean
        super().stepped(life, x)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push):
            case = self.case
            known = [
                neighbours(case.protocol.graph, life.rank, case.workers, number)
                for number in range(case.workers + 1)
            ]
            if not any(server in some for some in known) or not near(payload, self.x[life.sender]):
                raise BrokenLawError(f"{life.sender} gives {payload} to server-{server}")

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self.called(server, call)
        if isinstance(call.message, Push):
            met = self._met[server, call.sender, call.number] = self.held[server]
            self.held[server] = (met + payload) / 2
            self.on_the_way[call.sender] = (met - payload) / 2
            self._with[call.sender] = server
        elif isinstance(call.message, Change):
            due = self.on_the_way.pop(call.sender, None)
            perhaps = self._perhaps.pop(call.sender, None)
            step = self.step.get(call.sender, np.zeros_like(payload))
            if due is None and perhaps is not None and near(payload, step + perhaps):
                # One of the two died, and what it gave had arrived.
                due = perhaps
            if due is None:
                self.changed(server, call.sender, payload)
                return
            self.step.pop(call.sender, None)
            self.held[server] = self.held[server] + payload
            if due is perhaps:
                self.count_again()
            else:
                self.add_step(step)
            if not near(payload, step + due):
                raise BrokenLawError(f"{call.sender} moves by {payload}, not by {step} + {due}")

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        met = self._met.get((server, *call))
        if met is None:
            super().replied(server, call, message, payload)
        elif payload is None or not near(payload, met):
            raise BrokenLawError(f"{call} met {met} at server-{server}, and is told {payload}")


class Mixed(Mass):
    """x_i ← x_i + Σ_j (x_j − x_i) / (d + 1) − η·∇f(x_i), over those of d neighbours that are there.

    All x are those from before the step. Of two neighbours either both mix with the other in a
    round or neither does, also if one of them has just returned.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._gifts: dict[tuple[str, int], np.ndarray] = {}
        self._came: dict[tuple[int, int], list[str]] = {}
        self._mixing: dict[int, tuple[Call, np.ndarray]] = {}
        self._either: dict[int, list[np.ndarray]] = {}
        """Where a server may be that somebody was to be in a round with who died."""

    def forget(self, sender: str) -> None:
        for key in [key for key in self.on_the_way if sender in key[0]]:
            del self.on_the_way[key]

    def began_anew(self, server: int, x: np.ndarray) -> None:
        super().began_anew(server, x)
        self._came = {key: who for key, who in self._came.items() if key[0] != server}
        self._mixing.pop(server, None)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push):
            graph, number = self.case.protocol.graph, message.version
            if server not in neighbours(graph, life.rank, self.case.workers, number):
                raise BrokenLawError(f"{life.sender} gives to server-{server} in round {number}")
            self._gifts[life.sender, number] = payload
            if not near(payload, self.x[life.sender]):
                raise BrokenLawError(f"{life.sender} gives {payload}, not {self.x[life.sender]}")

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self.called(server, call)
        match call.message:
            case Join():
                self.check_replica(server)
            case Push(version=number) if any(isinstance(one, Add) for one in actions):
                self._came.setdefault((server, number), []).append(call.sender)
            case Mix():
                self._mixing[server] = (call, payload)
            case Change():
                self.changed(server, call.sender, payload)
        self._conclude(server, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._conclude(server, actions, worker)

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        if payload is not None:
            for mixed in self._either.pop(server, ()):
                if near(payload, mixed):
                    self.held[server] = mixed
                    self.count_again()
        super().replied(server, call, message, payload)

    def _conclude(self, server: int, actions: Sequence[Action], leaving: str = "") -> None:
        call, step = self._mixing.get(server, (None, None))
        if (
            server not in self.held
            or call is None
            or not any(isinstance(a, Answer) and a.call == call for a in actions)
        ):
            return
        del self._mixing[server]
        number, graph = call.message.round, self.case.protocol.graph
        weights = 1 + len(neighbours(graph, server, self.case.workers, number))
        came = self._came.pop((server, number), [])
        gifts = [self._gifts[sender, number] for sender in came]
        own = self.held[server]
        if not near(step, self.step.pop(call.sender, np.zeros(1)) + np.zeros_like(step)):
            raise BrokenLawError(f"{call.sender} moves by {step}, which is not its step")
        self.add_step(step)
        total = sum(gifts, np.zeros(1))
        if sorted(map(rank_of, came)) == sorted(call.message.neighbours):
            self.held[server] = ((weights - len(came)) * own + total) / weights + step
        elif self.dead or leaving:
            # Somebody died who was to be in it: its weight is its neighbour's own, or nobody's.
            shares = range(1, weights + 1)
            self._either[server] = [
                (share * own + total) / (share + len(came)) + step for share in shares
            ]
        else:
            raise BrokenLawError(f"{call} is mixed with {came}")
        for sender, gift in zip(came, gifts, strict=True):
            pair = (frozenset((call.sender, sender)), number)
            if self.on_the_way.pop(pair, None) is None:
                self.on_the_way[pair] = (own - gift) / weights
        for sender in self.dead.intersection(came):
            self.forget(sender)
            self.count_again()
