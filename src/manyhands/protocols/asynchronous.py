"""Asynchronous SGD on parameter servers: every update is applied as soon as it arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Answer, Call, Step
from manyhands.protocols.parts.damping import Damping, damp
from manyhands.protocols.parts.push import Pushing

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True, repr=False)
class Asynchronous(Pushing):
    """Apply every worker's update as soon as it arrives (asynchronous SGD).

    W ← W − λ·(b/B)·ΔW(W_then): a worker pulls the parameters, computes the gradient of its b
    samples, pushes it and pulls again, waiting for nobody. Others have pushed in between, so the
    update was computed from older parameters than it is applied to: with N workers it is N − 1
    versions stale on average. Each push is one step of the user's optimizer on the servers, and
    counts for b/B of a step of the global batch B.

    Use it when workers are unequal or come and go: nobody waits for the slowest. It costs 2·m
    bytes per worker and update for m bytes of parameters, and staleness, which grows with the
    workers. Damping takes smaller steps with updates that are staler than usual; delay compensation
    corrects an update for what has changed since its worker read: ΔW + c·ΔW²·(W_now − W_then).

    A server applies one update at a time, whole, which is what "asynchronous with a lock" means;
    `locked` is another name for this strategy.

    Example: `asynchronous(servers=2, damping=inverse)`

    Papers: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour SGD). Damping:
    Zhang et al., Staleness-aware Async-SGD, IJCAI 2016. Compensation: Zheng et al., Asynchronous
    Stochastic Gradient Descent with Delay Compensation, ICML 2017.
    """

    name: ClassVar[str] = "asynchronous"
    support: ClassVar[Literal["beta"]] = "beta"

    servers: int = 1
    """How many processes hold the parameters, an equal part each. More of them share the traffic
    and the optimizer's work."""
    damping: Damping = "none"
    """What an update that is staler than the usual N − 1 counts for: all of it, (N − 1)/τ of it, or
    √((N − 1)/τ)."""
    delay_compensation: float = 0.0
    """The factor c of the correction; 0 for none. It takes a copy of the parameters per worker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay_compensation < 0:
            raise ValueError(f"delay_compensation must not be below 0: {self.delay_compensation}")

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with what was pushed, answer with what is there now."""
        corrects = self.delay_compensation > 0
        match call.message:
            case Push(version=read, samples=samples, dealt=dealt):
                staleness = state.version - read
                factor = damp(self.damping, staleness, usual=state.terms.workers - 1)
                weight = state.terms.weigh(samples, dealt) * factor
                now = replace(state, version=state.version + 1)
                blend = 1 / state.terms.workers
                step = Step(
                    call,
                    weight,
                    staleness,
                    blend,
                    compensation=self.delay_compensation,
                    dealt=dealt,
                )
                return now, [step, Answer(call, Parameters(now.version), remember=corrects)]
            case Pull():
                return state, [Answer(call, Parameters(state.version), remember=corrects)]
            case Rest():
                return state, [Answer(call, Parameters(state.version), parameters=False)]
            case _:
                return state, []

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """What is there now is what the worker will compute on."""
        return replace(super().on_repeat(state, call), remember=self.delay_compensation > 0)
