"""The strengths of the springs of elastic averaging."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from manyhands.endpoint import Terms


class ElasticStrength(NamedTuple):
    """How far the two ends of a spring move towards each other."""

    worker: float
    """α: a worker towards the centre."""
    centre: float
    """β/N: the centre towards one worker."""


def springs(
    rho: float | None, alpha: float | None, beta: float | None, terms: Terms
) -> ElasticStrength:
    """α = η·ρ and β = N·α, unless they are given; without ρ, N·η·ρ = 0.9."""
    if alpha is None:
        alpha = 0.9 / terms.workers if rho is None else terms.rate * rho
    return ElasticStrength(alpha, alpha if beta is None else beta / terms.workers)


def check_springs(rho: float | None, alpha: float | None, beta: float | None) -> None:
    """Raise ValueError, naming the fix, if these cannot be the strengths of springs."""
    if rho is not None and rho <= 0:
        raise ValueError(f"rho must be above 0, not {rho}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {value}")
    if rho is not None and alpha is not None:
        raise ValueError(
            f"alpha is the learning rate times rho: give one of rho={rho} and alpha={alpha}"
        )
