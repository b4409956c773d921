"""Synchronous SGD on parameter servers: one step with the mean gradient of all workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Push
from manyhands.protocols.actions import Action, Add, Call, Step
from manyhands.protocols.aggregation.option import Aggregated, Combine
from manyhands.protocols.parts.push import PushGradients
from manyhands.protocols.parts.rounds import Round, Rounds
from manyhands.protocols.parts.shares import DividedBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.job import Job


class SynchronousRounds(Rounds, Aggregated):
    """Servers that wait for all workers, then take one step with the mean of their gradients."""

    clips: ClassVar[Literal["servers"]] = "servers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.aggregate, str) and self.aggregate != "mean":
            raise ValueError(f"aggregate must be mean or an aggregator, got {self.aggregate!r}")

    @property
    def keeps_apart(self) -> bool:
        """Whether one update is made of a round's by something else than a mean."""
        return self.aggregator is not None

    def check(self, workers: int) -> None:
        """Raise ValueError if a round has too few updates for its aggregator."""
        super().check(workers)
        self.check_aggregate(min(workers, self.needed or workers), self.shards)

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot train this job."""
        super().check_job(job, workers)
        self.check_aggregate_job(job)

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """Add the gradient, weighted by its samples; or keep it by itself, to be aggregated."""
        if not share:
            return []
        if self.keeps_apart:
            own = 1 + len(state.parts)
            return [Add(call, 1.0, staleness=staleness_of(state, call), pot=own)]
        pot = call.message.objective if isinstance(call.message, Push) else 0
        return [Add(call, share, staleness=staleness_of(state, call), pot=pot)]

    def conclude(self, state: Round) -> list[Action]:
        """Take one step with the mean."""
        if not state.samples:
            return []
        givers = len(state.waiting) + len(state.gone)
        blend = min(1.0, givers / state.terms.workers)
        if state.terms.objectives > 1:
            return list(_steps(state, blend))
        weight = self.weigh(state)
        if self.keeps_apart:
            pots = tuple(range(1, 1 + len(state.parts)))
            combine = Combine(None, pots, state.parts, self.aggregator)
            return [combine, Step(None, weight, blend=blend, dealt=state.dealt)]
        return [Step(None, weight, blend=blend, over=state.shares, dealt=state.dealt)]

    def weigh(self, state: Round) -> float:
        """The weight of a round's step: its samples / the global batch."""
        return state.weight


def _steps(state: Round, blend: float) -> Iterator[Step]:
    """A step for each objective that a round has updates of.

    All workers push updates of the same objective, unless one was restarted between two steps.
    """
    calls = (*state.gone, *state.waiting.values())
    pushes = [call.message for call in calls if isinstance(call.message, Push)]
    for objective in range(state.terms.objectives):
        given = [one for one in pushes if one.objective == objective and one.samples]
        if given:
            yield Step(
                None,
                sum(state.terms.weigh(one.samples, one.dealt) for one in given),
                blend=blend,
                over=sum(one.weight for one in given),
                dealt=max(one.dealt for one in given),
                objective=objective,
            )


def staleness_of(state: Round, call: Call) -> int:
    """Versions between the read that a push was computed from and now."""
    return state.version - call.message.version if isinstance(call.message, Push) else 0


@dataclass(frozen=True, repr=False)
class Synchronous(DividedBatches, SynchronousRounds, PushGradients):
    """Wait for all workers, then take one step with the mean of their gradients.

    W ← W − λ·mean(ΔW_n), weighted by samples: mathematically the same as one worker with the
    whole batch, and the same as `allreduce`, with any optimizer. With `aggregate` it is another
    function of the gradients, which workers that send wrong ones cannot move as far.

    Use it with a few workers of equal speed, or with `shares=by_speed`. Every step waits for the
    slowest worker, and each of the S servers receives N·m/S bytes and sends as many, for m bytes of
    parameters. `allreduce` moves fewer bytes per link and is faster on a good network.

    Example: `synchronous(servers=2)`

    Paper: Chen et al., Revisiting Distributed Synchronous SGD, 2016.
    """

    name: ClassVar[str] = "synchronous"
    alternates: ClassVar[bool] = True
    support: ClassVar[Literal["beta"]] = "beta"

    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""
