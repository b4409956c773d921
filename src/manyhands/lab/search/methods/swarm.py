"""Particle swarm: positions that move towards the best of their own past and of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from manyhands.free import Sequence as FreeSequence
from manyhands.lab.search.methods.method import SearchPlan, StatelessMethod
from manyhands.lab.search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.search.trial import TrialResult


@dataclass(frozen=True, repr=False)
class Swarm(StatelessMethod):
    """Particle swarm optimization: each trial is a step of a particle.

    A position has a coordinate from 0 to 1 for each parameter, on the parameter's scale; whole
    numbers and choices are rounded. The particle's next velocity is `inertia` times its velocity,
    and a random part of the ways to the best position of its own and to the best of all. At a
    bound it stops. The default coefficients are those of Clerc and Kennedy.

    Papers: Kennedy, Eberhart, Particle Swarm Optimization, ICNN 1995. Clerc, Kennedy, The Particle
    Swarm, IEEE Transactions on Evolutionary Computation 6, 2002.
    """

    name: ClassVar[str] = "swarm"

    size: int = 8
    """Particles."""
    inertia: float = 0.7298
    """The part of a particle's velocity that it keeps."""
    own: float = 1.49618
    """The weight of the way to the best position of its own."""
    shared: float = 1.49618
    """The weight of the way to the best position of all."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"size must be at least 2 particles, not {self.size}")
        if not 0 <= self.inertia < 1 or self.own < 0 or self.shared < 0:
            raise ValueError(
                f"inertia must be from 0 to less than 1, own and shared 0 or more, not "
                f"{self.inertia}, {self.own} and {self.shared}"
            )

    def check(self, plan: SearchPlan) -> None:
        """A sequence has no position."""
        for name, one in plan.parameters.items():
            if isinstance(one, FreeSequence):
                raise ValueError(  # noqa: TRY004 - it is refused
                    f"swarm moves along scales, and the sequence {name} has none: use evolution()"
                )

    def needed(self, number: int, plan: SearchPlan) -> int:  # noqa: ARG002 - the contract
        """All results of the step before."""
        return number // self.size * self.size

    def propose(self, number: int, results: Sequence[TrialResult], plan: SearchPlan) -> Trial:
        """The trial of this number."""
        generator = plan.generator(number)
        count = len(plan.parameters)
        mine = [one for one in results if one.trial.number % self.size == number % self.size]
        known = [one for one in results if one.is_finished]
        if not mine or not known:
            position, velocity = generator.random(count), generator.uniform(-0.5, 0.5, count)
            reason = "drawn"
        else:
            last = mine[-1].trial.memory
            here, before = np.array(last["position"]), np.array(last["velocity"])
            finished = [one for one in mine if one.is_finished]
            own = plan.order(finished)[-1].trial if finished else mine[-1].trial
            best = plan.order(known)[-1].trial
            pulls = generator.random((2, count))
            velocity = (
                self.inertia * before
                + self.own * pulls[0] * (np.array(own.memory["position"]) - here)
                + self.shared * pulls[1] * (np.array(best.memory["position"]) - here)
            )
            position = here + velocity
            outside = (position < 0) | (position > 1)
            position, velocity = position.clip(0, 1), np.where(outside, 0.0, velocity)
            reason = f"particle {number % self.size}, towards {own.number} and {best.number}"
        values = {
            name: one.at(float(at))
            for (name, one), at in zip(plan.parameters.items(), position, strict=True)
        }
        return Trial(
            number=number,
            values=values,
            until=plan.until(1, 1),
            parent=mine[-1].trial.number if mine else None,
            reason=reason,
            memory={"position": position.tolist(), "velocity": velocity.tolist()},
        )
