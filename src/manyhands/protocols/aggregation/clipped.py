"""Mean of updates whose norms are limited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols.aggregation.aggregator import Aggregator, weighted_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, repr=False)
class Clipped(Aggregator):
    """Scale every worker's update down to the norm c if it is longer, then average.

    Σ b_n·min(1, c/‖g_n‖)·g_n / Σ b_n: a wrong worker moves the mean by its share of c at most,
    however large its numbers are. Buffers are averaged as they are.

    Use it against updates that are too large, with a c near the usual norm of a worker's gradient
    (`measures=gradient_norm` shows it). It does nothing against updates of the usual size that
    point in a wrong direction: use `trimmed`, `median` or `krum`.

    Example: `synchronous(aggregate=clipped(1.0))`

    Paper: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019 (norm
    bounding).
    """

    name: ClassVar[str] = "clipped"
    needs_whole: ClassVar[bool] = True

    c: float
    """The largest norm of a worker's update."""

    def __post_init__(self) -> None:
        if not 0 < self.c < float("inf"):
            raise ValueError(f"c must be above 0 and finite, got {self.c}")

    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """The mean of the clipped updates."""
        limited = [[*_limit(row[:counted], self.c), *row[counted:]] for row in rows]
        return [weighted_mean(vectors, weights) for vectors in zip(*limited, strict=True)]


def _limit(vectors: Sequence[torch.Tensor], most: float) -> list[torch.Tensor]:
    import torch  # noqa: PLC0415 - a description loads without torch

    squares = (vector.square().sum(dtype=torch.float64) for vector in vectors)
    norm = float(sum(squares)) ** 0.5
    return [vector * (most / norm) if norm > most else vector for vector in vectors]
