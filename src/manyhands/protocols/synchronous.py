"""Synchronous SGD on parameter servers: one step with the mean of everybody's gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from manyhands.endpoint import Push
from manyhands.protocols.actions import Action, Add, Call, Step
from manyhands.protocols.parts.push import Pushing
from manyhands.protocols.parts.rounds import Round, Rounds


class Together(Rounds):
    """Servers that wait for all workers, then take one step with the mean of their gradients."""

    clips: ClassVar[Literal["servers"]] = "servers"

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """A gradient counts by its samples."""
        return [Add(call, share, staleness=staleness_of(state, call))] if share else []

    def conclude(self, state: Round) -> list[Action]:
        """One step with the mean."""
        if not state.samples:
            return []
        givers = len(state.waiting) + len(state.gone)
        blend = min(1.0, givers / state.terms.workers)
        weight = self.weigh(state)
        return [Step(None, weight, blend=blend, over=state.shares, dealt=state.dealt)]

    def weigh(self, state: Round) -> float:
        """What the step of a round counts for: its samples, in global batches."""
        return state.weight


def staleness_of(state: Round, call: Call) -> int:
    """Versions between the read that a push was computed from and now."""
    return state.version - call.message.version if isinstance(call.message, Push) else 0


@dataclass(frozen=True, repr=False)
class Synchronous(Together, Pushing):
    """Wait for all workers, then take one step with the mean of their gradients.

    W ← W − λ·mean(ΔW_n), weighted by samples: to the last bit of the mathematics the same as one
    worker with the whole batch, and as `allreduce`, whatever the optimizer.

    Use it where the workers are few and equal. It waits for the slowest in every step, and the
    servers' ports carry 2·N·m/S bytes for m bytes of parameters: `allreduce` moves less per link
    and is the faster one where the network is good.

    Example: `synchronous(servers=2)`

    Paper: Chen et al., Revisiting Distributed Synchronous SGD, 2016.
    """

    name: ClassVar[str] = "synchronous"
    support: ClassVar[Literal["beta"]] = "beta"

    servers: int = 1
    """How many processes hold the parameters, an equal part each."""
