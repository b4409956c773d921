"""DistributedDataParallel whose gradients are reduced by a codec or reducer."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from manyhands.codecs import BFloat16, Codec, Half
from manyhands.codecs.reducers import Factors, PowerSGD, Reducer, SparseSum
from manyhands.placements.compression.background import Background
from manyhands.placements.compression.by_parts import ByParts
from manyhands.placements.compression.exchange import Exchange
from manyhands.placements.compression.factors import FactorExchange, factored_layers
from manyhands.placements.compression.low_rank import LowRank
from manyhands.placements.compression.lower_precision import LowerPrecision
from manyhands.placements.compression.sparse import SparseMean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.placements.compression.background import BucketReduction
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class CompressedDDP(DistributedDataParallel):
    """A module whose buckets of gradients are averaged over the group as fewer bytes.

    Args:
        module: the module.
        codec: how buckets are reduced.
        group: the workers.
        waits: counts the payload.
        seed: the job's seed.
        options: options of DistributedDataParallel.
    """

    def __init__(
        self,
        module: nn.Module,
        codec: Codec | Reducer,
        group: Group,
        waits: Waits,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(module, process_group=group.handle, **options)
        self._workers = group.size
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.hook: LowerPrecision | Background
        """Reduces buckets."""
        if isinstance(codec, Half | BFloat16):
            self.hook = LowerPrecision(codec, group, waits, names)
        else:
            # On connections of its own: DDP may start collectives at the same time.
            exchange = Exchange(group.part("reduction", range(group.size)), waits)
            self.hook = Background(_reduction(codec, exchange, seed), names)
            group.at_close.append(self.hook.thread.close)
        hook = self.hook
        # DDP reads the hook's name and the names of its parameters.
        self.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def unsent(self) -> dict[str, torch.Tensor]:
        """What this worker has not sent yet, by parameter, and what a reducer keeps beside it."""
        kept = {} if isinstance(self.hook, LowerPrecision) else self.hook.reduction.kept()
        return self.residuals() | kept

    def unsent_norm(self) -> float:
        """The norm of what this worker has not sent yet, of its share of the sum."""
        # In lower precision residuals are shares of the mean.
        factor = self._workers if isinstance(self.hook, LowerPrecision) else 1
        return factor * math.hypot(*(float(one.norm()) for one in self.residuals().values()))

    def residuals(self) -> dict[str, torch.Tensor]:
        """What this worker has not sent yet, by parameter."""
        hook = self.hook
        return hook.states.unsent() if isinstance(hook, LowerPrecision) else hook.reduction.unsent()

    def carry(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send later what `unsent` returned; called before the first step."""
        if isinstance(self.hook, LowerPrecision):
            self.hook.states.carry(tensors)
        else:
            self.hook.reduction.carry(tensors)

    def carry_over(self, residuals: Mapping[str, torch.Tensor], workers: int) -> None:
        """Send later what `residuals` returned in a group of so many workers.

        Shares of a sum that is divided by the number of workers are of another size if that number
        is another; those of the mean are not.
        """
        factor = 1.0 if isinstance(self.hook, LowerPrecision) else self._workers / workers
        self.carry({name: one * factor for name, one in residuals.items()})

    def take_refused(self) -> NotFinite:
        """What this worker's gradient had since the last call, for which it sent zeros."""
        found, self.hook.refused = self.hook.refused, ""
        return found

    def reducing(self) -> AbstractContextManager[None]:
        """Context of a step's backward passes: an error of the reduction is raised as it was."""
        if isinstance(self.hook, Background):
            return self.hook.thread.raising()
        return contextlib.nullcontext()


def _reduction(codec: Codec | Reducer, exchange: Exchange, seed: int) -> BucketReduction:
    if isinstance(codec, Codec):
        return ByParts(codec, exchange, seed)
    if isinstance(codec, PowerSGD):
        return LowRank(codec, exchange, seed)
    if isinstance(codec, SparseSum):
        return SparseMean(codec, exchange)
    raise TypeError(f"{codec} does not reduce buckets of gradients")


class FactoredDDP(DistributedDataParallel):
    """A module whose linear layers' gradients are exchanged as factors, and others as they are.

    Args:
        module: the module.
        reducer: decides for which layers factors are sent.
        group: the workers.
        waits: counts the payload of factors.
        options: options of DistributedDataParallel.
    """

    def __init__(
        self, module: nn.Module, reducer: Factors, group: Group, waits: Waits, **options: Any
    ) -> None:
        layers = factored_layers(module)
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        layers = {name: layer for name, layer in layers.items() if name not in ignored}
        self._set_params_and_buffers_to_ignore_for_model(module, [*ignored, *layers])  # type: ignore[no-untyped-call]
        super().__init__(module, process_group=group.handle, **options)
        for layer in layers.values():
            # As DDP does with the parameters that it reduces.
            group.broadcast(layer.weight.data)
        exchange = Exchange(group.part("reduction", range(group.size)), waits)
        self._factors = FactorExchange(
            reducer, layers, exchange, lambda: self.require_backward_grad_sync
        )
        group.at_close.append(self._factors.close)

    def reducing(self) -> AbstractContextManager[None]:
        """Context of the backward passes of a step; at its end all gradients are complete."""
        return self._factors.exchanging()
