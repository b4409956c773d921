"""The contract of a placement: the real application beside a pure forecast of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.notation import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.costs import Forecast, TensorSize
    from manyhands.transport.collectives import Group


@dataclass(frozen=True, repr=False)
class Placement(Value, ABC):
    """How copies or parts of one module are trained together by a group of workers.

    `apply` is what happens; `forecast` says it beforehand. A conformance test holds the two
    together, so a placement whose forecast is wrong does not pass.
    """

    support: ClassVar[Literal["stable", "beta", "experimental"]]

    def check(self, workers: int) -> None:
        """Raise ValueError, naming the fix, if this placement cannot serve so many workers."""
        if workers < 1:
            raise ValueError(f"a run needs at least 1 worker, not {workers}")

    @abstractmethod
    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        """Make `module` train with the group; what is returned is called in its place."""

    @abstractmethod
    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """The collectives of one worker in order, with their bytes, and its memory."""
