# ruff: noqa: ARG002 - a law hears of more than it looks at
"""A hierarchy that sums gradients: sums within islands, one step between them, each sum once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from simulated_servers import SynchronousModel

from manyhands.endpoint import Pull, Push, Rest
from manyhands.protocols import Add, Answer, Call
from manyhands.testing import BrokenLawError, Law, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, ServerState
    from manyhands.testing import Case, ExpectedAnswer, Life


class Sums(Law):
    """An island gives Σ b_n·ΔW_n at the parameters of now, and has what came of it everywhere."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._count = case.servers - 1
        self._at: dict[str, np.ndarray] = {}
        self._found: dict[str, np.ndarray] = {}
        self._looking: set[str] = set()
        self._version = dict.fromkeys(range(case.servers), 0)
        self._was = {0: case.first()}
        """By version, the parameters between the islands."""
        self._given: dict[tuple[int, int], list[tuple[str, int, np.ndarray]]] = {}
        """By island and number, of what a sum is made."""
        self._in: dict[str, tuple[int, int]] = {}
        """By life, the last sum that it gave to."""
        self._used: set[tuple[int, int]] = set()

    def looks_up(self, life: Life) -> None:
        self._looking.add(life.sender)

    def looked_up(self, life: Life) -> None:
        self._looking.discard(life.sender)

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None and life.sender not in self._looking:
            self._at[life.sender] = payload

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        if not near(x, self._at[life.sender]):
            raise BrokenLawError(f"{life.sender} computed at {x}, not {self._at[life.sender]}")
        self._found[life.sender] = self.case.gradient(x, lease)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if not isinstance(message, Push) or not message.samples:
            return
        if server < self._count:
            expected = self._found[life.sender]
        else:
            given = self._given[self._in[life.sender]]
            expected = sum((samples * what for _, samples, what in given), np.zeros(1))
            if message.samples != sum(samples for _, samples, _ in given):
                raise BrokenLawError(f"{life.sender} brings {message}, made of {given}")
        if not near(payload, expected):
            raise BrokenLawError(f"{life.sender} gives {payload}, and not {expected}")

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._version[server] = after.version
        message = call.message
        if not isinstance(message, Push):
            return
        counts = any(isinstance(action, Add) for action in actions)
        if counts and message.version != before.version:
            raise BrokenLawError(f"{call} counts at server-{server} in version {before.version}")
        if server == self._count:
            brought = (int(before.island_of[call.worker][7:]), message.number)
            if counts and brought in self._used:
                raise BrokenLawError(f"{call} brings a sum that was used already")
            if counts:
                self._used.add(brought)
        elif message.version == before.version:
            given = self._given.setdefault((server, before.number), [])
            self._in[call.sender] = (server, before.number)
            if message.samples:
                given.append((call.sender, message.samples, payload))

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._version[server] = after.version

    def settled(self, server: int, x: np.ndarray) -> None:
        if server == self._count:
            self._was[self._version[server]] = x
        elif not near(x, self._was[self._version[server]]):
            raise BrokenLawError(f"island {server} is at {x} in version {self._version[server]}")

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        summed = self._in[life.sender]
        if accepted and self._given[summed] and summed not in self._used:
            raise BrokenLawError(f"{life.sender} commits {number}, and {summed} was not used")


class United(Law):
    """The server between the islands waits for all, and steps once with the mean over samples."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._count, protocol = case.servers - 1, case.protocol
        self._model = SynchronousModel(case, case.first())
        members = [protocol.members(island, case.workers) for island in range(self._count)]
        self._at_work = {
            number: {f"worker-{rank}" for rank in some} for number, some in enumerate(members)
        }
        """By island, those of whom it is not known that they rest or are gone."""
        self._home = {name: number for number, some in self._at_work.items() for name in some}
        self._model.present = {f"island-{number}" for number in self._at_work}
        self._brought: dict[int, tuple[int, Call | None]] = {}
        """By island, its last sum's number and who brought it."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if server != self._count:
            return
        worker, island = call.worker, self._home[call.worker]
        spoken = Call(f"island-{island}.{call.sender}", call.number, call.message)
        if isinstance(call.message, Pull) and call.message.looks:
            due = [self._model.answer(spoken)]
        elif isinstance(call.message, Rest):
            self._at_work[island].discard(worker)
            rests = not self._at_work[island]
            due = self._model.hear(spoken, payload) if rests else [self._model.answer(spoken)]
        else:
            self._at_work[island].add(worker)
            due = self._hear(island, spoken, payload)
        self._compare(due, after, actions)

    def _hear(self, island: int, spoken: Call, payload: np.ndarray | None) -> list[ExpectedAnswer]:
        message = spoken.message
        number, earlier = self._brought.get(island, (-1, None))
        if not isinstance(message, Push):
            if message.number > max(number, 0):
                # Its sums before this one are void: what it gave does not stand for the next.
                if any(call is earlier for call, _, _ in self._model.given):
                    self._model.gone.add(earlier.sender)
                self._brought[island] = (message.number - 1, None)
            return self._model.hear(spoken, payload)
        if message.number > number:
            self._brought[island] = (message.number, spoken)
            mean = None if payload is None else payload / message.samples
            return self._model.hear(spoken, mean)
        if message.number < number:
            return [self._model.answer(spoken)]
        self._brought[island] = (number, spoken)
        given = self._model.given
        for index, (call, samples, what) in enumerate(given):
            if call is earlier and call.sender not in self._model.gone:
                given[index] = (spoken, samples, what)
                return [self._model.answer(earlier)]
        return [self._model.answer(spoken)]

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if server != self._count:
            return
        island = self._home[worker]
        self._at_work[island].discard(worker)
        due = [] if self._at_work[island] else self._model.leave(f"island-{island}")
        self._compare(due, after, actions)

    def _compare(
        self, due: list[ExpectedAnswer], after: ServerState, actions: Sequence[Action]
    ) -> None:
        told = {(a.call.sender, a.call.number) for a in actions if isinstance(a, Answer)}
        expected = {(one.sender.partition(".")[2], one.number) for one in due}
        if told != expected or after.version != self._model.version:
            raise BrokenLawError(f"between the islands {told} are answered, {expected} are due")

    def settled(self, server: int, x: np.ndarray) -> None:
        if server == self._count and not near(x, self._model.x):
            raise BrokenLawError(f"between the islands is {x}, and {self._model.x} is right")
