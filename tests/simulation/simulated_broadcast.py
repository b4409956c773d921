# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Broadcast: all replicas have the same updates, each once, but for what was not sent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from simulated_gossip import rank_of
from simulated_peers import Replicas

from manyhands.endpoint import Change, Push
from manyhands.testing import BrokenLawError, near

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing import Case, Life
    from manyhands.virtual import World


class Broadcasts(Replicas):
    """x_i = x_0 + Σ its own updates + Σ what it decoded of others, and every update counts once.

    All receivers decode the same of an update. With `NothingLost`, it is what the sender gave less
    what its residual grew by; so what was sent and the residual are together the sum of updates.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._held = {rank: case.first() for rank in range(case.workers)}
        """By rank, the replica that should be there."""
        self._sent: dict[tuple[str, int], np.ndarray] = {}
        """By sender and number of an update, what receivers decode."""
        self._given: dict[str, tuple[int, np.ndarray]] = {}
        """By sender, the number of its last update, and the update."""
        self._applied: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        """By server, the updates of others that it has added."""

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        super().computed(life, lease, x)
        # Steps are added, so each has the weight of its own samples.
        self._next[life.sender] = self._next[life.sender] * (lease.samples / lease.total)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if not isinstance(message, Push) or server == life.rank:
            return
        if not near(payload, self.step[life.sender]):
            raise BrokenLawError(f"{life.sender} sends {payload}, not {self.step[life.sender]}")
        self._given[life.sender] = (message.number, payload)
        if self.case.protocol.codec is None:
            self._sent[life.sender, message.number] = payload

    def encoded(self, life: Life, server: int, owed: np.ndarray | None, *, empty: bool) -> None:
        number = self._given[life.sender][0]
        if (life.sender, number) in self._sent:
            raise BrokenLawError(f"{life.sender} encodes update {number} twice")
        if owed is not None:
            self._sent[life.sender, number] = owed

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
            case Push() if rank_of(call.sender) == server:
                self._take_up(server, call.sender, payload)
            case Push(number=number):
                self._add(server, call.sender, number, payload)
            case Change():
                step = self.step.pop(call.sender)
                if server in self.fresh:
                    raise BrokenLawError(f"{call.sender} trains what nobody else had")
                if not near(payload, step):
                    raise BrokenLawError(f"{call.sender} adds {payload}, and stepped by {step}")
                self._held[server] = self._held[server] + step

    def _take_up(self, server: int, sender: str, payload: np.ndarray) -> None:
        """A worker that has returned begins where another one is."""
        given = self.copied.get(sender)
        if server not in self.fresh or given is None or not near(payload, given):
            raise BrokenLawError(f"{sender} replaces its replica without a reason")
        self.fresh.discard(server)
        self._held[server] = payload

    def _add(self, server: int, sender: str, number: int, payload: np.ndarray) -> None:
        sent = self._sent.setdefault((sender, number), payload)
        if not near(payload, sent):
            raise BrokenLawError(f"server-{server} decodes {payload}, and was sent {sent}")
        if (sender, number) in self._applied[server]:
            raise BrokenLawError(f"server-{server} adds update {number} of {sender} again")
        self._applied[server].add((sender, number))
        self._held[server] = self._held[server] + payload

    def settled(self, server: int, x: np.ndarray) -> None:
        if server in self._held and not near(x, self._held[server]):
            raise BrokenLawError(f"server-{server} holds {x}, and {self._held[server]} is right")

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        if payload is not None and not near(payload, self._held[server]):
            raise BrokenLawError(f"server-{server} sends {payload}, not {self._held[server]}")

    def fenced(self, sender: str) -> None:
        self._held.pop(rank_of(sender), None)
        self.fresh.discard(rank_of(sender))

    def began_anew(self, server: int, x: np.ndarray) -> None:
        self._held[server] = self.case.first()
        self.fresh.add(server)
        self._applied[server].clear()

    def ended(self, world: World) -> None:
        if self.case.faults.faults:
            return
        for rank in range(self.case.workers):
            others = {key for key in self._sent if rank_of(key[0]) != rank}
            if self._applied[rank] != others:
                missing = others ^ self._applied[rank]
                raise BrokenLawError(f"worker-{rank} has not added {sorted(missing)}")
