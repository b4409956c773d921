"""Staleness-dependent learning rates: the weight of a stale update."""

from __future__ import annotations

from typing import Literal, TypeAlias

Damping: TypeAlias = Literal["none", "inverse", "root"]
"""How an update of staleness τ is damped: not at all, by 1/τ, or by 1/√τ."""

_POWERS: dict[Damping, float] = {"none": 0.0, "inverse": 1.0, "root": 0.5}


def damp(kind: Damping, staleness: int, usual: float) -> float:
    """f(τ) / f(the usual τ), at most 1, with f(τ) = 1/τ or 1/√τ and f(0) = 1.

    The weight b/B of an update already divides the learning rate by the number of workers, as λ/τ
    does at the staleness that this number causes. So only updates that are staler than usual are
    damped, and no update counts for more than its samples.

    >>> damp("inverse", 3, 3), damp("inverse", 6, 3), damp("root", 12, 3), damp("inverse", 0, 3)
    (1.0, 0.5, 0.5, 1.0)
    """
    if kind == "none":
        return 1.0
    return float(min(1.0, (max(1.0, usual) / max(1, staleness)) ** _POWERS[kind]))
