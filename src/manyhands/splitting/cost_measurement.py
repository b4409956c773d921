"""Measurement of the time and memory of each piece of a model, on real data."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from manyhands.splitting.meta_values import fill
from manyhands.splitting.partition import PieceCost
from manyhands.splitting.untouched_run import untouched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from manyhands.splitting.chain import Chain

_ROUNDS: Final = 4
"""Repetitions; each piece's fastest time counts, because first calls are slow and other processes
may use the machine."""


def measure(pieces: Chain, inputs: torch.Tensor) -> tuple[PieceCost, ...]:
    """Each piece's time and memory for one microbatch of inputs.

    Buffers, gradients and random states are restored. For a model on the meta device, one piece at
    a time is allocated with arbitrary values, which do not influence its time.
    """
    on_meta = any(tensor.is_meta for tensor in pieces.model.parameters())
    with untouched(pieces.model, inputs.device), torch.enable_grad():
        if on_meta:
            return tuple(_one_by_one(pieces, inputs))
        sections = [pieces.section(number, number + 1) for number in range(len(pieces))]
        rounds = [_round(pieces.names, sections, inputs) for _ in range(_ROUNDS)]
    return tuple(map(_fastest, zip(*rounds, strict=True)))


def _round(
    names: Sequence[str], sections: Sequence[nn.Module], inputs: torch.Tensor
) -> list[PieceCost]:
    """Run every piece once, each on the output of the previous one."""
    measured = []
    for name, section in zip(names, sections, strict=True):
        seen, inputs = _measure(name, section, inputs.detach())
        measured.append(seen)
    return measured


def _one_by_one(pieces: Chain, inputs: torch.Tensor) -> Iterator[PieceCost]:
    """Run every piece several times on arbitrary values; then free its memory."""
    for number, name in enumerate(pieces.names):
        section = pieces.section(number, number + 1)
        named = (*section.named_parameters(), *section.named_buffers())
        before = fill(
            pieces.model,
            {key: _made_up(tensor, inputs.device) for key, tensor in named if tensor.is_meta},
        )
        section = pieces.section(number, number + 1)
        rounds = [_measure(name, section, inputs.detach()) for _ in range(_ROUNDS)]
        yield _fastest([seen for seen, _ in rounds])
        fill(pieces.model, before)
        # Outputs may have any magnitude; the next piece must not compute with denormal numbers.
        outputs = rounds[-1][1]
        floating = isinstance(outputs, torch.Tensor) and outputs.is_floating_point()
        inputs = torch.randn_like(outputs) if floating else outputs


def _made_up(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=device) * 0.02
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)


def _fastest(seen: Sequence[PieceCost]) -> PieceCost:
    return replace(
        seen[-1],
        forward=min(one.forward for one in seen),
        backward=min(one.backward for one in seen),
    )


def _measure(name: str, section: nn.Module, inputs: torch.Tensor) -> tuple[PieceCost, torch.Tensor]:
    if inputs.is_floating_point():
        inputs.requires_grad_()
    saved, begun, backward = SavedActivations(section), _now(inputs), 0.0
    with torch.autograd.graph.saved_tensors_hooks(saved.keep, saved.give):
        outputs = section(inputs)
    forward = _now(inputs) - begun
    # The last piece may return any type that the loss accepts.
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
        wanted = [tensor for tensor in (inputs, *section.parameters()) if tensor.requires_grad]
        begun = _now(inputs)
        torch.autograd.grad(outputs, wanted, torch.ones_like(outputs), allow_unused=True)
        backward = _now(inputs) - begun
    parameters = sum(tensor.nbytes for tensor in section.parameters())
    return PieceCost(name, forward, backward, parameters, saved.size), outputs


class SavedActivations:
    """Counts the tensors that autograd saves for the backward, each once, without parameters."""

    def __init__(self, section: nn.Module) -> None:
        self.size = 0
        self._seen = {one.untyped_storage()._cdata for one in section.parameters()}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a saved tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.size += storage.nbytes()
        return tensor

    @staticmethod
    def give(tensor: torch.Tensor) -> torch.Tensor:
        """Return the saved tensor unchanged."""
        return tensor


def _now(tensor: torch.Tensor) -> float:
    """The current time, after synchronising the device."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
