"""Layers on different workers, with microbatches that follow each other through them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import Forecast
from manyhands.placements.pipelines.messages import messages_of
from manyhands.placements.placement import Placement, check_layers
from manyhands.schedules import ALL, Name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from manyhands.costs import LayerSize, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.placements.model.tensor_plan import TensorPlan
    from manyhands.placements.pipelines.stage_group import StageGroup
    from manyhands.schedules import Table
    from manyhands.splitting import Chain
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

    Find = Callable[[nn.Module], TensorPlan]

_MOST_STAGES = 256
_MOST_MICROBATCHES = 1024


@dataclass(frozen=True, repr=False)
class Pipeline(Placement):
    """Give each worker some of the layers, and let parts of a batch follow each other through them.

    A model is split into stages where one tensor passes, so that all take about as long; a batch
    is split into microbatches. While a stage computes one, the next stage computes the one before.
    Of p workers each is idle for a part of every step, the *bubble*: (p − 1)/(m + p − 1) of it
    with m microbatches under `gpipe` and `one_f_one_b`, less under `interleaved` and
    `zero_bubble`, and none under `pipedream`, which does not wait and so has stale parameters.

    Use it for models that are too large for a worker, on links that are too slow for anything
    else: what is sent is one tensor per microbatch and border, there and back.

    Example: `pipeline(schedule=zero_bubble)`

    Paper: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, NeurIPS 2019; Narayanan et al., PipeDream: Generalized Pipeline Parallelism for
    DNN Training, SOSP 2019.
    """

    name: ClassVar[str] = "pipeline"
    support: ClassVar[Literal["beta"]] = "beta"

    stages: int | None = None
    """Into how many the model is split. By default one per worker, and two under `interleaved`."""
    microbatches: int = 8
    """Into how many a batch is split. More make the bubble smaller, and each less efficient."""
    schedule: Name = "one_f_one_b"
    """The order in which a worker computes: gpipe, one_f_one_b, interleaved, zero_bubble, all with
    one update per batch; or pipedream, with one per microbatch."""
    split_points: tuple[str, ...] = ()
    """The layers at which stages begin, all but the first, by their names in the model. By default
    each layer's time and memory are measured and the stages made alike."""

    def __post_init__(self) -> None:
        for name, most in (("stages", _MOST_STAGES), ("microbatches", _MOST_MICROBATCHES)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, not {value}")
        if self.split_points and self.stages not in (None, len(self.split_points) + 1):
            raise ValueError(
                f"stages that begin at {len(self.split_points)} layers and the first are "
                f"{len(self.split_points) + 1}, not {self.stages}; leave out one of the two"
            )

    def check(self, workers: int) -> None:
        """There must be a schedule for so many stages, microbatches and workers."""
        super().check(workers)
        self.table(workers)

    def table(self, workers: int, microbatches: int | None = None) -> Table:
        """Who computes what in which order."""
        schedule = ALL[self.schedule]
        return schedule(self.stages_on(workers), microbatches or self.microbatches, workers)

    def stages_on(self, workers: int) -> int:
        """How many stages there are on so many workers."""
        if self.split_points:
            return len(self.split_points) + 1
        return self.stages or workers * (2 if self.schedule == "interleaved" else 1)

    def check_job(self, job: Job, workers: int, find: Find | None = None) -> None:
        """The model must have as many layers that can be told apart, and a batch as many samples.

        Not every model can be made without its numbers; what cannot is split when it is trained.
        Layers that `find` says are split themselves stay together.
        """
        from manyhands.splitting import Unsplittable  # noqa: PLC0415 - torch is lazy

        smallest = min(size for _, size in job.batch_sizes.changes)
        if smallest < self.microbatches:
            raise ValueError(
                f"a global batch of {smallest} cannot be split into {self.microbatches} "
                f"microbatches; take at most {smallest} of them"
            )
        if job.micro_batch is not None or job.autocast is not None:
            raise ValueError(
                "a pipeline computes microbatches, in the type of what passes between its stages: "
                "leave out micro_batch and autocast, and choose microbatches"
            )
        if self.schedule == "pipedream" and job.clip is not None:
            raise ValueError(
                "clip limits the norm of the whole gradient, which no stage of pipedream ever "
                "knows; leave it out, or use another schedule"
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
        """The job's model without its numbers, and its pieces."""
        import torch  # noqa: PLC0415 - torch is lazy

        from manyhands.placements.model.sample_batch import example  # noqa: PLC0415
        from manyhands.placements.pipelines.stages import find_pieces  # noqa: PLC0415

        inputs = example(job, 2).to("meta")
        with torch.device("meta"):
            model = job.model()
        plan = find(model) if find else None
        pieces = find_pieces(model, inputs, self.stages_on(workers), self.split_points, plan)
        return model, pieces, inputs

    def unlike(self, workers: int) -> Sequence[int]:
        """Each has stages of its own."""
        return range(workers)

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Make the model, keep this worker's stages of it and let go of the others."""
        from manyhands.placements.pipelines.stage_group import StageGroup  # noqa: PLC0415 - torch is lazy

        return self.bind_line(job, StageGroup(group, group.whole), device, waits)

    def bind_line(self, job: Job, line: StageGroup, device: torch.device, waits: Waits) -> Bound:
        """The same for one of several pipelines side by side."""
        from manyhands.placements.pipelines.lockstep import LockstepPipeline  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.pipedream import PipeDreamPipeline  # noqa: PLC0415
        from manyhands.placements.pipelines.stages import make_stages  # noqa: PLC0415

        if device.type == "cuda":
            raise ValueError(
                f"{self} tells the tensors that are under way between two workers apart by tags, "
                "which NCCL ignores: on GPUs use fully_sharded() or tensor(), see docs/gpu.md"
            )
        workers = line.group.size
        samples = -(-job.batch_sizes.at(0) // (line.replicas * self.microbatches))
        made = make_stages(job, line, device, self.held(workers), samples, self.split_points)
        arguments = (job, line.group, device, waits, made, self.microbatches)
        if self.schedule == "pipedream":
            return PipeDreamPipeline(*arguments)
        count = partial(self.most_microbatches, workers=workers)
        return LockstepPipeline(*arguments, count, partial(self.table, workers), line)

    def held(self, workers: int) -> list[int]:
        """For each stage, how many microbatches its worker holds at once."""
        table = self.table(workers)
        return [table.in_flight(table.rank_of(stage)) for stage in range(table.stages)]

    def most_microbatches(self, samples: int, workers: int) -> int:
        """Into how many so many samples are split: fewer, if there are too few for all."""
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
        """One message for every microbatch and border, there and back; and the loss, to all.

        Args:
            parameters: their `unit` is the number of a stage.
            workers: how many there are.
            layers: every stage's calls, one for each microbatch, with its number for a name and
                the role "stage"; `forecast_job` looks at them.
        """
        check_layers(self, layers, "stage")
        table = self.table(workers)
        memory = [0] * workers
        for tensor in parameters:
            memory[table.rank_of(int(tensor.unit))] += tensor.size * (2 if tensor.trained else 1)
        sent = messages_of(table, layers)
        return Forecast(start=(), step=(*chain.from_iterable(sent),), memory=max(memory))

    def forecast_job(self, job: Job, workers: int) -> Forecast:
        """What is sent in a step with a whole batch, without making the model's parameters.

        Where it will be split is measured only when it is trained; here the stages take about as
        many multiplications, unless it is said where they begin. What is sent is the same for a
        model whose layers all give as much, such as a transformer; what is held is not.
        """
        from manyhands.parameters.microbatches import sizes_of  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.pipelines.stages import look_at_stages  # noqa: PLC0415

        model, pieces, inputs = self.outline(job, workers)
        samples = sizes_of(job.batch_sizes.at(0), self.microbatches)
        looked = look_at_stages(
            model, pieces, inputs, self.held(workers), self.split_points, samples
        )
        return self.forecast(looked[0], workers, looked[1])
