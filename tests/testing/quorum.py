"""A protocol of one's own, as a researcher would write it, and three that have a fault each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Rest
from manyhands.protocols import Action, Answer, Call, LocalSteps, Move, ServerState
from manyhands.protocols.synchronous import staleness_of

if TYPE_CHECKING:
    import random

    from manyhands.protocols.parts.rounds import Round


@dataclass(frozen=True, repr=False)
class Quorum(LocalSteps):
    """Average parameters as soon as `wait_for` workers have taken `every` local steps.

    A replica that comes late counts half as much for every average that it has missed.
    """

    name: ClassVar[str] = "quorum"
    support: ClassVar[Literal["experimental"]] = "experimental"
    servers = 1

    wait_for: int = 2
    """Replicas that make an average."""
    every: int = 2
    """Local steps between two averages."""

    def by_rank(self, workers: int) -> bool:
        """Fast workers may run ahead of a quorum, and then get more samples."""
        return self.wait_for >= workers

    @property
    def needed(self) -> int | None:
        return self.wait_for

    def damping_factor(self, state: Round, call: Call) -> float:
        return 0.5 ** staleness_of(state, call)

    def conclude(self, state: Round) -> list[Action]:
        return [Move(by=1.0, over=state.shares)] if state.shares else []


@dataclass(frozen=True, repr=False)
class LossesForgotten(Quorum):
    """A deadlock: the last workers wait for one that was lost."""

    name: ClassVar[str] = "losses_forgotten"

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        del worker
        return state, []


@dataclass(frozen=True, repr=False)
class RestsForgotten(Quorum):
    """A deadlock: the last worker waits for others that have no samples left."""

    name: ClassVar[str] = "rests_forgotten"

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        if isinstance(call.message, Rest):
            return state, [Answer(call, Parameters(state.version), parameters=False)]
        return super().on_message(state, call)


@dataclass(frozen=True, repr=False)
class DampingForgotten(Quorum):
    """A wrong weight: the sum of damped replicas is divided by all samples."""

    name: ClassVar[str] = "damping_forgotten"

    def conclude(self, state: Round) -> list[Action]:
        return [Move(by=1.0, over=state.samples)] if state.samples else []


def drawn(rng: random.Random, workers: int, servers: int) -> Quorum:
    """A quorum of any size."""
    del servers
    return Quorum(wait_for=rng.randint(1, workers), every=rng.choice((1, 2, 3)))
