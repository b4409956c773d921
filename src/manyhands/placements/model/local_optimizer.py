"""Optimizers on what a worker has of divided tensors, as if that were all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from manyhands.engine.tensors import own
from manyhands.parameters.layout import ELEMENTWISE

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def step_plainly(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]
) -> dict[nn.Parameter, nn.Parameter]:
    """Have an optimizer step on plain tensors: this worker's parts, where they lie.

    Torch's divided tensors think about every operation, which takes longer than a small one does.
    An optimizer that looks at single elements needs none of that. Others, which may take the norm
    of a tensor, keep what they have.

    Returns:
        By parameter, what the optimizer has instead and looks for gradients in; the parameter
        itself, if that is it.
    """
    known = dict.fromkeys(parameters)
    if type(optimizer) not in ELEMENTWISE:
        return {laid: laid for laid in known}
    plain = {
        laid: nn.Parameter(own(laid.detach()), requires_grad=laid.requires_grad) for laid in known
    }
    for some in optimizer.param_groups:
        some["params"] = [plain.get(laid, laid) for laid in some["params"]]
    return plain
