"""Soft synchronisation: a step as soon as some of the workers have given their gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Push, Terms
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.parts.damping import Damping, damp
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.push import Pushing
from manyhands.protocols.parts.rounds import Round
from manyhands.protocols.synchronous import Together, staleness_of

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class Drops(Round):
    """What was dropped, for `late=drop`."""

    dropped: PersistentMap[int] = field(default_factory=PersistentMap)
    """By sender, the number of its last push that was."""


@dataclass(frozen=True, repr=False)
class SoftSync(Together, Pushing):
    """Wait for any S of the N workers, then take one step with the mean of their gradients.

    W ← W − Σ λ_n·ΔW_n over the S that came first. S = N is `synchronous`, S = 1 is
    `asynchronous`, and what is between is a choice between waiting and staleness: with N − S
    backup workers, so many stragglers cost no time. A gradient that comes too late for its round
    joins the next one, or is dropped.

    Example: `softsync(wait_for=3)`

    Papers: Zhang et al., Staleness-aware Async-SGD, IJCAI 2016 (n-softsync); Chen et al.,
    Revisiting Distributed Synchronous SGD, 2016 (backup workers, `late=drop`).
    """

    name: ClassVar[str] = "softsync"
    support: ClassVar[Literal["beta"]] = "beta"

    wait_for: int = 1
    """S: how many workers' gradients make a step."""
    late: Literal["queue", "drop"] = "queue"
    """What happens to a gradient of parameters that are no longer the newest: it joins the round
    that is being gathered, or is dropped. Dropped samples are counted as lost."""
    servers: int = 1
    """How many processes hold the parameters, an equal part each."""
    damping: Damping = "none"
    """What an update counts for that is staler than the usual τ₀ = N/S − 1 rounds: all of it, τ₀/τ
    of it, or √(τ₀/τ)."""
    weigh_as: Literal["samples", "step"] = "samples"
    """What the step of a round counts for: its samples, so that a round of S counts for S/N of a
    step; or a whole step, whatever S is, as TensorFlow's `replicas_to_aggregate` has it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_for < 1:
            raise ValueError(f"wait_for must be 1 or more, not {self.wait_for}")
        if self.late == "drop" and self.servers > 1:
            raise ValueError(
                "late=drop needs servers=1: two servers may close a round with different workers, "
                "and would drop half of a gradient"
            )

    def check(self, workers: int) -> None:
        """Nobody can wait for more workers than there are."""
        super().check(workers)
        if self.wait_for > workers:
            raise ValueError(f"wait_for={self.wait_for} needs so many workers, not {workers}")
        if self.servers > 1 and 1 < self.wait_for < workers:
            raise ValueError(
                f"wait_for={self.wait_for} of {workers} workers needs servers=1: two servers may "
                "close a round with different workers, and wait for each other's for ever"
            )

    def by_rank(self, workers: int) -> bool:
        """Only if all are waited for; otherwise the fast are to do more."""
        return self.wait_for >= workers

    def begin(self, terms: Terms) -> Drops:
        """All workers are waited for, and nothing was dropped."""
        return Drops(terms, present=super().begin(terms).present)

    @property
    def needed(self) -> int | None:
        """S; with several servers, which wait for one or for all, all who are there.

        What a worker gave to one server before it was gone would count there and not elsewhere.
        """
        return self.wait_for if self.servers == 1 or self.wait_for == 1 else None

    def in_order(self, terms: Terms) -> bool:
        """Only if all are waited for."""
        return self.wait_for >= terms.workers

    def lessen(self, state: Round, call: Call) -> float:
        """λ_n / λ: what is staler than usual counts for less."""
        usual = state.terms.workers / self.wait_for - 1
        return damp(self.damping, staleness_of(state, call), usual)

    def weigh(self, state: Round) -> float:
        """The samples of a round, or as if all workers had given to it."""
        givers = len(state.waiting) + len(state.gone)
        whole = state.terms.workers / givers if self.weigh_as == "step" else 1.0
        return state.weight * whole

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """As ever; but what comes late may be dropped."""
        assert isinstance(state, Drops)
        match call.message:
            case Push(version=read) if self.late == "drop" and read < state.version:
                now = replace(state, dropped=state.dropped.put(call.sender, call.number))
                return now, [Answer(call, Parameters(state.version, applied=False))]
            case _:
                return super().on_message(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """What was dropped stays dropped."""
        assert isinstance(state, Drops)
        applied = state.dropped.get(call.sender, 0) != call.number
        return Answer(call, Parameters(state.version, applied=applied), parameters=call.room)
