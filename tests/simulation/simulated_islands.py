# ruff: noqa: ARG002 - a law hears of more than it looks at
"""A hierarchy: steps within islands, and meetings between them, carried by one worker each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from simulated_servers import AveragingModel, OuterModel

from manyhands.endpoint import Change, Pull, Push, Rest
from manyhands.protocols import Answer, Call, DiLoCo, Step
from manyhands.testing import BrokenLawError, Law, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, ServerState
    from manyhands.testing import Case, ExpectedAnswer, Life


class Islands(Law):
    """W_i ← W_i − λ·mean(ΔW_n) on an island, until one of it brings what all have come to."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._count = case.servers - 1
        self._x = {island: case.first() for island in range(self._count)}
        self._velocity: dict[int, np.ndarray] = {}
        self._pushed: dict[int, list[tuple[int, np.ndarray, int]]] = defaultdict(list)
        self._at: dict[str, np.ndarray] = {}
        self._found: dict[str, np.ndarray] = {}
        self._brought: dict[str, np.ndarray] = {}
        """By life, what it took from the server between the islands."""
        self._looking: set[str] = set()

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
        if payload is None or life.sender in self._looking:
            return
        book = self._brought if server == self._count else self._at
        book[life.sender] = payload

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        if not near(x, self._at[life.sender]):
            raise BrokenLawError(f"{life.sender} computed at {x}, not {self._at[life.sender]}")
        self._found[life.sender] = self.case.gradient(x, lease)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if not isinstance(message, Push) or payload is None:
            return
        expected = (self._found if server < self._count else self._at)[life.sender]
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
        if server == self._count:
            return
        match call.message:
            case Push(samples=samples, total=total) if samples:
                self._pushed[server].append((samples, payload, total))
            case Change(errand=errand):
                # Who only says that the island rests need not bring anything.
                default = self._x[server] if errand == "rest" else np.full_like(payload, np.nan)
                there = self._brought.pop(call.sender, default)
                self._x[server] = self._x[server] + payload
                if not near(self._x[server], there):
                    raise BrokenLawError(f"{call.sender} brings {self._x[server]}, not {there}")
        self._take_step(server, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if server < self._count:
            self._take_step(server, actions)

    def _take_step(self, server: int, actions: Sequence[Action]) -> None:
        if not any(isinstance(action, Step) for action in actions):
            return
        pushed = self._pushed.pop(server)
        samples = sum(count for count, _, _ in pushed)
        mean = sum((count * what for count, what, _ in pushed), np.zeros(1)) / samples
        before = self._velocity.get(server)
        now = mean if before is None else self.case.momentum * before + mean
        self._velocity[server] = now
        weight = max(total for _, _, total in pushed) / self.case.job.global_batch
        self._x[server] = self._x[server] - self.case.rate * weight * now

    def settled(self, server: int, x: np.ndarray) -> None:
        if server < self._count and not near(x, self._x[server]):
            raise BrokenLawError(f"island {server} is at {x}, and should be at {self._x[server]}")


class Between(Law):
    """To the server between the islands each of them is one worker, whoever speaks for it."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._count, protocol = case.servers - 1, case.protocol
        kind = OuterModel if isinstance(protocol.outer, DiLoCo) else AveragingModel
        self._model = kind(replace(case, protocol=protocol.outer), case.first())
        members = [protocol.members(island, case.workers) for island in range(self._count)]
        self._home = {
            f"worker-{rank}": number for number, some in enumerate(members) for rank in some
        }
        self._speakers = {number: f"worker-{some[0]}" for number, some in enumerate(members)}
        self._model.present = {f"island-{number}" for number in self._speakers}
        self._at_work = {
            number: {f"worker-{rank}" for rank in some} for number, some in enumerate(members)
        }
        """By island, those of whom it is not known that they rest or are gone."""

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
            self._speakers[island] = worker
            self._at_work[island].add(worker)
            due = self._model.hear(spoken, payload)
        self._compare(due, after, actions)

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
        if self._speakers[island] == worker or not self._at_work[island]:
            self._compare(self._model.leave(f"island-{island}"), after, actions)
        elif actions:
            raise BrokenLawError(f"between the islands {actions}, because {worker} is gone")

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
