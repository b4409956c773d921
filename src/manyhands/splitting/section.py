"""A section: consecutive pieces of a model as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch import fx


class Section(nn.Module):
    """A module that runs traced calls, in training and in evaluation.

    The two differ only in constants that depend on the mode, such as the rate of a functional
    dropout. Parameters, buffers and modules are those of the model, under the same names.
    """

    def __init__(self, training: fx.GraphModule, evaluating: fx.GraphModule | None = None) -> None:
        super().__init__()
        for name, module in training.named_children():
            self.add_module(name, module)
        for name, parameter in training.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in training.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        # In a tuple, so that they are not registered as submodules.
        self._traced = (training, evaluating or training)

    @property
    def traced(self) -> fx.GraphModule:
        """The graph of the current mode."""
        return self._traced[not self.training]

    def forward(self, inputs: Any) -> Any:
        """The output of the last piece for the input of the first."""
        return self.traced(inputs)
