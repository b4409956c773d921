"""Checks of a job and its model against a strategy and a host, before a process starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyhands.files.checkpoint import check_savable
from manyhands.parameters.coupling import check_step
from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.optional.compilation import check_toolchain
from manyhands.parameters.optional.loss_parameters import check_loss_parameters
from manyhands.parameters.optional.plateau import plateau_metric
from manyhands.parameters.scheduled_step import EmptyOptimizer
from manyhands.script.origin import AtLearningRate

_BATCH_NORM = nn.modules.batchnorm._BatchNorm

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
    if job.keep != job.__class__.keep and job.checkpoint_on_disk is None:
        raise ValueError(
            f"keep={job.keep} is how many checkpoints are kept on the disk, and the job stores "
            "none there: leave it out, or give checkpoint=mh.every(…)"
        )
    try:
        model = on_meta(job.model)
        optimizer = job.make_optimizer(model)
    except Exception:  # noqa: BLE001 - the trial batch reports what is wrong
        return
    check_savable(model)
    check_loss_parameters(job, model)
    _check_step(optimizer)
    check_layers_of(strategy, job, model)
    _check_plateau(strategy, job, optimizer)
    _check_rates(job, model, optimizer)


def check_layers_of(strategy: OptionSupport, job: Job, model: nn.Module) -> None:
    """Raise ValueError, naming the layer, if a strategy does not support a layer of a model."""
    if job.sync_batchnorm and not any(isinstance(one, _BATCH_NORM) for one in model.modules()):
        raise ValueError(
            "sync_batchnorm=True is for layers of batch normalisation, and the model "
            f"{type(model).__name__} has none: leave it out"
        )
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


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    try:
        check_step(optimizer)
    except TypeError as error:
        raise ValueError(str(error)) from None


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
    elif job.plateau_metric is not None:
        raise ValueError(
            f"plateau_metric={job.plateau_metric!r} is what ReduceLROnPlateau depends on, and "
            f"lr_scheduler returned {type(scheduler).__name__}: leave it out"
        )


def _check_rates(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse another learning rate for a scheduler that sets rates of its own.

    OneCycleLR and CyclicLR begin with rates that they are given, and not with the optimizer's.
    """
    changed = job.optimizer
    if job.lr_scheduler is None or not isinstance(changed, AtLearningRate):
        return
    own = replace(job, optimizer=changed.optimizer).make_optimizer(model)
    if _rates(own) == _rates(optimizer):
        return
    before, after = (EmptyOptimizer(one) for one in (own, optimizer))
    name = type(job.lr_scheduler(before)).__name__
    job.lr_scheduler(after)
    if _rates(before) == _rates(after):
        given = f"{changed.value:g}{'x' if changed.is_factor else ''}"
        raise ValueError(
            f"lr={given} has no effect, because {name} sets learning rates of its own: change them "
            "in the job's lr_scheduler, and leave lr out"
        )


def _rates(optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    """The learning rate of each parameter group, now and at the beginning of its schedule."""
    return [
        (float(group["lr"]), float(group.get("initial_lr", group["lr"])))
        for group in optimizer.param_groups
    ]
