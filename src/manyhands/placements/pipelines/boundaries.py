"""Shapes of the tensors that pass between the stages of a pipeline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from manyhands.splitting import inspect_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.engine.pipelines import Meta


class StageBoundaries:
    """Shapes of the tensors between stages, for any number of samples.

    They are found for three numbers of samples; every dim is proportional to it or constant.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], inputs: torch.Tensor) -> None:
        self._inputs = tuple(inputs.shape[1:])
        seen = [self._inspect(model, stages, inputs, samples) for samples in (2, 3, 5)]
        self.joins = all(isinstance(outputs, torch.Tensor) for _, outputs in seen)
        """Whether the outputs of several microbatches can be concatenated."""
        self._dims = []
        self._dtypes = []
        for number, (two, three, five) in enumerate(
            zip(*(shapes for shapes, _ in seen), strict=True)
        ):
            dims = [(b - a, 3 * a - 2 * b) for a, b in zip(two.shape, three.shape, strict=True)]
            if [slope * 5 + rest for slope, rest in dims] != [*five.shape]:
                raise ValueError(
                    f"the output of stage {number} has the shapes {tuple(two.shape)}, "
                    f"{tuple(three.shape)} and {tuple(five.shape)} for 2, 3 and 5 samples: every "
                    "dim must be proportional to the samples or constant"
                )
            self._dims.append(dims)
            self._dtypes.append(two.dtype)

    @staticmethod
    def _inspect(
        model: nn.Module, stages: Sequence[nn.Module], inputs: torch.Tensor, samples: int
    ) -> tuple[list[torch.Tensor], Any]:
        def compute(value: Any) -> Any:
            passed = []
            for stage in stages:
                value = stage(value)
                passed.append(value)
            return passed

        repeated = inputs[torch.arange(samples, device=inputs.device) % len(inputs)]
        *passed, outputs = inspect_call(model, compute, repeated)
        return passed, outputs

    def after(self, stage: int, samples: int) -> Meta:
        """The output of a stage for a number of samples."""
        shape = tuple(slope * samples + rest for slope, rest in self._dims[stage])
        return shape, self._dtypes[stage]

    def size_after(self, stage: int, samples: int) -> int:
        """Bytes of a stage's output for a number of samples."""
        shape, dtype = self.after(stage, samples)
        return math.prod(shape) * dtype.itemsize

    def check(self, inputs: torch.Tensor) -> None:
        """Raise ValueError for inputs of another shape than those that the model was split for."""
        if tuple(inputs.shape[1:]) != self._inputs:
            raise ValueError(
                f"the pipeline expected samples of shape {self._inputs}, got "
                f"{tuple(inputs.shape[1:])}: use samples of one shape, for example by padding them"
            )
