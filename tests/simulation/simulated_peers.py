"""Workers that have whole replicas of their own: an ensemble, gossip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_world import BrokenLawError, Law, near

from manyhands.sampling import member_seed

if TYPE_CHECKING:
    import numpy as np
    from simulated_case import Case
    from simulated_world import Life

    from manyhands.endpoint import Said
    from manyhands.leases import Lease


class Apart(Law):
    """x_n ← x_n − λ·∇f(x_n), from a beginning of its own: replicas never exchange anything."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x: dict[str, np.ndarray] = {}
        self._velocity: dict[str, np.ndarray] = {}

    def started(self, life: Life) -> None:
        self._x[life.sender] = self.case.first(member_seed(self.case.job.seed, life.rank))

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if server != life.rank:
            raise BrokenLawError(f"{life.sender} says {message} to server-{server}")
        if payload is not None and not near(payload, self._x[life.sender]):
            raise BrokenLawError(f"{life.sender} lays {payload} open: {self._x[life.sender]}")

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        here = self._x[life.sender]
        if not near(x, here):
            raise BrokenLawError(f"{life.sender} computed at {x}, and should be at {here}")
        gradient, before = self.case.gradient(here, lease), self._velocity.get(life.sender)
        now = gradient if before is None else self.case.momentum * before + gradient
        self._velocity[life.sender] = now
        rate = self.case.rate * lease.total / self.case.job.global_batch
        self._x[life.sender] = here - rate * now

    def stepped(self, life: Life, x: np.ndarray) -> None:
        if not near(x, self._x[life.sender]):
            raise BrokenLawError(f"{life.sender} is at {x}, and should be at {self._x}")
