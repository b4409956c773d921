"""Optimizers on the local parts of DTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from manyhands.engine.tensors import own
from manyhands.parameters.coupling import coupling_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def step_on_local_tensors(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]
) -> dict[nn.Parameter, nn.Parameter]:
    """Let an optimizer step on plain tensors: the local parts of DTensors, in place.

    DTensor's dispatch takes longer than a small operation. An optimizer that works elementwise does
    not need it. Others, which may compute the norm of a tensor, keep the DTensors.

    Returns:
        By parameter, the tensor that the optimizer has in its place and reads gradients from; the
        parameter itself, if it was not replaced.
    """
    known = dict.fromkeys(parameters)
    if coupling_of(optimizer) != "element":
        return {laid: laid for laid in known}
    plain = {
        laid: nn.Parameter(own(laid.detach()), requires_grad=laid.requires_grad) for laid in known
    }
    for some in optimizer.param_groups:
        some["params"] = [plain.get(laid, laid) for laid in some["params"]]
    return plain
