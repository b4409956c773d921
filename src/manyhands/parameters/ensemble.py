"""A module whose outputs are the mean of several replicas' outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.parameters.copy import Copy


class EnsembleModel(nn.Module):
    """A model whose outputs are the mean of its members' outputs.

    Args:
        copy: the model into which each member is loaded in turn; its parameters are overwritten.
        replicas: the members' parameters, as the bytes of one shard.
    """

    def __init__(self, copy: Copy, replicas: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._copy = copy
        self._replicas = replicas

    def train(self, mode: bool = True) -> EnsembleModel:
        """Set the training mode of all members."""
        self._copy.model.train(mode)
        return super().train(mode)

    def forward(self, inputs: Any) -> Any:
        """The mean of the members' outputs."""
        total = None
        for replica in self._replicas:
            self._copy.parameters[0].copy_(replica)
            self._copy.received()
            self._copy.adopt_buffers()
            outputs = self._copy.model(inputs)
            total = outputs if total is None else total + outputs
        if total is None:
            raise ValueError("an ensemble needs at least 1 replica, got 0")
        return total / len(self._replicas)
