# ruff: noqa: ARG002 - a law hears of more than it looks at
"""What a worker that meets servers computes, gives and takes, in the words of its paper."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from simulated_servers import alpha

from manyhands.endpoint import Push
from manyhands.testing import BrokenLawError, Law, near, parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing import Case, Life


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
        self._found[life.sender] = parts(found, self.case.servers)

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
        self._x[life.sender] = parts(here - rate * now, self.case.servers)
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
        self._x[sender] = dict(enumerate(parts(to, self.case.servers)))
        real = np.concatenate(
            [part.numpy().view(np.float64) for part in life.replication.parameters]
        )
        if not near(real, to):
            raise BrokenLawError(f"{sender} is at {real}, and should be at {to}")

    def _whole(self, parts: dict[int, np.ndarray]) -> np.ndarray:
        return np.concatenate([parts[server] for server in range(self.case.servers)])
