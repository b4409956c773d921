"""Buckets of gradients as DDP gives them to a communication hook, and state that follows them.

DDP reduces one bucket with all gradients in the first step and builds others before the second,
in the order in which gradients arrived. What was not sent of a parameter must follow it to its new
bucket, or error feedback would add it to another parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from manyhands.codecs.kernels.finite import not_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch._C._distributed_c10d import GradBucket

    from manyhands.codecs.kernels.finite import NotFinite


@dataclass(frozen=True, eq=False)
class Bucket:
    """Gradients that are reduced together, as one vector."""

    index: int
    """Its place in the order of buckets, which all workers share."""
    names: tuple[str, ...]
    """The names of its parameters."""
    shapes: tuple[torch.Size, ...]
    """The shapes of its parameters."""
    vector: torch.Tensor
    """All gradients of the bucket, parameter after parameter; the result is written here."""

    @classmethod
    def of(cls, given: GradBucket, names: Mapping[int, str]) -> Bucket:
        """The bucket of a hook's argument; `names` has the name of each parameter by its id."""
        parameters = given.parameters()
        return cls(
            given.index(),
            tuple(names[id(one)] for one in parameters),
            tuple(one.shape for one in parameters),
            given.buffer(),
        )

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a vector of this bucket's size that belong to each parameter, as views."""
        return list(vector.split_with_sizes([shape.numel() for shape in self.shapes]))


def without_not_finite(bucket: Bucket) -> NotFinite:
    """Make a bucket that has NaN or infinity one of zeros; return what it had.

    A codec might make finite numbers of it, and a residual would keep it.
    """
    found = not_finite(bucket.vector)
    if found:
        bucket.vector.zero_()
    return found


S = TypeVar("S")


class BucketStates(Generic[S]):
    """The state of each bucket; what was not sent is carried over if buckets are built again.

    Args:
        make: the state of a new bucket, from what was not sent of its gradients before, if
            anything.
        unsent: what a state has not sent yet, as a vector of its bucket; None for nothing.
    """

    def __init__(
        self,
        make: Callable[[Bucket, torch.Tensor | None], S],
        unsent: Callable[[S], torch.Tensor | None],
    ) -> None:
        self._make = make
        self._unsent = unsent
        self._states: dict[int, tuple[Bucket, S]] = {}
        self._carried: dict[str, torch.Tensor] = {}

    def of(self, bucket: Bucket) -> S:
        """The state of a bucket."""
        bucket_before, state = self._states.get(bucket.index, (None, None))
        if bucket_before is not None and state is not None and bucket_before.names == bucket.names:
            return state
        if bucket_before is not None:
            self._carried.update(self.unsent())
            self._states.clear()
        made = self._make(bucket, self._collect(bucket))
        self._states[bucket.index] = (bucket, made)
        return made

    def carry(self, unsent: Mapping[str, torch.Tensor]) -> None:
        """Begin with what was not sent before, by parameter."""
        self._carried.update({name: one.clone() for name, one in unsent.items()})

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent yet, by parameter, as vectors."""
        found = dict(self._carried)
        for bucket, state in self._states.values():
            vector = self._unsent(state)
            if vector is not None:
                found.update(zip(bucket.names, bucket.split(vector), strict=True))
        return found

    def _collect(self, bucket: Bucket) -> torch.Tensor | None:
        parts = [self._carried.pop(name, None) for name in bucket.names]
        if all(part is None for part in parts):
            return None
        return torch.cat(
            [
                bucket.vector.new_zeros(shape.numel()) if part is None else part
                for part, shape in zip(parts, bucket.shapes, strict=True)
            ]
        )
