"""Sufficient factors: gradients of linear layers as the activations that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manyhands.codecs.reducers.reducer import Reducer


@dataclass(frozen=True, repr=False)
class Factors(Reducer):
    """Send the inputs and output gradients of linear layers instead of the gradients of weights.

    The gradient of a weight of m × n numbers is GᵀX, for b rows of inputs X and of gradients G of
    the outputs. Every worker sends its X and G to all others, which is b·(m + n) numbers, and
    multiplies those of all workers. Nothing is rounded or left out. Layers for which this is not
    smaller in a step, biases and all other parameters are averaged as they are.

    Use it for wide linear layers and few rows per worker, where a row is a sample or a token. The
    bytes grow with the number of workers, and every worker computes the weights' gradients for the
    rows of all.

    Example: `allreduce(codec=factors())`

    Paper: Zhang et al., Poseidon: An Efficient Communication Architecture for Distributed Deep
    Learning on GPU Clusters, USENIX ATC 2017.
    """

    name: ClassVar[str] = "factors"
    feeds_back: ClassVar[bool] = False

    @staticmethod
    def pays(rows: int, inputs: int, outputs: int) -> bool:
        """Whether factors of so many rows of all workers are fewer bytes than an allreduce.

        A worker sends (N − 1)/N of all rows' factors by an all_gather of theirs, on average, and
        2·(N − 1)/N of the gradient by an allreduce.

        >>> Factors.pays(99, 100, 100), Factors.pays(100, 100, 100)
        (True, False)
        """
        return rows * (inputs + outputs) < 2 * inputs * outputs
