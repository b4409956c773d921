"""What is known of how workers compute, beside the time of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from manyhands.costs.coding_speed import CodingSpeeds


@dataclass(frozen=True)
class PieceTime:
    """How long a piece of a model takes for a batch, in seconds.

    Example:
        >>> import manyhands as mh
        >>> mh.PieceTime("blocks.0", forward=0.01, backward=0.02).first
        'blocks.0'
    """

    first: str
    """The layer that it begins with."""
    forward: float
    backward: float


@dataclass(frozen=True)
class ComputeConditions:
    """How workers compute."""

    overlaps: bool = False
    """Whether devices have streams, so that FSDP2 communicates beside computation."""
    pieces: tuple[PieceTime, ...] = ()
    """The pieces of the model in order, as they were measured; none if they were not."""
    coding: CodingSpeeds | None = None
    """How fast codecs encode and decode; None takes no time."""


PLAIN: Final = ComputeConditions()
"""On CPUs, and nothing was measured."""
