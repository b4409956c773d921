# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Workers that have whole replicas of their own, each answering for it: ensembles, and gossip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.sampling.permutation import member_seed
from manyhands.testing import BrokenLawError, Law, near

if TYPE_CHECKING:
    import numpy as np

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Call
    from manyhands.testing import Case, Life


class Replicas(Law):
    """x ← x − λ·∇f(x): a worker steps from where it was brought, and nowhere else."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.x: dict[str, np.ndarray] = {}
        """By life, where the worker should be."""
        self.step: dict[str, np.ndarray] = {}
        """The step that it took last."""
        self.fresh: set[int] = set()
        """Servers of workers that have returned and have not taken up a replica."""
        self.copied: dict[str, np.ndarray] = {}
        """By life, the replica of another worker that it was given last."""
        self._looking: set[str] = set()
        self._velocity: dict[str, np.ndarray] = {}
        self._next: dict[str, np.ndarray] = {}

    def called(self, server: int, call: Call) -> None:
        """Nobody calls a worker that has returned before it has taken up a replica."""
        if server in self.fresh and call.worker != f"worker-{server}":
            raise BrokenLawError(f"{call} reaches server-{server}, which has no replica yet")

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
        if payload is not None and not beside and life.sender not in self._looking:
            self.x[life.sender] = payload
            if server != life.rank:
                self.copied[life.sender] = payload

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        here = self.x[life.sender]
        if not near(x, here):
            raise BrokenLawError(f"{life.sender} computed at {x}, and should be at {here}")
        gradient, before = self.case.gradient(here, lease), self._velocity.get(life.sender)
        now = gradient if before is None else self.case.momentum * before + gradient
        self._velocity[life.sender] = now
        rate = self.case.rate * lease.total / self.case.job.global_batch
        self._next[life.sender] = -rate * now

    def stepped(self, life: Life, x: np.ndarray) -> None:
        step = self.step[life.sender] = self._next.pop(life.sender)
        self.x[life.sender] = self.x[life.sender] + step
        if not near(x, self.x[life.sender]):
            raise BrokenLawError(f"{life.sender} is at {x}, not at {self.x[life.sender]}")


class Apart(Replicas):
    """Replicas begin in places of their own, and never exchange anything."""

    def started(self, life: Life) -> None:
        self.x[life.sender] = self.case.first(member_seed(self.case.job.seed, life.rank))

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if server != life.rank:
            raise BrokenLawError(f"{life.sender} says {message} to server-{server}")
        if payload is not None and not near(payload, self.x[life.sender]):
            raise BrokenLawError(f"{life.sender} lays {payload} open, not {self.x[life.sender]}")

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None and not near(payload, self.x[life.sender]):
            raise BrokenLawError(f"{life.sender} is given {payload}, not {self.x[life.sender]}")
