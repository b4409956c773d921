"""Checks for models that FSDP2 cannot shard, before any process is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.module_units import named_separate_units

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from manyhands.job import Job
    from manyhands.placements.placement import Placement


def check_shardable(placement: Placement, job: Job) -> None:
    """Raise ValueError, naming the fix, for parameters that cannot be sharded by rows."""
    try:
        model = on_meta(job.model)
    except Exception:  # noqa: BLE001 - not every model can be created on the meta device
        return
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.dim():
            raise ValueError(
                f"{placement} shards every parameter by rows, and {name} is a tensor without dims: "
                "make it a tensor of one element, or use zero(stage=1) or allreduce()"
            )
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ValueError(
                f"{placement} cannot shard {name} of {parameter.dtype}: use allreduce()"
            )
    units = dict(named_separate_units(model))
    inside = {id(one) for unit in units.values() for one in unit.parameters()}
    rest = [one for one in model.parameters() if id(one) not in inside]
    for unit, parameters in ((type(model).__name__, rest), *_parameters(units)):
        dtypes = sorted({str(one.dtype) for one in parameters if one.requires_grad})
        if len(dtypes) > 1:
            raise ValueError(
                f"{placement} gathers the parameters of {unit} together, which have the dtypes "
                f"{' and '.join(dtypes)}: use one dtype (Job(autocast=…) computes in a lower "
                "precision), or use zero(stage=1) or allreduce()"
            )


def _parameters(units: dict[str, nn.Module]) -> Iterable[tuple[str, list[torch.nn.Parameter]]]:
    return [(name, list(unit.parameters())) for name, unit in units.items()]
