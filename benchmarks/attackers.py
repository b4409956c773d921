"""Workers that send something else than their gradient, for tests and benchmarks of robustness.

`register_attackers()` registers the strategies `attacked` and `attacked_softsync`:
`synchronous` and `softsync` in which the first `liars` workers send their updates times `factor`.
A factor of −1 flips the sign; NaN is not a number. They compute as the others do, so nothing but
what they send differs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import manyhands as mh


class Liar:
    """A replica whose updates are multiplied before they are sent.

    Args:
        replica: the worker's replica.
        factor: the factor.
    """

    def __init__(self, replica: Any, factor: float) -> None:
        self.__dict__.update(_replica=replica, _factor=factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._replica, name, value)

    async def gradient(self, batch: Any, ready: Callable[[int], object] | None = None) -> None:
        """Compute the update, and change each part of it when it is complete."""

        def lie(server: int) -> None:
            if batch.samples:
                self._replica.update_vector(server).mul_(self._factor)
            if ready is not None:
                ready(server)

        await self._replica.gradient(batch, lie)


def _lying(strategy: Any, replica: Any) -> Any:
    factor = math.nan if strategy.nan else strategy.factor
    return Liar(replica, factor) if replica.rank < strategy.liars else replica


@dataclass(frozen=True, repr=False)
class Attacked(mh.protocols.Synchronous):
    """`synchronous` with workers that send wrong updates.

    Example: `attacked(liars=2, factor=-1.0)`
    """

    name: ClassVar[str] = "attacked"

    liars: int = 1
    """Workers that send wrong updates, from rank 0 on."""
    factor: float = -1.0
    """What they multiply their updates by."""
    nan: bool = False
    """Whether they send NaN instead."""

    async def worker(self, replica: Any, endpoint: Any) -> None:
        """As the strategy, with another replica."""
        await super().worker(_lying(self, replica), endpoint)


@dataclass(frozen=True, repr=False)
class AttackedSoftSync(mh.protocols.SoftSync):
    """`softsync` with workers that send wrong updates.

    Example: `attacked_softsync(wait_for=7, liars=2)`
    """

    name: ClassVar[str] = "attacked_softsync"

    liars: int = 1
    """Workers that send wrong updates, from rank 0 on."""
    factor: float = -1.0
    """What they multiply their updates by."""
    nan: bool = False
    """Whether they send NaN instead."""

    async def worker(self, replica: Any, endpoint: Any) -> None:
        """As the strategy, with another replica."""
        await super().worker(_lying(self, replica), endpoint)


def register_attackers() -> None:
    """Make both strategies known by name, in this process."""
    mh.register(Attacked)
    mh.register(AttackedSoftSync)
