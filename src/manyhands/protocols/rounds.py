"""Servers that gather in rounds: what arrives is added up until enough of it is there."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from manyhands.endpoint import Parameters, Pull, Push, Rest, Terms
from manyhands.protocols.actions import Action, Add, Answer, Call
from manyhands.protocols.exchange import Centred
from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Round(ServerState):
    """The round that is being gathered."""

    present: frozenset[str] = frozenset()
    """The workers that may be waited for: those that live and do not rest."""
    waiting: tuple[Call, ...] = ()
    """Those that have given something to this round, and wait for its end."""
    gone: tuple[Call, ...] = ()
    """Those that have given something to it and were gone before its end."""
    samples: int = 0
    """What they have given was made of so many."""
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

    def gather(self, state: Round, call: Call, samples: int) -> list[Action]:
        """What to do with something that was given: it counts in the sum by its samples."""
        del state
        return [Add(call, samples)] if samples else []

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Gather; and when that completes a round, conclude it and answer all who gave to it."""
        assert isinstance(state, Round)
        match call.message:
            case Push(samples=samples, dealt=dealt):
                given = replace(
                    state,
                    present=state.present | {call.worker},
                    waiting=(*state.waiting, call),
                    samples=state.samples + samples,
                    weight=state.weight + state.terms.weigh(samples, dealt),
                    dealt=max(state.dealt, dealt),
                )
                return self._close(given, self.gather(state, call, samples))
            case Pull():
                there = replace(state, present=state.present | {call.worker})
                return there, [self._told(call, state.version)]
            case Rest():
                done = Answer(call, Parameters(state.version), parameters=False)
                return self._close(replace(state, present=state.present - {call.worker}), [done])
            case _:
                return state, []

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        """Wait for it no longer."""
        assert isinstance(state, Round)
        without = replace(
            state,
            present=state.present - {worker},
            waiting=tuple(call for call in state.waiting if call.worker != worker),
            gone=(*state.gone, *(call for call in state.waiting if call.worker == worker)),
        )
        return self._close(without, [])

    def _close(self, state: Round, actions: list[Action]) -> tuple[Round, list[Action]]:
        calls, there = (*state.gone, *state.waiting), {call.worker for call in state.waiting}
        enough = self.needed is not None and len(there) + len(state.gone) >= self.needed
        if not calls or (state.present - there and not enough):
            return state, actions
        conclusion = self.conclude(state)
        version = state.version + bool(conclusion)
        now = replace(state, version=version, waiting=(), gone=(), samples=0, weight=0.0, dealt=0)
        answers = [self._told(call, now.version) for call in calls]
        return now, [*actions, *conclusion, *answers]

    def _told(self, call: Call, version: int) -> Answer:
        """The answer to a call: with the parameters, unless their reader shares them anyway."""
        return Answer(call, Parameters(version), parameters=not self.shares)
