"""Estimate of the cost of each piece of a model, for dry runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from manyhands.splitting.cost_measurement import SavedActivations
from manyhands.splitting.partition import PieceCost

if TYPE_CHECKING:
    from manyhands.splitting.chain import Chain


def estimate(pieces: Chain, inputs: torch.Tensor) -> tuple[PieceCost, ...]:
    """Each piece's memory, and its time in multiplications (twice as many in the backward).

    Args:
        pieces: the pieces of a model on the meta device.
        inputs: a microbatch on the meta device.
    """
    guessed = []
    for number, name in enumerate(pieces.names):
        section = pieces.section(number, number + 1)
        saved = SavedActivations(section)
        counter = FlopCounterMode(display=False)
        with counter, torch.autograd.graph.saved_tensors_hooks(saved.keep, saved.give):
            outputs = section(inputs)
        count = float(counter.get_total_flops())
        parameters = sum(tensor.nbytes for tensor in section.parameters())
        guessed.append(PieceCost(name, count, 2 * count, parameters, saved.size))
        if isinstance(outputs, torch.Tensor):
            inputs = outputs.detach().requires_grad_(outputs.is_floating_point())
    return tuple(guessed)
