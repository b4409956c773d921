# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Parameters that lie once, where everybody uses them: central storage, Hogwild."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simulated_servers import SynchronousModel

from manyhands.endpoint import Push
from manyhands.testing.laws.law import BrokenLawError, Law, near, values

if TYPE_CHECKING:
    import numpy as np

    from manyhands.endpoint import Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Call
    from manyhands.testing import Case, ExpectedAnswer, Life
    from manyhands.virtual import World


class CentralModel(SynchronousModel):
    """One step with the mean gradient, as `synchronous`; nobody is sent what it can see."""

    def answer(
        self, call: Call, *, applied: bool = True, parameters: bool = True
    ) -> ExpectedAnswer:
        return super().answer(call, applied=applied, parameters=False)


class Central(Law):
    """Everybody computes where the server's parameters are, and nobody steps meanwhile."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x = case.first()
        self._found: dict[str, np.ndarray] = {}

    def settled(self, server: int, x: np.ndarray) -> None:
        self._x = x

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        if not near(x, self._x):
            raise BrokenLawError(f"{life.sender} computed at {x}, and the server is at {self._x}")
        self._found[life.sender] = self.case.gradient(x, lease)

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if isinstance(message, Push) and message.samples:
            expected = self._found[life.sender]
            if payload is None or not near(payload, expected):
                raise BrokenLawError(f"{life.sender} pushes {payload}, not {expected}")

    def ended(self, world: World) -> None:
        (server,) = world._servers.values()
        if server._log.recorder._staleness.keys() - {0}:
            raise BrokenLawError(f"staleness {server._log.recorder._staleness} in lockstep")


class Common(Law):
    """W ← W − λ·(b/B)·v_n: the parameters are where they began and the sum of all writes.

    A gradient is of what was there when its worker began to compute; every write is counted, and
    is as stale as others have written since.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x = case.first()
        self._seen: dict[str, tuple[np.ndarray, int]] = {}
        self._velocity: dict[str, np.ndarray] = {}
        self._step: dict[str, tuple[np.ndarray, int]] = {}
        self._written: dict[str, int] = {}
        self._writes: Counter[int] = Counter()
        self._stale: Counter[int] = Counter()

    def looked(self, life: Life) -> None:
        self._seen[life.sender] = (self._x, self._by_others(life))

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        seen, _ = self._seen[life.sender]
        if not near(x, seen):
            raise BrokenLawError(f"{life.sender} computed at {x}, and began at {seen}")
        gradient, before = self.case.gradient(seen, lease), self._velocity.get(life.sender)
        now = gradient if before is None else self.case.momentum * before + gradient
        self._velocity[life.sender] = now
        rate = self.case.rate * lease.samples / self.case.job.global_batch
        self._step[life.sender] = (rate * now, lease.number)

    def stepped(self, life: Life, x: np.ndarray) -> None:
        step, self._written[life.sender] = self._step.pop(life.sender)
        self._x = self._x - step
        if not near(x, self._x):
            raise BrokenLawError(f"{life.sender} wrote, and {x} is there instead of {self._x}")
        self._stale[self._by_others(life) - self._seen[life.sender][1]] += 1
        self._writes[life.rank] += 1

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        if self._written.pop(life.sender, None) != number:
            raise BrokenLawError(f"{life.sender} commits lease {number} and did not write it")

    def ended(self, world: World) -> None:
        (shared,) = world._common
        if not near(values(shared), self._x):
            raise BrokenLawError(f"{values(shared)} is there, and the writes lead to {self._x}")
        counted = dict(enumerate(world._writes._counts.tolist()))
        if counted != {rank: self._writes[rank] for rank in counted}:
            raise BrokenLawError(f"{self._writes} were written, and {counted} are counted")
        told = sum((log.recorder._staleness for log in world._logs.lives), Counter[int]())
        if told != self._stale:
            raise BrokenLawError(f"staleness was {self._stale}, and the traces say {told}")

    def _by_others(self, life: Life) -> int:
        return self._writes.total() - self._writes[life.rank]
