"""Servers that gather in rounds: what arrives is added up until enough of it is there."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Add, Answer, Call
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.pull_and_rest import Centred
from manyhands.protocols.parts.rank_order import place
from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Round(ServerState):
    """The round that is being gathered."""

    present: frozenset[str] = frozenset()
    """The workers that may be waited for: those that live and do not rest."""
    waiting: PersistentMap[Call] = field(default_factory=PersistentMap)
    """By worker, the calls of those that have given something to this round, and wait for its end.
    All of them are present."""
    gone: tuple[Call, ...] = ()
    """Those that have given something to it and were gone before its end."""
    samples: int = 0
    """What they have given was made of so many."""
    shares: float = 0.0
    """What that counts for in the sum: its samples, or less where stale updates are damped."""
    weight: float = 0.0
    """What that counts for, in global batches."""
    dealt: int = 0
    """Samples of the run before the latest of the global batches that they are from."""


class Rounds(Centred):
    """A protocol whose servers answer when a round is complete.

    A round is complete when `needed` workers have given to it, or all that may be waited for. A
    worker that is gone, or has no samples, is not waited for; one that pulls is, from then on.
    What a worker gave before it was gone counts, but stands for nobody who is there, not even for
    itself when it is back.
    """

    @property
    def lockstep(self) -> bool:
        """A round waits for its workers."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Everybody gives to every round."""
        del workers
        return self.lockstep

    def begin(self, terms: Terms) -> Round:
        """All workers are waited for."""
        return Round(terms, present=frozenset(f"worker-{rank}" for rank in range(terms.workers)))

    @property
    def needed(self) -> int | None:
        """How many workers make a round; None if all do that may be waited for."""
        return None

    @abstractmethod
    def conclude(self, state: Round) -> list[Action]:
        """What to do with the sum of a round that is complete."""

    def lessen(self, state: Round, call: Call) -> float:
        """What a sample of something that was given counts for: 1, or less if it is stale."""
        del state, call
        return 1.0

    def gather(self, state: Round, call: Call, share: float) -> list[Action]:
        """What to do with something that was given: it counts in the sum by its samples."""
        del state
        return [Add(call, share)] if share else []

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Gather; and when that completes a round, conclude it and answer all who gave to it."""
        assert isinstance(state, Round)
        match call.message:
            case Push(samples=samples, dealt=dealt):
                factor = self.lessen(state, call)
                before = (state.waiting[call.worker],) if call.worker in state.waiting else ()
                given = replace(
                    _with(state, call.worker),
                    waiting=state.waiting.put(call.worker, call),
                    gone=(*state.gone, *before),
                    samples=state.samples + samples,
                    shares=state.shares + factor * samples,
                    weight=state.weight + factor * state.terms.weigh(samples, dealt),
                    dealt=max(state.dealt, dealt),
                )
                return self._close(given, self.gather(state, call, factor * samples))
            case Pull():
                return _with(state, call.worker), [self._told(call, state.version)]
            case Rest():
                done = Answer(call, Parameters(state.version), parameters=False)
                return self._close(_without(state, call.worker), [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer."""
        assert isinstance(state, Round)
        return self._close(_without(state, worker), [])

    def early(self, state: ServerState, call: Call) -> int:
        """Where all are waited for, what they give is added up in the order of their ranks."""
        assert isinstance(state, Round)
        if not isinstance(call.message, Push) or not self.in_order(state.terms):
            return 0
        return place(state.present, call.worker) - len(state.waiting)

    def in_order(self, terms: Terms) -> bool:
        """Whether a round is over only when all have given to it who are there."""
        del terms
        return self.needed is None

    def _close(self, state: Round, actions: list[Action]) -> tuple[Round, list[Action]]:
        givers = len(state.waiting) + len(state.gone)
        enough = self.needed is not None and givers >= self.needed
        if not givers or (len(state.waiting) < len(state.present) and not enough):
            return state, actions
        conclusion = self.conclude(state)
        version = state.version + bool(conclusion)
        now = replace(
            state,
            version=version,
            waiting=PersistentMap(),
            gone=(),
            samples=0,
            shares=0.0,
            weight=0.0,
            dealt=0,
        )
        calls = (*state.gone, *state.waiting.values())
        answers = [self._told(call, now.version) for call in calls]
        return now, [*actions, *conclusion, *answers]

    def _told(self, call: Call, version: int) -> Answer:
        """The answer to a call: with the parameters, unless their reader shares them anyway."""
        return Answer(call, Parameters(version), parameters=not self.shared_memory)


def _with(state: Round, worker: str) -> Round:
    """A worker may be waited for."""
    if worker in state.present:
        return state
    return replace(state, present=state.present | {worker})


def _without(state: Round, worker: str) -> Round:
    """It may not. What it gave to this round counts."""
    if worker in state.waiting:
        gone = (*state.gone, state.waiting[worker])
        state = replace(state, waiting=state.waiting.without(worker), gone=gone)
    if worker not in state.present:
        return state
    return replace(state, present=state.present - {worker})
