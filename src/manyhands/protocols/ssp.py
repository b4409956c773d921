"""Stale-synchronous parallel: nobody runs ahead of the slowest by more than a bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Answer, Call, Step
from manyhands.protocols.protocol import ServerState
from manyhands.protocols.pushing import Pushing


@dataclass(frozen=True)
class Clocks(ServerState):
    """How far everybody is."""

    clocks: dict[str, int] = field(default_factory=dict)
    """Of the workers that may be waited for, how many updates each has pushed."""
    waiting: tuple[Call, ...] = ()
    """Pushes of those that are too far ahead, to be answered when the slowest has caught up."""
    awaited: frozenset[str] = frozenset()
    """Workers that have not read yet. The first read is the same for all: nobody gets it, and so
    nobody can push, before all have asked for it."""
    asking: tuple[Call, ...] = ()
    """Those who have."""


@dataclass(frozen=True, repr=False)
class StaleSynchronous(Pushing):
    """Apply every update as it arrives, but let nobody run ahead by more than `staleness` clocks.

    A worker's clock counts its updates. Every push is a step that counts for b/B of the global
    batch; it is answered as soon as the pusher's clock is at most `staleness` ahead of the
    slowest worker's, with the parameters as they are at that moment. So every worker has seen all
    updates that are older than the bound, and convergence can be proved.

    With staleness=0 and plain SGD it is `synchronous`: all updates of a clock were computed from
    the same parameters, and their steps add up to the mean's. With momentum it is not, because
    the momentum is then applied after every part of the batch instead of once.

    Use it where stragglers come and go: their delays even out within the bound. One that is always
    slow holds up everybody in the end; one that is gone, or has no samples, is not waited for.

    Example: `ssp(staleness=4)`

    Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server, NIPS 2013.
    """

    name: ClassVar[str] = "ssp"
    support: ClassVar[Literal["beta"]] = "beta"

    staleness: int = 1
    """The bound: how many clocks the fastest may be ahead of the slowest."""
    servers: int = 1
    """How many processes hold the parameters, an equal part each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.staleness < 0:
            raise ValueError(f"staleness must be 0 or more, not {self.staleness}")

    @property
    def lockstep(self) -> bool:
        """The fast wait for the slow."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Only if nobody may run ahead; otherwise the fast are to do more."""
        del workers
        return self.staleness == 0

    def begin(self, terms: Terms) -> Clocks:
        """All clocks stand at zero."""
        names = [f"worker-{rank}" for rank in range(terms.workers)]
        return Clocks(terms, clocks=dict.fromkeys(names, 0), awaited=frozenset(names))

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with what was pushed; answer whoever is not too far ahead."""
        assert isinstance(state, Clocks)
        match call.message:
            case Push(version=read, samples=samples, dealt=dealt):
                clocks = _joined(state, call.worker)
                clocks[call.worker] += 1
                weight = state.terms.weigh(samples, dealt)
                blend = 1 / state.terms.workers
                step = Step(call, weight, state.version - read, blend, dealt=dealt)
                now = replace(
                    state,
                    version=state.version + bool(samples),
                    clocks=clocks,
                    waiting=(*state.waiting, call),
                )
                return self._release(now, [step] if samples else [])
            case Pull():
                there = replace(
                    state,
                    clocks=_joined(state, call.worker),
                    awaited=state.awaited - {call.worker},
                    asking=(*state.asking, call),
                )
                return self._release(there, [])
            case Rest():
                done = Answer(call, Parameters(state.version), parameters=False)
                return self._release(_without(state, call.worker), [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """The slowest clock is that of the slowest who is there."""
        assert isinstance(state, Clocks)
        return self._release(_without(state, worker), [])

    def _release(self, state: Clocks, actions: list[Action]) -> tuple[Clocks, list[Action]]:
        slowest = min(state.clocks.values(), default=0)
        limit = slowest + self.staleness
        held = tuple(call for call in state.waiting if state.clocks.get(call.worker, 0) > limit)
        freed = [call for call in state.waiting if call not in held]
        asking = state.asking
        if not state.awaited:
            freed, asking = [*freed, *asking], ()
        answers = [Answer(call, Parameters(state.version)) for call in freed]
        return replace(state, waiting=held, asking=asking), [*actions, *answers]


def _joined(state: Clocks, worker: str) -> dict[str, int]:
    """The clocks with a worker's among them: one that comes or returns begins with the slowest."""
    return {worker: min(state.clocks.values(), default=0), **state.clocks}


def _without(state: Clocks, worker: str) -> Clocks:
    clocks = {name: clock for name, clock in state.clocks.items() if name != worker}
    return replace(state, clocks=clocks, awaited=state.awaited - {worker})
