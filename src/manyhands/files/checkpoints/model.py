"""A whole model as parts of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.files.checkpoint import State
from manyhands.files.checkpoints.parts import TensorPart

if TYPE_CHECKING:
    from torch import nn


def model_parts(model: nn.Module) -> tuple[list[TensorPart], dict[str, str]]:
    """The tensors of a whole model, and the other names of tied ones."""
    state = State.of(model)
    parts = [
        TensorPart(f"model/{name}", entry.fetch(), entry.shape, (0,) * len(entry.shape))
        for name, entry in state.entries.items()
    ]
    return parts, dict(state.aliases)
