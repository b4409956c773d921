"""Pipeline parallelism: layers on different workers, which process microbatches concurrently."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import PLAIN, Forecast
from manyhands.placements.pipelines.messages import messages_of
from manyhands.placements.placement import Placement, check_layers
from manyhands.schedules import ALL, Durations, Name, by_name, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions, LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.placements.pipelines.stage_group import StageGroup
    from manyhands.runtime_needs import Option
    from manyhands.schedules import Table
    from manyhands.splitting import Chain
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

    Find = Callable[[nn.Module], TensorPlan]

_MOST_STAGES = 256
_MOST_MICROBATCHES = 1024


@dataclass(frozen=True, repr=False)
class Pipeline(Placement):
    """Give each worker some of the layers, and pass microbatches of a batch through them.

    A model is split into stages of about equal time, at points where a single tensor passes; a
    batch is split into microbatches. While a stage computes one, the next stage computes the one
    before. Each of p workers is idle for a part of every step, the *bubble*: (p − 1)/(m + p − 1) of
    it with m microbatches under `gpipe` and `one_f_one_b`, less under `interleaved` and
    `zero_bubble`, and none under `pipedream`, which does not wait and so has stale parameters.

    Use it for models that are too large for one worker, on links that are too slow for other
    placements: one tensor is sent per microbatch and stage boundary, forward and backward.

    Example: `pipeline(schedule=zero_bubble)`

    Paper: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, NeurIPS 2019; Narayanan et al., PipeDream: Generalized Pipeline Parallelism for
    DNN Training, SOSP 2019.
    """

    name: ClassVar[str] = "pipeline"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "activations are exchanged, and every one is needed whole"
    }

    stages: int | None = None
    """Number of stages of the model. By default one per worker, and two under `interleaved`."""
    microbatches: int = 8
    """Number of microbatches of a batch. More make the bubble smaller, and each of them less
    efficient."""
    schedule: Name | str = "one_f_one_b"
    """The order of computations: gpipe, one_f_one_b, interleaved or zero_bubble, with one update
    per batch; or pipedream, with one update per microbatch; or, in quotes, the name of a schedule
    that a script registers."""
    split_points: tuple[str, ...] = ()
    """Names of the layers at which stages begin, all but the first stage. By default each layer's
    time and memory are measured, and the stages balanced."""

    def __post_init__(self) -> None:
        for name, most in (("stages", _MOST_STAGES), ("microbatches", _MOST_MICROBATCHES)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {value}")
        by_name(self.schedule)
        if self.split_points and self.stages not in (None, len(self.split_points) + 1):
            raise ValueError(
                f"{len(self.split_points)} split_points make {len(self.split_points) + 1} stages, "
                f"got stages={self.stages}: leave out one of the two"
            )

    def obstacle(self, option: Option) -> str:
        """As in `Placement`; pipedream has no moment after a global batch."""
        if self.schedule == "pipedream" and option == "ema":
            return (
                "pipedream updates after every microbatch, each stage at another time: leave it "
                "out, or use another schedule"
            )
        return super().obstacle(option)

    def check(self, workers: int) -> None:
        """Raise ValueError if there is no schedule for these stages, microbatches and workers."""
        super().check(workers)
        table = self.table(workers)
        if self.schedule not in ALL:
            replay(table, Durations.even(table.stages, 1.0, 1.0, 1.0))

    def table(self, workers: int, microbatches: int | None = None) -> Table:
        """The schedule: for each worker, its computations in order."""
        schedule = by_name(self.schedule)
        return schedule(self.stages_on(workers), microbatches or self.microbatches, workers)

    def stages_on(self, workers: int) -> int:
        """Number of stages for a number of workers."""
        if self.split_points:
            return len(self.split_points) + 1
        return self.stages or workers * (2 if self.schedule == "interleaved" else 1)

    def check_job(self, job: Job, workers: int, find: Find | None = None) -> None:
        """Raise ValueError if the model cannot be split into stages, or a batch into microbatches.

        A model that cannot be created on the meta device is checked when it is trained. Layers that
        `find` splits along `tensor` stay in one stage.
        """
        from manyhands.splitting import Unsplittable  # noqa: PLC0415 - torch is lazy

        super().check_job(job, workers)
        if job.objective is not None:
            raise ValueError(
                f"{self} computes the loss from the outputs of the last stage, and an objective "
                "calls the whole model: give loss=loss(outputs, targets) and pairs (input, "
                "target), or use allreduce() or fully_sharded()"
            )
        smallest = min(size for _, size in job.batch_sizes.changes)
        if smallest < self.microbatches:
            raise ValueError(
                f"a global batch of {smallest} samples cannot be split into {self.microbatches} "
                f"microbatches: use microbatches={smallest} or fewer"
            )
        if job.micro_batch is not None or job.autocast is not None:
            raise ValueError(
                "a pipeline supports neither micro_batch nor autocast: leave them out of the job, "
                "and set the pipeline's microbatches"
            )
        if self.schedule == "pipedream" and job.clip is not None:
            raise ValueError(
                "Job(clip=...) needs the norm of the whole gradient, which no stage of pipedream "
                "knows: leave it out, or use another schedule"
            )
        try:
            self.outline(job, workers, find)
        except Unsplittable:
            raise
        except Exception:  # noqa: BLE001, S110 - see above
            pass

    def outline(
        self, job: Job, workers: int, find: Find | None = None
    ) -> tuple[nn.Module, Chain, torch.Tensor]:
        """The job's model on the meta device, its pieces, and sample inputs."""
        import torch  # noqa: PLC0415 - torch is lazy

        from manyhands.placements.model.sample_batch import example  # noqa: PLC0415
        from manyhands.placements.pipelines.stages import find_pieces  # noqa: PLC0415

        inputs = example(job, 2).to("meta")
        with torch.device("meta"):
            model = job.model()
        plan = find(model) if find else None
        pieces = find_pieces(model, inputs, self.stages_on(workers), self.split_points, plan)
        return model, pieces, inputs

    def distinct_ranks(self, workers: int) -> Sequence[int]:
        """All ranks: each has its own stages."""
        return range(workers)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Create the model, and keep this worker's stages of it."""
        from manyhands.placements.pipelines.stage_group import StageGroup  # noqa: PLC0415 - torch is lazy

        return self.bind_stage_group(job, StageGroup(group, group.whole), device, waits)

    def bind_stage_group(
        self, job: Job, stage_group: StageGroup, device: torch.device, waits: Waits
    ) -> Bound:
        """As `bind`, for one of several pipelines on a mesh."""
        from manyhands.placements.pipelines.lockstep import LockstepPipeline  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.pipedream import PipeDreamPipeline  # noqa: PLC0415
        from manyhands.placements.pipelines.stages import make_stages  # noqa: PLC0415

        if device.type == "cuda":
            raise ValueError(
                f"{self} distinguishes messages between two workers by tags, which NCCL does not "
                "support: on GPUs use fully_sharded() or tensor(), see docs/gpu.md"
            )
        workers = stage_group.group.size
        samples = -(-job.batch_sizes.at(0) // (stage_group.replicas * self.microbatches))
        made = make_stages(job, stage_group, device, self.held(workers), samples, self.split_points)
        arguments = (job, stage_group.group, device, waits, made, self.microbatches)
        if self.schedule == "pipedream":
            return PipeDreamPipeline(*arguments)
        count = partial(self.most_microbatches, workers=workers)
        return LockstepPipeline(*arguments, count, partial(self.table, workers), stage_group)

    def shared_bytes(self, job: Job, workers: int) -> int:  # noqa: ARG002 - the contract
        """As in `Placement`: what workers send to each other passes through it."""
        from manyhands.transport.shared.posts import pipeline_room  # noqa: PLC0415 - torch is lazy

        return pipeline_room(workers)

    def held(self, workers: int) -> list[int]:
        """For each stage, the largest number of microbatches that are in flight on it."""
        table = self.table(workers)
        return [table.in_flight(table.rank_of(stage)) for stage in range(table.stages)]

    def most_microbatches(self, samples: int, workers: int) -> int:
        """Number of microbatches for a number of samples: fewer, if there are too few samples."""
        count = min(self.microbatches, samples)
        while self._table_or_none(workers, count) is None:
            count -= 1
        return count

    def _table_or_none(self, workers: int, microbatches: int) -> Table | None:
        try:
            return self.table(workers, microbatches)
        except ValueError:
            return None

    def forecast(
        self, parameters: Sequence[TensorSize], workers: int, layers: Sequence[LayerSize] = ()
    ) -> Forecast:
        """One message per microbatch and stage boundary in each direction, and the loss to all.

        Args:
            parameters: their `unit` is the number of a stage.
            workers: number of workers.
            layers: the calls of every stage, one per microbatch, named by the stage's number, with
                the role "stage"; `forecast_job` finds them.
        """
        check_layers(self, layers, "stage")
        table = self.table(workers)
        memory = [0] * workers
        for tensor in parameters:
            memory[table.rank_of(int(tensor.unit))] += tensor.size * (2 if tensor.trained else 1)
        sent = messages_of(table, layers, weighted=self.schedule != "pipedream")
        return Forecast(start=(), step=(*chain.from_iterable(sent),), memory=max(memory))

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """The forecast of a step with a full batch, without allocating the model's parameters.

        Without `split_points`, stages are balanced by measured times when the model is trained, and
        by multiplications here. The messages are the same for a model whose layers all have outputs
        of one size, such as a transformer; the memory may differ.
        """
        from manyhands.parameters.weights.microbatches import sizes_of  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.stages import inspect_stages  # noqa: PLC0415

        model, pieces, inputs = self.outline(job, workers)
        samples = sizes_of(job.batch_sizes.at(0), self.microbatches)
        looked = inspect_stages(
            model, pieces, inputs, self.held(workers), self.split_points, samples
        )
        return self.forecast(looked[0], workers, looked[1])

    def check_virtual(self, *, numbers: bool = True) -> None:
        """Raise ValueError for a schedule whose numbers are not those of one replica."""
        del numbers
        if self.schedule == "pipedream":
            raise ValueError(
                "schedule=pipedream updates after every microbatch with stale parameters, and is "
                "not simulated: use another schedule, or run pipeline() with train"
            )

    def program(self, job: Job, workers: int, conditions: ComputeConditions = PLAIN) -> StepProgram:
        """The actions of the schedule's table, and the messages between them.

        A stage takes a share of the time by its pieces, or by its multiplications.
        """
        from manyhands.parameters.weights.microbatches import sizes_of  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.program import pipeline_program  # noqa: PLC0415
        from manyhands.placements.pipelines.stages import inspect_stages, stage_work  # noqa: PLC0415

        model, pieces, inputs = self.outline(job, workers)
        samples = sizes_of(job.batch_sizes.at(0), self.microbatches)
        about = (inputs, self.held(workers), self.split_points, samples, conditions.pieces)
        _, layers = inspect_stages(model, pieces, *about)
        return pipeline_program(self.table(workers), layers, stage_work(pieces, *about))
