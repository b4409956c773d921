"""Asynchronous SGD on parameter servers: every update is applied as soon as it arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Parameters, Pull, Push, Rest
from manyhands.protocols.actions import Action, Answer, Call, Step
from manyhands.protocols.parts.damping import Damping, damp
from manyhands.protocols.parts.push import ALONE, PushGradients, changed
from manyhands.protocols.parts.shares import AT_OWN_PACE

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState


@dataclass(frozen=True, repr=False)
class Asynchronous(PushGradients):
    """Apply every worker's update as soon as it arrives (asynchronous SGD).

    W ← W − λ·(b/B)·ΔW(W_then): a worker pulls the parameters, computes the gradient of its b
    samples, pushes it and pulls again, without waiting for other workers. These push in between,
    so an update is applied to newer parameters than it was computed from: with N workers it is
    N − 1 versions stale on average. Each push is one step of the job's optimizer on the servers,
    and counts for b/B of a step of the global batch B.

    Use it if workers differ in speed, or join and leave: no worker waits for the slowest. It costs
    m bytes in each direction per worker and update, and a staleness that grows with the number of
    workers. Damping takes smaller steps with updates that are staler than usual. Delay
    compensation corrects an update for the changes since its worker's read:
    ΔW + c·ΔW²·(W_now − W_then).

    A server applies one whole update at a time ("asynchronous with a lock"); `locked` is another
    name for this strategy.

    Example: `asynchronous(servers=2, damping=inverse)`

    Papers: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour SGD). Damping:
    Zhang et al., Staleness-aware Async-SGD, IJCAI 2016. Compensation: Zheng et al., Asynchronous
    Stochastic Gradient Descent with Delay Compensation, ICML 2017.
    """

    name: ClassVar[str] = "asynchronous"
    alternates: ClassVar[bool] = True
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {"aggregate": ALONE, "shares": AT_OWN_PACE}

    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters. More servers share
    the traffic and the optimizer's work."""
    damping: Damping = "none"
    """Weight of an update whose staleness τ is above the usual N − 1: 1 (none), (N − 1)/τ
    (inverse), or √((N − 1)/τ) (root)."""
    delay_compensation: float = 0.0
    """The factor c of the correction; 0 for none. Servers keep a copy of the parameters per
    worker for it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay_compensation < 0:
            raise ValueError(f"delay_compensation must be 0 or more, got {self.delay_compensation}")
        coding = self.coding("updates")
        if self.delay_compensation and coding is not None and coding.answers is not None:
            raise ValueError(
                "delay_compensation needs the parameters that a worker computed on, and under "
                f"{coding.answers} these differ from the server's: add answer_codec=none"
            )

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step with the pushed update, and answer with the current parameters."""
        corrects = self.delay_compensation > 0
        match call.message:
            case Push() if call.refused:
                return state, [Answer(call, Parameters(state.version), remember=corrects)]
            case Push(version=read, samples=samples, dealt=dealt, objective=objective):
                staleness = state.version - read
                factor = damp(self.damping, staleness, usual=state.terms.workers - 1)
                weight = state.terms.weigh(samples, dealt) * factor
                now = changed(state, version=state.version + 1)
                blend = 1 / state.terms.workers
                step = Step(
                    call,
                    weight,
                    staleness,
                    blend,
                    compensation=self.delay_compensation,
                    dealt=dealt,
                    objective=objective,
                )
                return now, [step, Answer(call, Parameters(now.version), remember=corrects)]
            case Pull():
                return state, [Answer(call, Parameters(state.version), remember=corrects)]
            case Rest():
                return state, [Answer(call, Parameters(state.version), parameters=False)]
            case _:
                return state, []

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        """Answer with the current parameters, which the worker will compute on."""
        return replace(super().on_repeat(state, call), remember=self.delay_compensation > 0)
