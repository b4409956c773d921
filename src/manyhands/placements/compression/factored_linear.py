"""A linear layer whose weight's gradient is noted as factors, instead of being computed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

WHOLE = -1
"""Stands for a number of rows: a worker has the gradient itself."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class _Noted(torch.autograd.Function):
    """The outputs of a layer; notes the gradient with respect to them, with the inputs."""

    @staticmethod
    def forward(
        ctx: Any, outputs: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, note: Any
    ) -> torch.Tensor:
        """The outputs, unchanged; they depend on the weight, or they might need no gradient."""
        del weight
        # Not a view of the outputs, which the next layer could not change in place.
        ctx.mark_dirty(outputs)
        ctx.save_for_backward(inputs)
        ctx.note = note
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Note the factors."""
        (inputs,) = ctx.saved_tensors
        ctx.note(inputs, gradients[0])
        return gradients[0], None, None, None


class FactoredLinear:
    """The forward of a linear layer, whose weight's gradient is noted as factors.

    Args:
        layer: the layer.
        syncing: whether gradients of the current backward pass are reduced after it.
    """

    def __init__(self, layer: nn.Linear, syncing: Callable[[], bool]) -> None:
        self.layer = layer
        self._syncing = syncing
        self._called = self._noted = 0
        self._factors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._whole: torch.Tensor | None = None
        """The sum of what was noted before, if its factors are larger than it is."""
        self._memory: torch.Tensor | None = None
        """Memory of the mean, used in every step."""
        self.ready = threading.Event()
        """Set when nothing more is expected in this step."""
        self.mean: torch.Tensor | None = None
        """The mean over all workers; None before it is known, or if no worker used the layer."""

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the layer's name
        """The outputs."""
        layer = self.layer
        if not torch.is_grad_enabled():
            return functional.linear(input, layer.weight, layer.bias)
        self._called += 1
        outputs = functional.linear(input, layer.weight.detach(), layer.bias)
        noted: torch.Tensor = _Noted.apply(outputs, input, layer.weight, self._note)  # type: ignore[no-untyped-call]
        return noted

    def _note(self, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        columns = (inputs.shape[-1], gradient.shape[-1])
        # Under autocast the layer computes with rounded inputs.
        factors = inputs.detach().to(gradient.dtype), gradient.detach()
        rows, out = (
            one.reshape(-1, size).contiguous() for one, size in zip(factors, columns, strict=True)
        )
        if self.ready.is_set():
            # The factors are on their way; this is averaged as another gradient of the weight.
            self._add(self._product(rows, out))
            return
        self._factors.append((rows, out))
        self._noted += 1
        if self.rows * sum(columns) >= columns[0] * columns[1]:
            self._fold()
        if self._syncing() and self._noted == self._called:
            self.ready.set()

    def _product(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return (out.T @ rows).to(self.layer.weight.dtype)

    def _add(self, product: torch.Tensor) -> None:
        weight = self.layer.weight
        weight.grad = product if weight.grad is None else weight.grad + product

    def _fold(self) -> None:
        """Multiply the factors, which are larger than the gradient."""
        for rows, out in self._factors:
            product = self._product(rows, out)
            self._whole = product if self._whole is None else self._whole.add_(product)
        self._factors.clear()

    @property
    def rows(self) -> int:
        """Rows of the factors that were noted."""
        return sum(len(inputs) for inputs, _ in self._factors)

    @property
    def statement(self) -> int:
        """What other workers need to know: the number of rows and their dtype, or `WHOLE`."""
        if self._whole is not None:
            return WHOLE
        return self.rows * len(DTYPES) + DTYPES.index(self._dtype())

    def payload(self) -> torch.Tensor:
        """The bytes of all inputs, then of all output gradients."""
        dtype = self._dtype()
        parts = [one for column in zip(*self._factors, strict=True) for one in column]
        flat = [one.to(dtype).view(-1).view(torch.uint8) for one in parts]
        return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)

    def whole(self) -> torch.Tensor:
        """This worker's gradient."""
        self._fold()
        return torch.zeros_like(self.layer.weight) if self._whole is None else self._whole

    def multiply(self, inputs: torch.Tensor, gradients: torch.Tensor) -> None:
        """Set the mean to the product of all workers' factors."""
        weight = self.layer.weight
        # A gradient that the optimizer did not clear may be in this memory.
        if self._memory is None or weight.grad is not None:
            self._memory = torch.empty_like(weight)
        self.mean = torch.mm(gradients.T, inputs, out=self._memory)

    def clear(self) -> None:
        """Forget the step."""
        self._called = self._noted = 0
        self._factors.clear()
        self._whole = self.mean = None
        self.ready.clear()

    def _dtype(self) -> torch.dtype:
        """The dtype of all factors."""
        found = {gradient.dtype for _, gradient in self._factors}
        return found.pop() if len(found) == 1 else self.layer.weight.dtype
