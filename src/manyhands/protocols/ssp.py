"""Stale-synchronous parallel: nobody runs ahead of the slowest by more than a bound."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - states are written down and read
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Answer, Call, Step
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.push import Pushing
from manyhands.protocols.parts.rank_order import place
from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Clocks(ServerState):
    """How far everybody is."""

    present: frozenset[str] = frozenset()
    """The workers that may be waited for."""
    clocks: PersistentMap[int] = field(default_factory=PersistentMap)
    """How many updates each of them has pushed."""
    at: Mapping[int, int] = field(default_factory=dict)
    """By clock, how many workers are there: few clocks, however many workers."""
    waiting: PersistentMap[Call] = field(default_factory=PersistentMap)
    """By sender, pushes of those that are too far ahead, to be answered when the slowest has caught
    up."""
    awaited: frozenset[str] = frozenset()
    """Workers that have not read yet. The first read is the same for all: nobody gets it, and so
    nobody can push, before all have asked for it."""
    asking: PersistentMap[Call] = field(default_factory=PersistentMap)
    """Those who have."""

    @property
    def slowest(self) -> int:
        """The clock of the slowest who is there."""
        return min(self.at, default=0)


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
    """The bound: how many clocks a worker that computes may be ahead of the slowest."""
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
        names = frozenset(f"worker-{rank}" for rank in range(terms.workers))
        clocks, at = PersistentMap.of(sorted(names), 0), {0: len(names)}
        return Clocks(terms, present=names, clocks=clocks, at=at, awaited=names)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with what was pushed; answer whoever is not too far ahead."""
        assert isinstance(state, Clocks)
        match call.message:
            case Push(version=read, samples=samples, dealt=dealt):
                weight = state.terms.weigh(samples, dealt)
                blend = 1 / state.terms.workers
                step = Step(call, weight, state.version - read, blend, dealt=dealt)
                there = _advanced(_joined(state, call.worker), call.worker)
                now = replace(there, version=state.version + bool(samples))
                return self._release(state, now, [step] if samples else [], call)
            case Pull():
                there = replace(
                    _joined(state, call.worker),
                    awaited=state.awaited - {call.worker} if state.awaited else state.awaited,
                    asking=state.asking.put(call.sender, call),
                )
                return self._release(state, there, [])
            case Rest():
                done = Answer(call, Parameters(state.version), parameters=False)
                return self._release(state, _without(state, call.worker), [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """The slowest clock is that of the slowest who is there."""
        assert isinstance(state, Clocks)
        return self._release(state, _without(state, worker), [])

    def early(self, state: ServerState, call: Call) -> int:
        """Where nobody may run ahead, all step in the order of their ranks."""
        assert isinstance(state, Clocks)
        if self.staleness or not isinstance(call.message, Push):
            return 0
        return place(state.present, call.worker) - len(state.waiting)

    def _release(
        self, before: Clocks, state: Clocks, actions: list[Action], call: Call | None = None
    ) -> tuple[Clocks, list[Action]]:
        """Answer those who may go on.

        While the slowest is where it was, that is at most the one whose call it is.
        """
        limit = state.slowest + self.staleness
        waiting, asking, freed = state.waiting, state.asking, list[Call]()
        if state.slowest != before.slowest or len(state.present) < len(before.present):
            freed = [one for one in waiting.values() if state.clocks.get(one.worker, 0) <= limit]
            if len(freed) == len(waiting):
                waiting = PersistentMap()
            for one in freed if len(waiting) else ():
                waiting = waiting.without(one.sender)
        if call is not None:
            if state.clocks[call.worker] <= limit:
                freed.append(call)
            else:
                waiting = waiting.put(call.sender, call)
        if not state.awaited and len(asking):
            freed, asking = [*freed, *asking.values()], PersistentMap()
        answers = [Answer(one, Parameters(state.version)) for one in freed]
        if waiting is not state.waiting or asking is not state.asking:
            state = replace(state, waiting=waiting, asking=asking)
        return state, [*actions, *answers]


def _joined(state: Clocks, worker: str) -> Clocks:
    """The clocks with a worker's among them: one that comes or returns begins with the slowest."""
    if worker in state.present:
        return state
    clock = state.slowest
    return replace(
        state,
        present=state.present | {worker},
        clocks=state.clocks.put(worker, clock),
        at=_moved(state.at, None, clock),
    )


def _advanced(state: Clocks, worker: str) -> Clocks:
    """One more update of a worker."""
    clock = state.clocks[worker]
    at = _moved(state.at, clock, clock + 1)
    return replace(state, clocks=state.clocks.put(worker, clock + 1), at=at)


def _without(state: Clocks, worker: str) -> Clocks:
    awaited = state.awaited - {worker}
    if worker not in state.present:
        return replace(state, awaited=awaited)
    return replace(
        state,
        present=state.present - {worker},
        clocks=state.clocks.without(worker),
        at=_moved(state.at, state.clocks[worker], None),
        awaited=awaited,
    )


def _moved(at: Mapping[int, int], before: int | None, after: int | None) -> dict[int, int]:
    """How many are at each clock when one has left one, and come to another."""
    now = dict(at)
    if before is not None:
        now[before] -= 1
        if not now[before]:
            del now[before]
    if after is not None:
        now[after] = now.get(after, 0) + 1
    return now
