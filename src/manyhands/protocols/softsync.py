"""Soft synchronisation: a step as soon as S of the N workers have pushed their gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Push, Terms
from manyhands.protocols.actions import Action, Answer, Call
from manyhands.protocols.parts.damping import Damping, damp
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.protocols.parts.push import PushGradients
from manyhands.protocols.parts.rounds import Round
from manyhands.protocols.synchronous import SynchronousRounds, staleness_of

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True)
class SoftSyncRound(Round):
    """A round, with the record of dropped pushes for `late=drop`."""

    dropped: PersistentMap[int] = field(default_factory=PersistentMap)
    """By sender, the number of its last dropped push."""


@dataclass(frozen=True, repr=False)
class SoftSync(SynchronousRounds, PushGradients):
    """Wait for any S of the N workers, then take one step with the mean of their gradients.

    W ← W − Σ λ_n·ΔW_n over the S gradients that arrive first. S = N is `synchronous`, S = 1 is
    `asynchronous`; values in between trade waiting for staleness. The other N − S are backup
    workers: that many stragglers cost no time. A gradient that arrives too late for its round is
    added to the next one, or dropped.

    Example: `softsync(wait_for=3)`

    Papers: Zhang et al., Staleness-aware Async-SGD, IJCAI 2016 (n-softsync); Chen et al.,
    Revisiting Distributed Synchronous SGD, 2016 (backup workers, `late=drop`).
    """

    name: ClassVar[str] = "softsync"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "shares": "a step does not wait for slow workers, and a faster one takes more samples; use "
        "synchronous(shares=by_speed)"
    }

    wait_for: int = 1
    """S: the number of gradients per step."""
    late: Literal["queue", "drop"] = "queue"
    """What happens to a gradient that was computed from old parameters: it is added to the current
    round (queue), or dropped (drop). Dropped samples are counted as lost."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""
    damping: Damping = "none"
    """Weight of an update whose staleness τ is above the usual τ₀ = N/S − 1 rounds: 1 (none), τ₀/τ
    (inverse), or √(τ₀/τ) (root)."""
    weigh_as: Literal["samples", "step"] = "samples"
    """Weight of a round's step: its samples, so that S gradients count for S/N of a step; or a
    whole step for any S, as in TensorFlow's `replicas_to_aggregate`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_for < 1:
            raise ValueError(f"wait_for must be 1 or more, got {self.wait_for}")
        if self.late == "drop" and self.servers > 1:
            raise ValueError(
                f"late=drop needs servers=1, got servers={self.servers}: two servers may complete "
                "a round with different workers, and each would drop a different part of a gradient"
            )

    def check(self, workers: int) -> None:
        """Raise ValueError if a round needs more workers than there are."""
        super().check(workers)
        if self.wait_for > workers:
            raise ValueError(
                f"wait_for={self.wait_for} needs at least {self.wait_for} workers, got {workers}"
            )
        if self.servers > 1 and 1 < self.wait_for < workers:
            raise ValueError(
                f"wait_for={self.wait_for} of {workers} workers needs servers=1, got "
                f"servers={self.servers}: two servers may complete a round with different workers, "
                "which would then wait for each other for ever"
            )

    def by_rank(self, workers: int) -> bool:
        """Only if a round waits for all workers; otherwise fast workers get more samples."""
        return self.wait_for >= workers

    def begin(self, terms: Terms) -> SoftSyncRound:
        """All workers take part, and nothing was dropped."""
        return SoftSyncRound(terms, present=super().begin(terms).present)

    @property
    def needed(self) -> int | None:
        """S; None (all present workers) if several servers wait for all workers.

        Otherwise the push of a lost worker could count on one server and not on the others.
        """
        return self.wait_for if self.servers == 1 or self.wait_for == 1 else None

    def in_order(self, terms: Terms) -> bool:
        """Only if a round waits for all workers."""
        return self.wait_for >= terms.workers

    def damping_factor(self, state: Round, call: Call) -> float:
        """λ_n / λ: below 1 for updates that are staler than usual."""
        usual = state.terms.workers / self.wait_for - 1
        return damp(self.damping, staleness_of(state, call), usual)

    def weigh(self, state: Round) -> float:
        """The samples of the round / the global batch, or 1 with `weigh_as=step`."""
        givers = len(state.waiting) + len(state.gone)
        whole = state.terms.workers / givers if self.weigh_as == "step" else 1.0
        return state.weight * whole

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """As in other rounds, except that a late push may be dropped."""
        assert isinstance(state, SoftSyncRound)
        match call.message:
            case Push(version=read) if self.late == "drop" and read < state.version:
                now = replace(state, dropped=state.dropped.put(call.sender, call.number))
                return now, [Answer(call, Parameters(state.version, applied=False))]
            case _:
                return super().on_message(state, call)

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """A dropped push stays dropped."""
        assert isinstance(state, SoftSyncRound)
        applied = state.dropped.get(call.sender, 0) != call.number
        return Answer(call, Parameters(state.version, applied=applied), parameters=call.room)
