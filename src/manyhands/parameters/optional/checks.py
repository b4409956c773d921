"""Checks of a job and its model against a strategy and a host, before a process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.optional.compilation import check_toolchain
from manyhands.parameters.optional.loss_parameters import check_loss_parameters
from manyhands.parameters.optional.plateau import plateau_metric
from manyhands.parameters.scheduled_step import EmptyOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.job import Job
    from manyhands.runtime_needs import OptionSupport


def check_optional(strategy: OptionSupport, job: Job, devices: Iterable[str]) -> None:
    """Raise ValueError, naming the fix, if something that a job asks for would not be done.

    A model that cannot be created on the meta device is not inspected here.

    Args:
        strategy: the strategy.
        job: the job.
        devices: the devices of the workers on this host.
    """
    check_toolchain(job, devices)
    try:
        model = on_meta(job.model)
        optimizer = job.make_optimizer(model)
    except Exception:  # noqa: BLE001 - the trial batch reports what is wrong
        return
    check_loss_parameters(job, model)
    check_layers_of(strategy, job, model)
    _check_plateau(strategy, job, optimizer)


def check_layers_of(strategy: OptionSupport, job: Job, model: nn.Module) -> None:
    """Raise ValueError, naming the layer, if a strategy does not support a layer of a model."""
    for name, module in model.named_modules():
        layer = f"the layer {name!r}" if name else "the model"
        if isinstance(module, nn.SyncBatchNorm):
            strategy.check_option("sync_batchnorm", f"{layer}, SyncBatchNorm,")
            if job.micro_batch is not None:
                raise ValueError(
                    f"{layer}, SyncBatchNorm, normalises by all samples of a global batch, and "
                    f"micro_batch={job.micro_batch} computes a part of them at a time: leave out "
                    "micro_batch"
                )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            asked = f"{layer}, {type(module).__name__}(sparse=True),"
            strategy.check_option("sparse_gradients", asked)
            _check_dense(job, asked)


def _check_dense(job: Job, asked: str) -> None:
    """Refuse what needs the norm of a gradient, which torch does not compute of sparse ones."""
    for option, given in (("clip", job.clip), ("measures", "gradient_norm" in job.measures)):
        if given:
            raise ValueError(
                f"{asked} has sparse gradients, whose norm torch does not compute: use "
                f"sparse=False, or leave out {option}"
            )


def _check_plateau(strategy: OptionSupport, job: Job, optimizer: torch.optim.Optimizer) -> None:
    if job.lr_scheduler is None:
        return
    scheduler = job.lr_scheduler(EmptyOptimizer(optimizer))
    if isinstance(scheduler, ReduceLROnPlateau):
        strategy.check_option("plateau", "ReduceLROnPlateau")
        plateau_metric(job, scheduler)
