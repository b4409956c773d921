"""Sizes in place of tensors, for runs that answer questions of time alone.

A payload is its number of bytes, the model is the layout of its parameters, and a gradient is the
time that it takes. Protocols, servers, network and leases do the same as with numbers, so all times
are the same, and no second model of times has to be kept equal
(`docs/decisions/0055-fast-questions.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, cast

import torch

from manyhands.data.taking import preview
from manyhands.parameters import Copy
from manyhands.parameters.gradients import build
from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.initial.shard_values import make
from manyhands.parameters.layout import Layout
from manyhands.parameters.references import References
from manyhands.seeding import seed_all
from manyhands.virtual.remembered import remembered
from manyhands.virtual.worker.replica import VirtualReplica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import LeasedBatch
    from manyhands.job import Job
    from manyhands.leasing.leases import Lease
    from manyhands.parameters import Holder, Shard
    from manyhands.virtual.worker.replica import VirtualBatch
    from manyhands.virtual.worker.shared_model import Replication, SharedModel

_PREVIEW: Final = 2
"""Samples of the batch that shows in which order shards are completed."""


class Size:
    """A payload or a buffer without content: a number of bytes."""

    __slots__ = ("nbytes",)

    dtype: ClassVar[torch.dtype] = torch.uint8
    is_given_away: ClassVar[bool] = False

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def dim(self) -> int:
        """It is flat."""
        return 1

    def clone(self) -> Size:
        """Itself: there is no content that could change."""
        return self

    def copy_(self, other: Size) -> Size:  # noqa: ARG002 - a tensor's method
        """Nothing is copied."""
        return self

    def __getitem__(self, where: slice) -> Size:
        return Size(len(range(*where.indices(self.nbytes))))

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"the `{name}` of a payload")


def size(nbytes: int) -> torch.Tensor:
    """A `Size`, for those who expect a tensor and use only what a `Size` has."""
    return cast("torch.Tensor", Size(nbytes))


class SizedHolder:
    """A server's shard without content: all operations of `Holder`, none of which takes effect."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.bytes = size(shard.nbytes)
        self.references = References()
        self.refused: dict[str, int] = {}
        self.revision = 0

    @classmethod
    def of(cls, shard: Shard) -> Holder:
        """The holder of a shard, for those who expect a `Holder`."""
        return cast("Holder", cls(shard))

    def _nothing(self, *_arguments: object, **_more: object) -> None:
        pass

    add = step = clip = move = shift = scale = drop = descend = remember = forget = _nothing
    forget_worker = _nothing

    def not_finite(self, _update: object) -> str:
        """There are no numbers."""
        return ""

    def _content(self, *_arguments: object) -> torch.Tensor:
        return self.bytes

    take_sum = gathered = recall = compensate = _content

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"the `{name}` of a server's shard")


class SizedModel:
    """Stands in for `SharedModel`: knows the sizes of the parameters, and computes nothing.

    Args:
        job: the job that defines the model. It is created on the meta device, where it needs no
            memory. With several shards a batch of two samples is computed, for the order in which a
            backward pass completes them.
        shards: number of shards of the parameters.
        workers: number of workers that a global batch is divided among.
    """

    streams = False
    """Leases are not read, so a stream has no end: a run needs another limit."""

    def __init__(self, job: Job, shards: int, workers: int) -> None:
        self.layout, self.rate, self.order = _known(job, shards, workers)
        self._room = [size(shard.nbytes) for shard in self.layout.shards]

    @classmethod
    def of(cls, job: Job, shards: int, workers: int) -> SharedModel:
        """The model, for those who expect a `SharedModel`."""
        return cast("SharedModel", cls(job, shards, workers))

    def room(self) -> list[torch.Tensor]:
        """Buffers for parameters; all workers use the same ones, because they have no content."""
        return self._room

    first_parameters = room

    def first_buffers(self) -> list[torch.Tensor]:
        """Buffers of the model (batch-norm statistics) are left out."""
        return []

    def optimizer(self, parameters: Sequence[torch.Tensor]) -> None:
        """There is no optimizer."""

    def apply(self, worker: Replication, weight: float, dealt: int) -> None:
        """An optimizer step has no effect; its time is part of the gradient's."""

    def adopt(self, worker: Replication) -> None:
        """There are no buffers to adopt."""

    def expect(self, worker: Replication, lease: Lease, due: float) -> None:
        """Nothing is computed."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"the `{name}` of the model")


class SizedReplica(VirtualReplica):
    """A replica without content: computing takes its time, and has no result."""

    def _compute(self, batch: VirtualBatch) -> list[int]:  # noqa: ARG002 - the contract
        """The shards, in the order in which a backward pass completes them."""
        return cast("SizedModel", self._shared_model).order

    def draw(self, by: float, server: int | None = None) -> None:
        """No effect."""

    def scale(self, by: float) -> None:
        """No effect."""

    def trade(self, by: float) -> None:
        """No effect."""

    def lay_aside(self, server: int | None = None) -> None:
        """No effect."""

    def compare(self, by: float) -> None:
        """No effect."""

    def moved(self, server: int) -> torch.Tensor:
        """The size of the difference to the second buffer."""
        return self.replication.parameters[server]

    def update(self, server: int) -> torch.Tensor:
        """The size of the update for a server."""
        return self.replication.parameters[server]

    def unused(self, server: int) -> tuple[int, ...]:  # noqa: ARG002 - as with numbers
        """All parameters are taken as used."""
        return ()

    def apply(self, batch: LeasedBatch, counts: int | None = None) -> None:  # noqa: ARG002
        """Count the update, where workers write shared parameters themselves."""
        if batch.samples:
            self._note_write()


def _on_meta(job: Job) -> tuple[Layout, float]:
    """The layout of the whole model as one shard, and the initial learning rate."""
    seed_all(job.seed)
    try:
        model: Any = on_meta(lambda: build(job))
        optimizer = job.make_optimizer(model)
    except Exception:  # noqa: BLE001 - a model that cannot be created without values is created with them
        model, optimizer = make(job)
    return Layout.of(model, optimizer, 1), float(optimizer.param_groups[0]["lr"])


def _known(job: Job, shards: int, workers: int) -> tuple[Layout, float, list[int]]:
    """Sizes, learning rate and order of shards; found once for runs of the same model."""
    key = ("sizes", shards, min(_PREVIEW, job.batch_sizes.at(0) // workers))
    layout, rate, order = remembered(job, key, lambda: _look(job, shards, workers))
    return layout, rate, list(order)


def _look(job: Job, shards: int, workers: int) -> tuple[Layout, float, list[int]]:
    if shards == 1:
        return (*_on_meta(job), [0])
    copy = Copy(job, shards, torch.device("cpu"))
    return copy.layout, copy.rate, _order(job, copy, workers)


def _order(job: Job, copy: Copy, workers: int) -> list[int]:
    """The shards in the order in which a backward pass completes them, found with a small batch."""
    samples = max(1, min(_PREVIEW, job.batch_sizes.at(0) // workers))
    inputs, targets = job.divide(preview(job.data, job.collate_fn, samples))
    completed: list[int] = []
    copy.gradient(inputs, targets, samples, completed.append)
    return completed


def _refuse(what: str) -> NoReturn:
    raise TypeError(
        f"{what} was used, which a time-only run does not have, because it computes no numbers: "
        "simulate this strategy without time-only"
    )
