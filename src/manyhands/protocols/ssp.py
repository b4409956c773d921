"""Stale-synchronous parallel: no worker runs ahead of the slowest by more than a bound."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - states are written down and read
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Answer, Call, Step
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.push import ALONE, PushGradients, changed
from manyhands.protocols.parts.rank_order import place
from manyhands.protocols.parts.shares import AT_OWN_PACE
from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Clocks(ServerState):
    """The clocks of all workers."""

    present: frozenset[str] = frozenset()
    """Workers that are alive and do not rest: the bound refers to the slowest of them."""
    clocks: PersistentMap[int] = field(default_factory=PersistentMap)
    """By worker, the number of updates that it has pushed."""
    at: Mapping[int, int] = field(default_factory=dict)
    """By clock value, the number of workers: few entries, even with many workers."""
    waiting: PersistentMap[Call] = field(default_factory=PersistentMap)
    """By sender, pushes of workers that are too far ahead; answered when the slowest catches up."""
    awaited: frozenset[str] = frozenset()
    """Workers that have not pulled yet. The first read is the same for all workers: it is answered,
    and a worker can push, only after all workers have pulled."""
    asking: PersistentMap[Call] = field(default_factory=PersistentMap)
    """By sender, pulls that wait for their answer."""

    @property
    def slowest(self) -> int:
        """The clock of the slowest present worker."""
        return min(self.at, default=0)

    def with_present(self, workers: frozenset[str]) -> Clocks:
        """This state with a clock for each of the workers, some of which rested."""
        return reduce(_joined, sorted(workers), self)


@dataclass(frozen=True, repr=False)
class StaleSynchronous(PushGradients):
    """Apply every update as it arrives; no worker may run ahead by more than `staleness` clocks.

    A worker's clock counts its updates. Every push is a step that counts for b/B of the global
    batch. It is answered, with the parameters of that moment, as soon as the worker's clock is at
    most `staleness` ahead of the slowest worker's. So every worker has seen all updates that are
    older than the bound, which is what the proof of convergence needs.

    With staleness=0 and plain SGD it is `synchronous`: all updates of a clock are computed from
    the same parameters, and their steps add up to one step with the mean. With momentum it is not,
    because momentum is applied after every part of the batch instead of once.

    Use it if workers are slow at times: delays even out within the bound. A worker that is always
    slow limits the speed of all. A worker that is lost or has no samples is not waited for.

    Example: `ssp(staleness=4)`

    Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server, NIPS 2013.
    """

    name: ClassVar[str] = "ssp"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {"aggregate": ALONE, "shares": AT_OWN_PACE}

    staleness: int = 1
    """The bound: how many clocks a computing worker may be ahead of the slowest one."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.staleness < 0:
            raise ValueError(f"staleness must be 0 or more, got {self.staleness}")

    @property
    def lockstep(self) -> bool:
        """Fast workers wait for slow ones."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Only if no worker may run ahead; otherwise fast workers get more samples."""
        del workers
        return self.staleness == 0

    def begin(self, terms: Terms) -> Clocks:
        """All clocks are zero."""
        names = frozenset(f"worker-{rank}" for rank in range(terms.workers))
        clocks, at = PersistentMap.of(sorted(names), 0), {0: len(names)}
        return Clocks(terms, present=names, clocks=clocks, at=at, awaited=names)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with the pushed update; answer the workers that are within the bound."""
        assert isinstance(state, Clocks)
        match call.message:
            case Push(version=read, samples=samples, dealt=dealt):
                weight = state.terms.weigh(samples, dealt)
                blend = 1 / state.terms.workers
                step = Step(call, weight, state.version - read, blend, dealt=dealt)
                there = _advanced(_joined(state, call.worker), call.worker)
                now = changed(there, version=state.version + bool(samples))
                return self._release(state, now, [step] if samples else [], call)
            case Pull():
                there = changed(
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
        """Remove the worker's clock, and answer the workers that are within the bound now."""
        assert isinstance(state, Clocks)
        return self._release(state, _without(state, worker), [], leaves=True)

    def early(self, state: ServerState, call: Call) -> int:
        """With staleness=0, updates are applied in rank order."""
        assert isinstance(state, Clocks)
        if self.staleness or not isinstance(call.message, Push):
            return 0
        return place(state.present, call.worker) - len(state.waiting)

    def _release(
        self,
        before: Clocks,
        state: Clocks,
        actions: list[Action],
        call: Call | None = None,
        *,
        leaves: bool = False,
    ) -> tuple[Clocks, list[Action]]:
        """Answer all calls that are within the bound, and that of a worker that leaves.

        As long as the slowest clock has not changed, that is at most the current call.
        """
        limit = state.slowest + self.staleness
        waiting, asking, freed = state.waiting, state.asking, list[Call]()
        if leaves or state.slowest != before.slowest:
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
            state = changed(state, waiting=waiting, asking=asking)
        return state, [*actions, *answers]


def _joined(state: Clocks, worker: str) -> Clocks:
    """The state with a worker present: one that joins or returns starts at the slowest clock."""
    if worker in state.present:
        return state
    clock = state.slowest
    return changed(
        state,
        present=state.present | {worker},
        clocks=state.clocks.put(worker, clock),
        at=_moved(state.at, None, clock),
    )


def _advanced(state: Clocks, worker: str) -> Clocks:
    """The state with a worker's clock increased by 1."""
    clock = state.clocks[worker]
    at = _moved(state.at, clock, clock + 1)
    return changed(state, clocks=state.clocks.put(worker, clock + 1), at=at)


def _without(state: Clocks, worker: str) -> Clocks:
    awaited = state.awaited - {worker}
    if worker not in state.present:
        return changed(state, awaited=awaited)
    return changed(
        state,
        present=state.present - {worker},
        clocks=state.clocks.without(worker),
        at=_moved(state.at, state.clocks[worker], None),
        awaited=awaited,
    )


def _moved(at: Mapping[int, int], before: int | None, after: int | None) -> dict[int, int]:
    """Workers per clock value, after one worker's clock changed from `before` to `after`."""
    now = dict(at)
    if before is not None:
        now[before] -= 1
        if not now[before]:
            del now[before]
    if after is not None:
        now[after] = now.get(after, 0) + 1
    return now
