"""Learning-rate schedules: the factor of the optimizer's learning rates, as a function of epochs.

`Job.lr_schedule` is any function from the epochs that are done (a fraction is possible) to a
factor; here are the usual ones. They depend on samples, not on steps, because asynchronous
training has no global step. Each is a value with a text form, so that a run can record what it was
trained with.

    >>> cosine(10, warmup=0.5)
    cosine(epochs=10.0, warmup=0.5)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from manyhands.notation import Value

__all__ = ["Cosine", "LRSchedule", "Linear", "StepDecay", "cosine", "linear", "step_decay"]


@dataclass(frozen=True, repr=False)
class LRSchedule(Value, ABC):
    """A learning-rate schedule: a factor of the learning rates, as a function of epochs.

    Example:
        >>> import manyhands as mh
        >>> schedule = mh.lr_schedules.linear(10, warmup=2)
        >>> isinstance(schedule, mh.LRSchedule), schedule(1), schedule(6)
        (True, 0.5, 0.5)
    """

    warmup: float = field(default=0.0, kw_only=True)
    """Epochs of linear warm-up from zero."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must be 0 or more epochs, not {self.warmup}")

    def __call__(self, epochs: float) -> float:
        """The factor after `epochs` passes over the data; a fraction is possible."""
        warm = 1.0 if epochs >= self.warmup else epochs / self.warmup
        return warm * self.decayed(epochs)

    @abstractmethod
    def decayed(self, epochs: float) -> float:
        """The factor without the warm-up."""


@dataclass(frozen=True, repr=False)
class Annealing(LRSchedule):
    """From 1 at the end of the warm-up to `floor` after `epochs`; constant from there."""

    epochs: float
    """Epochs until the floor is reached, warm-up included."""
    floor: float = 0.0
    """The factor at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warmup < self.epochs < math.inf:
            raise ValueError(
                f"epochs must be more than the warm-up of {self.warmup:g}, not {self.epochs}"
            )
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be from 0 to 1, not {self.floor}")

    def decayed(self, epochs: float) -> float:
        """The factor without the warm-up."""
        done = (epochs - self.warmup) / (self.epochs - self.warmup)
        return self.floor + (1 - self.floor) * self.remaining(min(1.0, max(0.0, done)))

    @abstractmethod
    def remaining(self, done: float) -> float:
        """From 1 to 0, as `done` goes from 0 to 1."""


@dataclass(frozen=True, repr=False)
class Cosine(Annealing):
    """Cosine annealing from 1 to `floor`, as `CosineAnnealingLR`.

    >>> schedule = cosine(10, warmup=2)
    >>> [round(schedule(epochs), 2) for epochs in (0, 1, 2, 6, 10, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]

    Paper: Loshchilov, Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017.
    """

    name: ClassVar[str] = "cosine"

    def remaining(self, done: float) -> float:
        """Half a period of the cosine."""
        return (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, repr=False)
class Linear(Annealing):
    """Linear decay from 1 to `floor`, as `LinearLR`.

    >>> [linear(10, floor=0.1)(epochs) for epochs in (0, 5, 10, 11)]
    [1.0, 0.55, 0.1, 0.1]
    """

    name: ClassVar[str] = "linear"

    def remaining(self, done: float) -> float:
        """In proportion to what is done."""
        return 1 - done


@dataclass(frozen=True, repr=False)
class StepDecay(LRSchedule):
    """Step decay: multiplied by `factor` every so many epochs, as `StepLR`.

    >>> [step_decay(30, factor=0.5)(epochs) for epochs in (0, 29.9, 30, 60)]
    [1.0, 1.0, 0.5, 0.25]
    """

    name: ClassVar[str] = "step_decay"

    every: float
    """Epochs between two decays."""
    factor: float = 0.1
    """What the learning rates are multiplied by at each decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.every < math.inf or not 0 < self.factor < math.inf:
            raise ValueError(
                f"every and factor must be above 0, not every={self.every}, factor={self.factor}"
            )

    def decayed(self, epochs: float) -> float:
        """The factor without the warm-up."""
        # 0.3 / 0.1 is a little less than 3.
        return float(self.factor ** math.floor(epochs / self.every + 1e-9))


cosine, linear, step_decay = Cosine, Linear, StepDecay
"""The names in text."""
