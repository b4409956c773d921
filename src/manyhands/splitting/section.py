"""Some pieces of a model that follow each other, as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch import fx


class Section(nn.Module):
    """Calls what it was traced from, in training and in evaluation.

    The two differ only in constants that the model's own code takes from its mode, such as a
    function's rate of dropout. Parameters, buffers and modules are the model's own, by its names.
    """

    def __init__(self, training: fx.GraphModule, evaluating: fx.GraphModule | None = None) -> None:
        super().__init__()
        for name, module in training.named_children():
            self.add_module(name, module)
        for name, parameter in training.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in training.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        # In a tuple they are not taken for modules with parameters of their own.
        self._traced = (training, evaluating or training)

    @property
    def traced(self) -> fx.GraphModule:
        """What is called in the present mode."""
        return self._traced[not self.training]

    def forward(self, inputs: Any) -> Any:
        """What the last piece gives, of what the first is given."""
        return self.traced(inputs)
