"""Base class of placements: strategies that PyTorch's own engine executes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import PLAIN
from manyhands.notation import Value
from manyhands.runtime_needs import OptionSupport, RuntimeNeeds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from manyhands.codecs import Codec
    from manyhands.codecs.reducers import Reducer
    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions, Forecast, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.protocols import LockstepProtocol
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


def check_layers(placement: Placement, layers: Sequence[LayerSize], *roles: str) -> None:
    """Raise ValueError if no layer of these roles is given, which the forecast needs."""
    if not any(layer.role in roles for layer in layers):
        raise ValueError(
            f"the forecast of {placement} needs layers of the role {' or '.join(roles)}, got none: "
            "use forecast_job(job, workers)"
        )


def refuse_codec(placement: Placement, codec: Codec | Reducer | None) -> None:
    """Raise ValueError for a codec of a placement whose numbers one replica computes."""
    if codec is not None:
        raise ValueError(
            f"codec={codec} of {placement.name}() is not simulated: leave it out, or run "
            f"{placement.name}() with train"
        )


@dataclass(frozen=True, repr=False)
class Placement(Value, OptionSupport, ABC):
    """A strategy that trains replicas or parts of one module by PyTorch's own engine.

    `bind` sets it up on a worker; `forecast` predicts its collectives and memory. A conformance
    test compares the two for every placement.
    """

    support: ClassVar[Literal["stable", "beta", "experimental"]]
    needs_less: ClassVar[str] = (
        "more workers, a smaller global batch, or hybrid(shard=…, tensor=…) with larger axes"
    )
    """Suggestion for the message if a worker runs out of memory."""

    obstacles: ClassVar[dict[str, str]] = {
        "compile": "it computes parts of the model, and torch.compile compiles a whole one: leave "
        "it out, or use allreduce() or zero(stage=1)",
        "sync_batchnorm": "its workers do not have whole samples of a batch each, whose statistics "
        "could be summed: use allreduce() or zero(stage=1)",
        "sparse_gradients": "it exchanges dense gradients: use sparse=False, or allreduce()",
    }
    """Most placements divide the model; those that keep a whole replica support more."""
    gradient_norms: ClassVar[bool] = False
    """Whether every worker has the whole mean gradient, whose norm can be recorded."""

    alternates: ClassVar[bool] = False
    """See `RuntimeNeeds.alternates`."""
    binds_again: ClassVar[bool] = False
    """Whether workers make their parts of the model anew for another group, with as many replicas
    as it has, instead of `regroup`."""

    @property
    def preloads(self) -> tuple[str, ...]:
        """See `RuntimeNeeds.preloads`. DDP, FSDP and DTensor load what compiles models."""
        return ("torch._dynamo",)

    @property
    def deals_by_speed(self) -> bool:
        """Whether workers that compute faster get more samples of a global batch."""
        return False

    def distinct_ranks(self, workers: int) -> Sequence[int]:  # noqa: ARG002 - some need it
        """Ranks that hold different parts; every other rank holds as much as one of these."""
        return (0,)

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot run with this many workers."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, got {workers}")

    def needs(self, workers: int) -> RuntimeNeeds:
        """The features that this strategy needs from its runtime."""
        return RuntimeNeeds(
            collectives=True,
            lockstep=True,
            by_rank=True,
            calling_alike=self.calling_alike(workers),
            alternates=self.alternates,
            preloads=self.preloads,
        )

    def calling_alike(self, workers: int) -> int:  # noqa: ARG002 - the contract
        """Parts of a batch whose workers must call the model equally often; 0 if they need not."""
        return 0

    def virtual_form(self) -> LockstepProtocol | None:
        """The protocol that this strategy is on a virtual clock.

        None, as by default, if one replica computes the numbers, which are those of `single`, and
        `program` states what takes time.
        """
        return None

    def check_virtual(self, *, numbers: bool = True) -> None:
        """Raise ValueError, naming the fix, if its options are not simulated.

        Args:
            numbers: whether gradients are computed; otherwise only times are simulated.
        """

    def with_interval(self, every: int) -> Placement:
        """The same strategy, whose replicas synchronise every so many steps."""
        raise ValueError(f"{self} synchronises in every step, not in every {every}: use hybrid()")

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """What each worker computes, exchanges and waits for in a step with a full batch.

        By default the collectives of the forecast follow each other at equal intervals, and workers
        wait for each of them.

        Args:
            job: the job.
            workers: number of workers.
            conditions: what is known of how workers compute.

        Raises:
            ValueError: its forecast does not say who exchanges what.
        """
        del conditions
        from manyhands.collectives import evenly, program_of, waiting  # noqa: PLC0415 - beside its use

        forecast = self.forecast_job(job, workers)
        one_axis = {one.workers or workers for one in forecast.step} <= {workers}
        if forecast.by_worker or forecast.outer or not one_axis:
            raise ValueError(
                f"the workers of {self} exchange different things, and its times are not "
                "simulated: define program(job, workers), or run it with train"
            )
        times = evenly(len(forecast.step), 0.0, 1.0)
        timed = [
            waiting(one.kind, one.size, at) for one, at in zip(forecast.step, times, strict=True)
        ]
        return program_of(timed, workers, ((one.kind, one.size) for one in forecast.start))

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:
        """Raise ValueError, naming the fix, if it cannot run on these hosts and devices."""

    def check_job(self, job: Job, workers: int) -> None:  # noqa: ARG002 - the contract
        """Raise ValueError, naming the fix, if it cannot train this job.

        Called before any process is started.
        """
        self.check_options(job)

    @abstractmethod
    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Create this worker's part of the job's model, to be trained with the group.

        Random generators have been seeded with the job's seed, so all workers get equal values.
        """

    def rigidity(self, job: Job) -> str:  # noqa: ARG002 - some need it
        """Why a run ends if it loses a worker; empty if the others continue and it is replaced."""
        return "its workers hold different parts of the model"

    @property
    def row(self) -> int:
        """Workers that hold parts of one replica; a worker is lost with all of its row."""
        return 1

    def with_replicas(self, count: int) -> Placement:
        """The same strategy with another number of replicas; only if `binds_again`."""
        raise NotImplementedError(f"{self} keeps its number of replicas")

    def regroup(self, bound: Bound, group: Group, waits: Waits, seed: int) -> None:
        """Train with another group from now on; only if `rigidity` is empty."""
        raise NotImplementedError(f"{self} keeps its first group")

    @abstractmethod
    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """The collectives of one worker in order, with their bytes, and its memory.

        A placement that exchanges activations also needs the sizes of its layers.
        """

    def shared_bytes(self, job: Job, workers: int) -> int:  # noqa: ARG002 - the contract
        """Bytes of memory that the workers share, all of them together, if they are on one host."""
        return 0

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """The forecast of a step with a full batch, without allocating the model's parameters."""
        from manyhands.parameters.initial.deferred import on_meta  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.tensor_sizes import sizes  # noqa: PLC0415

        return self.forecast(sizes(on_meta(job.model)), workers)
