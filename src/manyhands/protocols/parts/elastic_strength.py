"""Strength of the elastic force of elastic averaging."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from manyhands.endpoint import Terms


class ElasticStrength(NamedTuple):
    """How far a worker and the centre move towards each other in an exchange."""

    worker: float
    """α: a worker towards the centre."""
    centre: float
    """β/N: the centre towards one worker."""


def elastic_strength(
    rho: float | None, alpha: float | None, beta: float | None, terms: Terms
) -> ElasticStrength:
    """α = η·ρ and β = N·α, unless they are given; without ρ, N·η·ρ = 0.9."""
    if alpha is None:
        alpha = 0.9 / terms.workers if rho is None else terms.rate * rho
    return ElasticStrength(alpha, alpha if beta is None else beta / terms.workers)


def check_strength(rho: float | None, alpha: float | None, beta: float | None) -> None:
    """Raise ValueError, naming the fix, if these are not valid strengths."""
    if rho is not None and rho <= 0:
        raise ValueError(f"rho must be above 0, got {rho}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
    if rho is not None and alpha is not None:
        raise ValueError(
            f"alpha is the learning rate times rho: set only one of rho={rho} and alpha={alpha}"
        )
