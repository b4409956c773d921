# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Push-sum: what is given is as much as what is no longer there, of x and of its mass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from simulated_gossip import Mass, rank_of

from manyhands.endpoint import Change, Pull, Push
from manyhands.testing import BrokenLawError, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Parameters, Said
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing import Case, Life
    from manyhands.virtual import World


LEAST = 1 / 64


class Halves(Mass):
    """x_i ← x_i − w_i·η·∇f(x_i / w_i); then half of (x_i, w_i) is sent on, and added elsewhere.

    Unless too little would be left: no mass is ever below a limit, or 1 / w_i would overflow.

    What is held and what is on its way are x and w in one: the mass is the last number of it.

    A worker that returns has no mass until it is given half of another's: so what all have together
    stays the same.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._masses: dict[str, float] = {}
        """By life, the mass of what it computes on."""
        self._to: dict[str, str] = {}
        """By life, who was given its last half."""
        self._shares: dict[tuple[int, str, int], np.ndarray] = {}
        """By call of a worker that returns, what it was given."""
        self._poor: set[str] = set()
        """Lives that somebody could not give anything."""

    def begin(self) -> np.ndarray:
        return np.append(self.case.first(), 1.0)

    def settled(self, server: int, x: np.ndarray) -> None:
        super().settled(server, np.append(x, self._mass_of(server)))

    def began_anew(self, server: int, x: np.ndarray) -> None:
        super().began_anew(server, np.append(x, 1.0))
        self._shares = {key: what for key, what in self._shares.items() if key[0] != server}

    def _mass_of(self, server: int) -> float:
        return self.held[server][-1] if server in self.held else 0.0

    def forget(self, sender: str) -> None:
        self.on_the_way.pop(sender, None)

    def ended(self, world: World) -> None:
        # A run does not wait for a worker that returns: what it was given is lost with it.
        for sender in [one for one in self.on_the_way if rank_of(one) in self.fresh]:
            del self.on_the_way[sender]
        super().ended(world)

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
        if life.sender in self.x and self.x[life.sender] is payload:
            self.x[life.sender] = payload / message.mass
            self._masses[life.sender] = message.mass

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push) and message.mass and server != life.rank:
            steps = [1] if self.case.protocol.graph == "ring" else [1, 2, 4]
            if server not in {(life.rank + step) % self.case.workers for step in steps}:
                raise BrokenLawError(f"{life.sender} gives to server-{server}")
            self._to[life.sender] = f"worker-{server}"

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
            case Pull(share=share) if share:
                self._give(server, call, share)
            case Change(share=share):
                self.check_replica(server)
                if share * self._mass_of(server) < LEAST:
                    share = 0.0
                self._step(server, call, payload)
                self.on_the_way[call.sender] = share * self.held[server]
                self.held[server] = self.held[server] - self.on_the_way[call.sender]
                if not share:
                    del self.on_the_way[call.sender]
            case Push(mass=mass) if server in self.fresh:
                self._take_up(server, call.sender, np.append(payload, mass))
            case Push(mass=mass):
                self._add(server, call.sender, np.append(payload, mass))
        if not near(np.array([after.mass]), self.held[server][-1:]):
            raise BrokenLawError(f"server-{server} weighs {after.mass}: {self.held[server]}")

        if after.mass < LEAST:
            raise BrokenLawError(f"server-{server} is left with a mass of {after.mass}")

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if server in self.held:
            self.held[server] = self.held[server] / self.held[server][-1]
            self.count_again()

    def _step(self, server: int, call: Call, change: np.ndarray) -> None:
        step = self._masses[call.sender] * self.step.pop(call.sender)
        if not near(change, step):
            raise BrokenLawError(f"{call.sender} adds {change}, and stepped by {step}")
        self.held[server] = self.held[server] + np.append(step, 0.0)
        self.add_step(np.append(step, 0.0))

    def _add(self, server: int, sender: str, what: np.ndarray) -> None:
        self.held[server] = self.held[server] + what
        due = self.on_the_way.pop(sender, None)
        if due is not None:
            if not near(what, due):
                raise BrokenLawError(f"{sender} gives {what}, and has given up {due}")
        elif server == int(sender.partition(".")[0][7:]) and self._has_died(self._to[sender]):
            # What had arrived died there, and is taken back.
            self.count_again()
        else:
            raise BrokenLawError(f"{sender} gives {what} without a reason")

    def _give(self, server: int, call: Call, share: float) -> None:
        """Half of what a server holds is on its way to a worker that has returned."""
        if share * self._mass_of(server) < LEAST:
            self._poor.add(call.sender)
            return
        given = self._shares[server, call.sender, call.number] = share * self.held[server]
        self.held[server] = self.held[server] - given
        if call.sender in self.on_the_way:
            # What another one gave died with it, before it arrived.
            self.on_the_way[call.sender] = given
            self.count_again()
        self.on_the_way[call.sender] = given

    def _take_up(self, server: int, sender: str, change: np.ndarray) -> None:
        self.held[server] = self.held[server] + change
        self.fresh.discard(server)
        due = self.on_the_way.pop(sender, None)
        if due is None and sender in self._poor:
            # Nobody could give it anything.
            due = np.append(self.x[sender], 1.0)
            self.count_again()
        if due is None or not near(self.held[server], due):
            raise BrokenLawError(f"{sender} takes up {self.held[server]}, and was given {due}")

    def _has_died(self, worker: str) -> bool:
        return any(one.partition(".")[0] == worker for one in self.dead)

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        given = self._shares.get((server, *call))
        if given is not None:
            told = None if payload is None else np.append(payload, message.mass)
            if told is None or not near(told, given):
                raise BrokenLawError(
                    f"{call} was given {given} by server-{server}, and told {told}"
                )
        elif payload is not None and not near(payload, self.held[server][:-1]):
            raise BrokenLawError(f"server-{server} sends {payload}, not {self.held[server]}")
