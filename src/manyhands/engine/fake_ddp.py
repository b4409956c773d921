"""Model of DistributedDataParallel's memory and collectives, for dry runs on fake tensors.

DDP's reducer is C++ code that reads tensors, so it does not work on fake tensors. Its behaviour is
known: in the first step one bucket for everything, from then on buckets in the order in which
gradients arrive. Each gradient is copied into its bucket and freed, and becomes a view of it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle


class FakeDDP(nn.Module):
    """Replacement of DistributedDataParallel with `gradient_as_bucket_view` in a dry run.

    Args:
        module: the module, whose ignored parameters are left out.
        cap: bytes at which a bucket is closed.
        find_unused: whether buckets keep their first order.
        note: called with the number and the parameters of every bucket when it is complete.
    """

    def __init__(
        self,
        module: nn.Module,
        cap: int,
        note: Callable[[int, Sequence[nn.Parameter]], object],
        *,
        find_unused: bool,
    ) -> None:
        super().__init__()
        self.module = module
        self.find_unused_parameters = find_unused
        self._cap, self._note = cap, note
        alone = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        self._trained = [
            parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in alone
        ]
        self._came: list[nn.Parameter] | None = None if find_unused else []
        """The order of gradients, until the buckets are rebuilt."""
        self._quiet = False
        self._buckets: list[_Bucket] = []
        self._of: dict[int, _Bucket] = {}
        self._handles = [self._watch(parameter) for parameter in self._trained]
        self._make(self._trained, cap if find_unused else sys.maxsize)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's outputs."""
        if self._came and not self._quiet and torch.is_grad_enabled():
            came, self._came = self._came, None
            self._buckets, self._of = [], {}
            self._make(came, self._cap)
        for bucket in self._buckets:
            bucket.missing = len(bucket.places)
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients are accumulated and not reduced."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def _make(self, parameters: Sequence[nn.Parameter], cap: int) -> None:
        divided: Any = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
        numbers, _ = divided([*parameters], [cap])
        self._buckets = [_Bucket([parameters[one] for one in some]) for some in numbers]
        self._of = {key: bucket for bucket in self._buckets for key in bucket.places}

    def _watch(self, parameter: nn.Parameter) -> RemovableHandle:
        def ready(_: torch.Tensor) -> None:
            if self._quiet:
                return
            if self._came is not None:
                self._came.append(parameter)
            bucket = self._of[id(parameter)]
            bucket.take(parameter)
            if not bucket.missing:
                self._note(self._buckets.index(bucket), bucket.parameters)

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
        return handle


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [one.numel() for one in parameters]
        self.memory = parameters[0].detach().new_empty(sum(sizes))
        parts = self.memory.split_with_sizes(sizes)
        self.places = {
            id(one): part.view_as(one) for one, part in zip(parameters, parts, strict=True)
        }
        self.missing = len(sizes)

    @torch.no_grad()
    def take(self, parameter: nn.Parameter) -> None:
        """Copy a gradient into the bucket."""
        place = self.places[id(parameter)]
        if parameter.grad is not None:
            place.copy_(parameter.grad)
        parameter.grad = place
        self.missing -= 1
