"""Servers that work in rounds: pushes are summed until enough workers have contributed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Add, Answer, Call
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.pull_and_rest import ServerBased
from manyhands.protocols.parts.rank_order import place
from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Round(ServerState):
    """The current round of a server."""

    present: frozenset[str] = frozenset()
    """Workers that are alive and do not rest: a round may wait for them."""
    paused: frozenset[str] = frozenset()
    """Workers that pause together with all others. They are present again when one of them pushes:
    it may have come back long before the others, and without them the result would depend on it."""
    waiting: PersistentMap[Call] = field(default_factory=PersistentMap)
    """By worker, the push of each present worker that has contributed and waits for the end."""
    gone: tuple[Call, ...] = ()
    """Pushes of workers that have contributed and were lost, or began to rest, before the end."""
    samples: int = 0
    """Samples of all contributions."""
    shares: float = 0.0
    """Weight of all contributions in the sum: samples, or what a loss counts in place of them; less
    where stale updates are damped."""
    weight: float = 0.0
    """Weight of all contributions in global batches."""
    dealt: int = 0
    """Samples of the run before the latest global batch that a contribution is from."""
    late: int = 0
    """Contributions that came too late for an earlier round, and were answered at once."""
    parts: tuple[float, ...] = ()
    """Weights of the contributions, if they are kept apart."""


class Rounds(ServerBased):
    """A protocol whose servers answer when a round is complete.

    A round is complete when `needed` workers, or all present workers, have contributed. It does
    not wait for workers that are lost or have no samples; a worker that pulls is present from
    then on. The contribution of a lost worker counts, but does not stand for any present worker,
    not even for its own next incarnation. Nor does a late contribution, which counts when the next
    round is complete, or when no worker is present.
    """

    @property
    def lockstep(self) -> bool:
        """A round waits for its workers."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Every worker contributes to every round."""
        del workers
        return self.lockstep

    def begin(self, terms: Terms) -> Round:
        """All workers are present."""
        return Round(terms, present=frozenset(f"worker-{rank}" for rank in range(terms.workers)))

    @property
    def needed(self) -> int | None:
        """Contributions that complete a round; None for those of all present workers."""
        return None

    @property
    def counts_empty_rounds(self) -> bool:
        """Whether a round without samples is a version too, so that versions number the rounds."""
        return False

    @property
    def keeps_apart(self) -> bool:
        """Whether every contribution is in a sum of its own: the i-th of a round in sum i + 1."""
        return False

    @abstractmethod
    def conclude(self, state: Round) -> list[Action]:
        """The actions that apply the sum of a complete round."""

    def is_late(self, state: Round, call: Call) -> bool:
        """Whether a push is answered at once, because its round is over; it counts in this one."""
        del state, call
        return False

    def damping_factor(self, state: Round, call: Call) -> float:
        """The weight of a contribution's samples: 1, or less if it is stale."""
        del state, call
        return 1.0

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """The actions that add a contribution to the sum, with its weight."""
        del state
        return [Add(call, share)] if share else []

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Add a contribution; if it completes the round, conclude it and answer all workers."""
        assert isinstance(state, Round)
        match call.message:
            case Push(samples=samples, weight=weight, rests=rests) if self.is_late(state, call):
                given = replace(
                    _with(state, call.worker),
                    samples=state.samples + samples,
                    shares=state.shares + weight,
                    late=state.late + bool(samples),
                )
                left = _without(given, call.worker) if rests else given
                after, actions = self._close(left, self.gather(state, call, weight))
                return after, [*actions, self._answer_now(call, after.version)]
            case Push(samples=samples, weight=weight, dealt=dealt, rests=rests):
                # Before the contribution is counted: the first worker that is back from a pause
                # would otherwise complete a round alone (`docs/decisions/0092-pauses.md`).
                state = _together_again(state)
                factor = self.damping_factor(state, call)
                share = factor * weight
                before = (state.waiting[call.worker],) if call.worker in state.waiting else ()
                given = replace(
                    _with(state, call.worker),
                    waiting=state.waiting.put(call.worker, call),
                    gone=(*state.gone, *before),
                    samples=state.samples + samples,
                    shares=state.shares + share,
                    parts=(*state.parts, share) if share and self.keeps_apart else state.parts,
                    weight=state.weight + factor * state.terms.weigh(samples, dealt),
                    dealt=max(state.dealt, dealt),
                )
                left = _without(given, call.worker) if rests else given
                return self._close(left, self.gather(state, call, share))
            case Pull():
                return _with(state, call.worker), [self._answer_now(call, state.version)]
            case Rest(pauses=pauses):
                done = Answer(call, Parameters(state.version), parameters=False)
                left = _without(state, call.worker)
                if pauses and self.in_order(state.terms):
                    left = replace(left, paused=left.paused | {call.worker})
                # It may be the only worker for which the round still waits.
                return self._close(left, [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Stop waiting for the worker."""
        assert isinstance(state, Round)
        return self._close(_without(state, worker), [])

    def early(self, state: ServerState, call: Call) -> int:
        """If a round waits for all workers, contributions are summed in rank order."""
        assert isinstance(state, Round)
        if not isinstance(call.message, Push) or not self.in_order(state.terms):
            return 0
        # A worker that pauses contributes to the next round like the others, so it has its place in
        # the order already.
        there = state.present | state.paused if state.paused else state.present
        return place(there, call.worker) - len(state.waiting)

    def in_order(self, terms: Terms) -> bool:
        """Whether a round waits for all present workers."""
        del terms
        return self.needed is None

    def _close(self, state: Round, actions: list[Action]) -> tuple[Round, list[Action]]:
        givers = len(state.waiting) + len(state.gone)
        enough = self.needed is not None and givers >= self.needed
        # Without a contribution there is nothing to conclude, also when the last present worker
        # leaves.
        if not (givers or state.late) or (len(state.waiting) < len(state.present) and not enough):
            return state, actions
        conclusion = self.conclude(state)
        version = state.version + (bool(conclusion) or self.counts_empty_rounds)
        now = replace(
            state,
            version=version,
            waiting=PersistentMap(),
            gone=(),
            samples=0,
            shares=0.0,
            weight=0.0,
            dealt=0,
            late=0,
            parts=(),
        )
        # Also of workers that rest since: they still wait for the answer to their push. Answers to
        # lost ones are dropped by the runtime.
        calls = (*state.gone, *state.waiting.values())
        answers = [self._answer_now(call, now.version) for call in calls]
        return now, [*actions, *conclusion, *answers]

    def _answer_now(self, call: Call, version: int) -> Answer:
        """The answer to a call, with the parameters unless they are in shared memory."""
        return Answer(call, Parameters(version), parameters=not self.shared_memory)


def _with(state: Round, worker: str) -> Round:
    """The state with a worker present."""
    if worker in state.present:
        return state
    return replace(state, present=state.present | {worker}, paused=state.paused - {worker})


def _together_again(state: Round) -> Round:
    """The state in which all workers that paused are present."""
    if not state.paused:
        return state
    return replace(state, present=state.present | state.paused, paused=frozenset())


def _without(state: Round, worker: str) -> Round:
    """The state without a worker. Its contribution to this round still counts."""
    if worker in state.paused:
        state = replace(state, paused=state.paused - {worker})
    if worker in state.waiting:
        # What is in a sum cannot be taken out again. It counts, but stands for no present worker,
        # so that the round does not end before all of these have contributed.
        gone = (*state.gone, state.waiting[worker])
        state = replace(state, waiting=state.waiting.without(worker), gone=gone)
    if worker not in state.present:
        return state
    return replace(state, present=state.present - {worker})
