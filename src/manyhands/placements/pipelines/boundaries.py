"""What passes from each stage of a pipeline to the next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from manyhands.splitting import look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.engine.pipelines import Meta


class StageBoundaries:
    """The shape of what passes from each stage to the next, for any number of samples.

    It is looked at for three numbers of samples; every dim grows with them or does not.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], inputs: torch.Tensor) -> None:
        self._inputs = tuple(inputs.shape[1:])
        seen = [self._look(model, stages, inputs, samples) for samples in (2, 3, 5)]
        self.joins = all(isinstance(outputs, torch.Tensor) for _, outputs in seen)
        """Whether the outputs of several microbatches can be put together again."""
        self._dims = []
        self._dtypes = []
        for number, (two, three, five) in enumerate(
            zip(*(shapes for shapes, _ in seen), strict=True)
        ):
            dims = [(b - a, 3 * a - 2 * b) for a, b in zip(two.shape, three.shape, strict=True)]
            if [slope * 5 + rest for slope, rest in dims] != [*five.shape]:
                raise ValueError(
                    f"what stage {number} gives has the shapes {tuple(two.shape)}, "
                    f"{tuple(three.shape)} and {tuple(five.shape)} for 2, 3 and 5 samples, and "
                    "stages must know beforehand what they are given"
                )
            self._dims.append(dims)
            self._dtypes.append(two.dtype)

    @staticmethod
    def _look(
        model: nn.Module, stages: Sequence[nn.Module], inputs: torch.Tensor, samples: int
    ) -> tuple[list[torch.Tensor], Any]:
        def compute(value: Any) -> Any:
            passed = []
            for stage in stages:
                value = stage(value)
                passed.append(value)
            return passed

        repeated = inputs[torch.arange(samples, device=inputs.device) % len(inputs)]
        *passed, outputs = look(model, compute, repeated)
        return passed, outputs

    def after(self, stage: int, samples: int) -> Meta:
        """What a stage gives for so many samples."""
        shape = tuple(slope * samples + rest for slope, rest in self._dims[stage])
        return shape, self._dtypes[stage]

    def size_after(self, stage: int, samples: int) -> int:
        """Its bytes."""
        shape, dtype = self.after(stage, samples)
        return math.prod(shape) * dtype.itemsize

    def check(self, inputs: torch.Tensor) -> None:
        """Refuse inputs of another shape than those that the model was split for."""
        if tuple(inputs.shape[1:]) != self._inputs:
            raise ValueError(
                f"a sample of shape {tuple(inputs.shape[1:])} came, and the pipeline was made for "
                f"{self._inputs}: give samples of one shape, for example by padding them"
            )
