# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Weights of means sum to one, and samples count for their share of a step.

`Weighting` needs no knowledge of the protocol: it looks at the probes that the parameters of a case
end with (`manyhands.testing.cases.problem`). Arithmetic of protocols is elementwise, so a probe is
a problem of its own that is trained in the same run, under the same faults.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from manyhands.protocols import Add, Descend, Move, Scale, ShardOperation, Shift, Step
from manyhands.testing.cases.problem import (
    AT_REST,
    PLAIN,
    SHIFT,
    SHIFTED,
    SLOPE,
    STEEPNESS,
)
from manyhands.testing.laws.law import BrokenLawError, Law, parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.testing.laws.law import Life

_TOLERANCE = 1e-9


class FixedPoint(Law):
    """Parameters that start at the optimum of all samples stay there.

    All gradients are zero, and a mean of equal replicas is that replica, if its weights sum to one.
    It is not checked under codecs that lose something.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        if not case.probes:
            raise ValueError("the case has no probes: make it with with_probes(case)")
        self._start = float(parts(case.first(), case.shards)[0][AT_REST])
        self._mass: dict[int, float] = {}
        self.applies = case.is_exact
        """Under a codec that loses something, two equal vectors may arrive as different ones."""

    def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
        for piece in parts(x, self.case.shards):
            self.compare(f"{life.sender} computes with", piece, 1.0)

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self.apply(server, after, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self.apply(server, after, actions)

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        self._mass.pop(server, None)

    def settled(self, server: int, x: NDArray[np.float64]) -> None:
        self.compare(f"server-{server} holds", x, self._mass.get(server, 1.0))

    def apply(self, server: int, after: ServerState, actions: Sequence[Action]) -> None:
        """A server carries out actions, after a decision."""
        self._mass[server] = self.case.protocol.mass(after)

    def compare(self, who: str, x: NDArray[np.float64], mass: float) -> None:
        """Compare the probes of a shard, which holds parameters times a mass."""
        at_rest = float(x[AT_REST]) / mass
        if self.applies and not _near(at_rest, self._start, self._start):
            raise BrokenLawError(
                f"all gradients of a parameter are zero, and {who} {at_rest:.12g} in place of "
                f"{self._start:.12g}: the weights of a mean do not sum to one"
            )


class Weighting(FixedPoint):
    """The weights of every mean sum to one, and a mean of equal gradients is that gradient.

    - Parameters that start at the optimum of all samples stay there: all gradients are zero, and a
      mean of equal replicas is that replica.
    - Start and targets that are moved by a constant move all parameters by that constant.
    - Where all gradients are equal, an optimizer step of a server is a step with this gradient.

    A weight that is the same for all updates of a step only changes the learning rate, and breaks
    none of them: see `WholeSteps` and `MeanOfChanges`. A protocol that rounds what it sends, or
    leaves a part of it out, may obey the first only: `without=[Weighting], laws=[FixedPoint]`.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._slope: dict[int, float | None] = {}
        """By server, the value of SLOPE that is expected; None if it is not known."""
        self._velocity: dict[int, float] = {}

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        super().began_anew(server, x)
        self._slope.pop(server, None)
        self._velocity.pop(server, None)

    def apply(self, server: int, after: ServerState, actions: Sequence[Action]) -> None:
        super().apply(server, after, actions)
        for action in actions:
            match action:
                case Step(compensation=0.0, weight=weight):
                    velocity = self.case.momentum * self._velocity.get(server, 0.0) + STEEPNESS
                    self._velocity[server] = velocity
                    at = self._slope.get(server, 0.0)
                    if at is not None:
                        self._slope[server] = at - self.case.rate * weight * velocity
                case Step() | Move() | Descend() | Shift() | Scale() | ShardOperation():
                    self._slope[server] = None

    def settled(self, server: int, x: NDArray[np.float64]) -> None:
        super().settled(server, x)
        expected = self._slope.get(server)
        if self.applies and expected is not None and not _near(x[SLOPE], expected, expected):
            raise BrokenLawError(
                f"all gradients are equal, and server-{server} steps to {x[SLOPE]:.12g}, where a "
                f"step with their mean leads to {expected:.12g}: the weights of the mean do not "
                "sum to one"
            )
        self._slope[server] = float(x[SLOPE])

    def compare(self, who: str, x: NDArray[np.float64], mass: float) -> None:
        super().compare(who, x, mass)
        plain, shifted = float(x[PLAIN]) / mass, float(x[SHIFTED]) / mass
        if self.applies and not _near(shifted - plain, SHIFT, plain):
            raise BrokenLawError(
                f"two parameters train the same problem {SHIFT:g} apart, and {who} "
                f"{plain:.12g} and {shifted:.12g}: the weights of a mean do not sum to one"
            )


def _near(found: float, expected: float, size: float) -> bool:
    return abs(found - expected) <= _TOLERANCE * (1 + abs(size))


class WholeSteps(Law):
    """The weight of a server's step is that of its samples: a global batch counts for one step.

    It does not hold if stale updates are damped, or if a round counts for a whole step however many
    workers took part in it.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._gathered: defaultdict[int, float] = defaultdict(float)

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._count(server, after, actions)

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._count(server, after, actions)

    def _count(self, server: int, after: ServerState, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Add | Step) and action.call is not None:
                message = action.call.message
                samples, dealt = getattr(message, "samples", 0), getattr(message, "dealt", 0)
                self._gathered[server] += after.terms.weigh(samples, dealt)
            if isinstance(action, Step):
                due = self._gathered.pop(server, 0.0)
                if not _near(action.weight, due, due):
                    raise BrokenLawError(
                        f"server-{server} takes a step of weight {action.weight:.12g} with updates "
                        f"of {due:.12g} global batches"
                    )
