"""Layers on different workers, with microbatches that follow each other through them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.placements.placement import Placement
from manyhands.schedules import ALL, Name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import Forecast, TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.schedules import Table
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_MOST_STAGES = 256
_MOST_MICROBATCHES = 1024


@dataclass(frozen=True, repr=False)
class Pipeline(Placement):
    """Give each worker some of the layers, and let parts of a batch follow each other through them.

    A model is cut into stages where one tensor passes, so that all take about as long; a batch is
    cut into microbatches. While a stage computes one, the next stage computes the one before. Of p
    workers each is idle for a part of every step, the *bubble*: (p − 1)/(m + p − 1) of it with m
    microbatches under `gpipe` and `one_f_one_b`, less under `interleaved` and `zero_bubble`, and
    none under `pipedream`, which updates without waiting and so with stale parameters.

    Use it for models that are too large for a worker, on links that are too slow for anything
    else: what is sent is one tensor per microbatch and cut, there and back.

    Example: `pipeline(microbatches=8, schedule=zero_bubble)`

    Paper: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, NeurIPS 2019; Narayanan et al., PipeDream: Generalized Pipeline Parallelism for
    DNN Training, SOSP 2019.
    """

    name: ClassVar[str] = "pipeline"
    support: ClassVar[Literal["beta"]] = "beta"

    stages: int | None = None
    """Into how many the model is cut. By default one per worker, and two under `interleaved`."""
    microbatches: int = 8
    """Into how many a batch is cut. More make the bubble smaller, and each less efficient."""
    schedule: Name = "one_f_one_b"
    """The order in which a worker computes: gpipe, one_f_one_b, interleaved, zero_bubble, all with
    one update per batch; or pipedream, with one per microbatch."""
    cuts: tuple[str, ...] = ()
    """The layers at which stages begin, all but the first, by their names in the model. By default
    each layer's time and memory are measured and the stages made alike."""

    def __post_init__(self) -> None:
        for name, most in (("stages", _MOST_STAGES), ("microbatches", _MOST_MICROBATCHES)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, not {value}")
        if self.cuts and self.stages not in (None, len(self.cuts) + 1):
            raise ValueError(
                f"{len(self.cuts)} cuts make {len(self.cuts) + 1} stages, not {self.stages}; "
                "leave out one of the two"
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
        if self.cuts:
            return len(self.cuts) + 1
        return self.stages or workers * (2 if self.schedule == "interleaved" else 1)

    def check_job(self, job: Job, workers: int) -> None:
        """The model must have as many layers that can be told apart."""
        import torch  # noqa: PLC0415 - torch is lazy

        from manyhands.placements.cut import example, find_pieces  # noqa: PLC0415
        from manyhands.splitting import Unsplittable  # noqa: PLC0415

        if job.global_batch < self.microbatches:
            raise ValueError(
                f"a global batch of {job.global_batch} cannot be cut into {self.microbatches} "
                f"microbatches; take at most {job.global_batch} of them"
            )
        try:
            with torch.device("meta"):
                model = job.model()
            find_pieces(model, example(job, 2).to("meta"), self.stages_on(workers), self.cuts)
        except (Unsplittable, TypeError):
            raise
        except Exception:  # noqa: BLE001, S110 - not every model can be made without its numbers
            pass

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """Make the model, keep this worker's stages of it and let go of the others."""
        from manyhands.placements.cut import cut  # noqa: PLC0415 - torch is lazy
        from manyhands.placements.piped import Piped  # noqa: PLC0415
        from manyhands.placements.streamed import Streamed  # noqa: PLC0415

        table = self.table(group.size)
        held = [table.in_flight(table.rank_of(stage)) for stage in range(table.stages)]
        samples = -(-job.global_batch // self.microbatches)
        made = cut(job, group, device, held, samples, self.cuts)
        arguments = (job, group, device, waits, made, self.microbatches)
        if self.schedule == "pipedream":
            return Streamed(*arguments)
        return Piped(*arguments, partial(self._table_or_none, group.size))

    def _table_or_none(self, workers: int, microbatches: int) -> Table | None:
        try:
            return self.table(workers, microbatches)
        except ValueError:
            return None

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        raise NotImplementedError
