"""Values that a simulation or a plan assumes because nothing gave or measured them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE: Final = "assumed"
"""Where a setting comes from that nothing gave or measured."""
REMEDIES: Final = {
    "times": "--times",
    "spread": "--times",
    "coding": "--coding",
    "bandwidth": "--bandwidth or --cluster",
    "latency": "--latency, or 'and 0.5ms' in the cluster",
    "service": "--service",
}
"""By name of a simulated value, what gives it."""


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A value that was assumed, and what the best strategy would be if it were another.

    Example:
        >>> import manyhands as mh
        >>> one = mh.Assumption(name="latency", value="0.1 ms", remedy="--latency")
        >>> one.words
        'latency 0.1 ms (--latency)'
    """

    name: str
    value: str
    remedy: str
    """The option, or the part of one, that gives the value."""
    at_half: str | None = None
    """The best strategy at half the value; null if it stays the best one, or was not tried."""
    at_twice: str | None = None
    """The same at twice the value."""
    tried: bool = False
    """Whether the ranking was made again at half and at twice the value."""

    @property
    def decides(self) -> bool:
        """Whether another strategy is the best at half or at twice the value."""
        return self.at_half is not None or self.at_twice is not None

    @property
    def words(self) -> str:
        """The value, and what gives it."""
        return f"{self.name} {self.value} ({self.remedy})"

    @property
    def consequence(self) -> str:
        """What would be best at other values; empty if the same strategy is, or none was tried."""
        found = [
            f"at {factor} of it {best}"
            for factor, best in (("half", self.at_half), ("twice", self.at_twice))
            if best is not None
        ]
        if not found:
            return ""
        return (
            f"the ranking depends on an assumed value, {self.name} {self.value}: "
            f"{', '.join(found)} is the best; give {self.remedy}"
        )


def assumed_words(found: Iterable[Assumption]) -> str:
    """All of them in a line; empty if there are none."""
    return ", ".join(one.words for one in found)


def of_settings(settings: Iterable[tuple[str, str]]) -> tuple[Assumption, ...]:
    """The assumptions of a virtual run, from the names and values of its assumed settings.

    >>> [one.remedy for one in of_settings([("times", "constant(0.1)")])]
    ['--times']
    """
    return tuple(
        Assumption(name=name, value=value, remedy=REMEDIES.get(name, f"--{name}"))
        for name, value in settings
    )
