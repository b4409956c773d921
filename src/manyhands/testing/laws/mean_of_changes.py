# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""A server that averages the local steps of workers moves by a mean of their changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from manyhands.endpoint import Push
from manyhands.protocols import USES_PAYLOAD
from manyhands.testing.cases.problem import SLOPE
from manyhands.testing.laws.law import BrokenLawError, Law, parts, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.endpoint import Custom, Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.testing.laws.law import Life

_ROUNDING = 0.01
"""Changes may be sent with few bits."""


class MeanOfChanges(Law):
    """With each version a server moves by a mean of the changes, or to a mean of the replicas.

    It holds if workers take local steps and push where they are or how far they have moved, in
    whatever form, and if the server applies the mean as it is: with an outer learning rate of 1 and
    no momentum. How far a worker has moved is observed on the worker, in the probe whose gradients
    are all equal, so the mean is between the least and the largest change.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        if not case.probes:
            raise ValueError("the case has no probes: make it with with_probes(case)")
        self._started: dict[str, list[float]] = {}
        """By worker, where it began its local steps."""
        self._posted: Counter[tuple[str, int]] = Counter()
        self._pushed: dict[tuple[str, int, int], tuple[float, float]] = {}
        """By call, where the worker was, and how far it had moved."""
        self._gathered: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self._concluded: dict[int, list[tuple[float, float]]] = {}
        self._at: defaultdict[int, float] = defaultdict(float)

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None and not beside:
            self._started.pop(life.sender, None)

    def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
        slopes = [float(piece[SLOPE]) for piece in parts(x, self.case.shards)]
        self._started.setdefault(life.sender, slopes)

    def posted(
        self, life: Life, server: int, message: Said, payload: NDArray[np.float64] | None
    ) -> None:
        self._posted[life.sender, server] += 1
        if isinstance(message, Push) and message.samples:
            here = float(values(life.replication.parameters[server])[SLOPE])
            began = self._started.get(life.sender)
            moved = 0.0 if began is None else here - began[server]
            number = self._posted[life.sender, server]
            self._pushed[life.sender, server, number] = (here, moved)

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._gather(server, before, after, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._gather(server, before, after, actions)

    def _gather(
        self, server: int, before: ServerState, after: ServerState, actions: Sequence[Action]
    ) -> None:
        for action in actions:
            if isinstance(action, USES_PAYLOAD) and action.call is not None:
                key = (action.call.sender, server, action.call.number)
                if key in self._pushed:
                    self._gathered[server].append(self._pushed.pop(key))
        if after.version > before.version:
            self._concluded[server] = self._gathered.pop(server, [])

    def settled(self, server: int, x: NDArray[np.float64]) -> None:
        before, now = self._at[server], float(x[SLOPE])
        self._at[server] = now
        pushed = self._concluded.pop(server, None)
        if not pushed:
            return
        ends = [where for here, moved in pushed for where in (here, before + moved)]
        room = _ROUNDING * max(abs(moved) for _, moved in pushed) + 1e-9
        if not min(ends) - room <= now <= max(ends) + room:
            raise BrokenLawError(
                f"server-{server} moves by {now - before:.6g}, and the workers of this version by "
                f"{', '.join(f'{moved:.6g}' for _, moved in pushed)}: it is no mean of them"
            )
