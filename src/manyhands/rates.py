"""What an optimizer's learning rates are multiplied with in the course of a run.

A job's `rate` is any function of the epochs that are done, a fraction, to a factor; here are the
usual ones. It is keyed on samples, and not on steps, because asynchronous training has no global
step. Each of these knows its own text, so that a run can say what it was trained with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from manyhands.notation import Value

__all__ = ["Cosine", "Linear", "Rate", "Stairs", "cosine", "linear", "stairs"]


@dataclass(frozen=True, repr=False)
class Rate(Value, ABC):
    """A factor of the learning rates, after so many epochs."""

    warmup: float = field(default=0.0, kw_only=True)
    """So many first epochs in which the rate rises from zero, in a line."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must be 0 or more epochs, not {self.warmup}")

    def __call__(self, epochs: float) -> float:
        """The factor after so many epochs."""
        risen = 1.0 if epochs >= self.warmup else epochs / self.warmup
        return risen * self.fallen(epochs)

    @abstractmethod
    def fallen(self, epochs: float) -> float:
        """The factor without a warm-up."""


@dataclass(frozen=True, repr=False)
class Falling(Rate):
    """From 1 at the end of the warm-up to `floor` after `epochs`, and so ever after."""

    epochs: float
    """Epochs until the floor is reached, the warm-up among them."""
    floor: float = 0.0
    """What is left in the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warmup < self.epochs < math.inf:
            raise ValueError(f"epochs must be more than those of warm-up, not {self.epochs}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be from 0 to 1, not {self.floor}")

    def fallen(self, epochs: float) -> float:
        """The factor without a warm-up."""
        way = (epochs - self.warmup) / (self.epochs - self.warmup)
        return self.floor + (1 - self.floor) * self.left(min(1.0, max(0.0, way)))

    @abstractmethod
    def left(self, way: float) -> float:
        """From 1 to 0, as `way` goes from 0 to 1."""


@dataclass(frozen=True, repr=False)
class Cosine(Falling):
    """Half a wave of the cosine, from 1 to `floor`.

    >>> rate = cosine(10, warmup=2)
    >>> [round(rate(epochs), 2) for epochs in (0, 1, 2, 6, 10, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]

    Paper: Loshchilov, Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017.
    """

    name: ClassVar[str] = "cosine"

    def left(self, way: float) -> float:
        """Slow, fast, slow."""
        return (1 + math.cos(math.pi * way)) / 2


@dataclass(frozen=True, repr=False)
class Linear(Falling):
    """A line from 1 to `floor`.

    >>> [linear(10, floor=0.1)(epochs) for epochs in (0, 5, 10, 11)]
    [1.0, 0.55, 0.1, 0.1]
    """

    name: ClassVar[str] = "linear"

    def left(self, way: float) -> float:
        """Ever at the same pace."""
        return 1 - way


@dataclass(frozen=True, repr=False)
class Stairs(Rate):
    """Down to `factor` of what it was after every so many epochs.

    >>> [stairs(30, factor=0.5)(epochs) for epochs in (0, 29.9, 30, 60)]
    [1.0, 1.0, 0.5, 0.25]
    """

    name: ClassVar[str] = "stairs"

    every: float
    """Epochs on one stair."""
    factor: float = 0.1
    """How high a stair is, by the one above it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.every < math.inf or not 0 < self.factor < math.inf:
            raise ValueError(f"every and factor must be above 0: {self.every}, {self.factor}")

    def fallen(self, epochs: float) -> float:
        """The factor without a warm-up."""
        # 0.3 / 0.1 is a little less than 3.
        return float(self.factor ** math.floor(epochs / self.every + 1e-9))


cosine, linear, stairs = Cosine, Linear, Stairs
"""As they are written in text."""
