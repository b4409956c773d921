"""The option `aggregate` of protocols in rounds, and the operation of a server behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from manyhands.notation import Value
from manyhands.protocols.actions import ShardOperation
from manyhands.protocols.aggregation.aggregator import Aggregator

if TYPE_CHECKING:
    import torch

    from manyhands.job import Job
    from manyhands.parameters import Holder, Shard


@dataclass(frozen=True, repr=False)
class Aggregated(Value):
    """The field of protocols whose servers have the updates of all workers at once."""

    aggregate: Aggregator | Literal["mean"] = field(default="mean", kw_only=True)
    """How one update is made of those of a round: their mean, weighted by samples; or median,
    trimmed(f), krum(f), clipped(c), which limit what wrong workers can do. With any of these a
    server keeps all updates of a round."""

    @property
    def aggregator(self) -> Aggregator | None:
        """The aggregator; None for the mean."""
        return None if isinstance(self.aggregate, str) else self.aggregate

    def check_aggregate(self, updates: int, servers: int) -> None:
        """Check that the aggregator can do what it promises.

        Args:
            updates: updates of a round.
            servers: servers among which an update is divided.

        Raises:
            ValueError: it cannot; the message names the fix.
        """
        chosen = self.aggregator
        if chosen is None:
            return
        if updates < chosen.least:
            raise ValueError(
                f"aggregate={chosen} needs at least {chosen.least} updates in a step, and "
                f"{self} has {updates}: use more workers, or a smaller "
                f"{chosen.limiting}"
            )
        if chosen.needs_whole and servers > 1:
            raise ValueError(
                f"aggregate={chosen} needs the norm of whole updates, and {self} divides them "
                f"among {servers} servers: use servers=1"
            )

    def check_aggregate_job(self, job: Job) -> None:
        """Raise ValueError if the updates of a step of this job cannot be aggregated."""
        chosen = self.aggregator
        if chosen is None:
            return
        if job.objective_names:
            raise ValueError(
                f"aggregate={chosen} works with one objective, and this job has "
                f"{len(job.objective_names)}: use aggregate=mean"
            )
        if job.batch_sizes.at(0) < chosen.least:
            raise ValueError(
                f"aggregate={chosen} needs at least {chosen.least} updates in a step, and a global "
                f"batch of {job.batch_sizes.at(0)} gives as many workers a sample: use a larger one"
            )


@dataclass(frozen=True)
class Combine(ShardOperation):
    """Replace several sums, each with one update, by one sum with what they are combined to."""

    pots: tuple[int, ...] = ()
    """The indices of the sums."""
    weights: tuple[float, ...] = ()
    """By sum, its weight."""
    aggregator: Aggregator | None = None

    def apply(self, shard: Holder, payload: torch.Tensor | None) -> None:
        """Combine the updates."""
        del payload
        assert self.aggregator is not None
        unused = frozenset.intersection(*(shard.take_unused(pot) for pot in self.pots))
        updates = [shard.take_sum(1.0, pot) for pot in self.pots]
        rows = [_vectors(shard.shard, update) for update in updates]
        counted = len(shard.shard.flat_by_dtype)
        combined = self.aggregator.combine(rows, self.weights, counted)
        result = updates[0].clone()
        for flat, vector in zip(shard.shard.flat_by_dtype, combined, strict=False):
            flat.view(result).copy_(vector)
        for fragment, vector in zip(shard.shard.buffers, combined[counted:], strict=True):
            fragment.bytes(result).copy_(vector.view(result.dtype))
        shard.add(result, 1.0)
        shard.note_unused(unused)


def _vectors(shard: Shard, update: torch.Tensor) -> list[torch.Tensor]:
    """The parameters of an update by dtype, as views, and copies of its buffers."""
    buffers = [part.bytes(update).clone().view(part.dtype) for part in shard.buffers]
    return [*(flat.view(update) for flat in shard.flat_by_dtype), *buffers]
