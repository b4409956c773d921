"""The catalog of strategies: every name that may stand where a strategy is asked for."""

from typing import TypeAlias

from manyhands.notation import Catalog
from manyhands.placements import ALL, Placement

Strategy: TypeAlias = Placement

CATALOG: Catalog[Strategy] = Catalog(kind="strategy", classes=ALL)


def strategy(source: str | Strategy) -> Strategy:
    """The strategy that a text describes: `strategy("allreduce(bucket_mb=10)")`.

    A strategy is returned as it is, so whoever takes one takes its text as well.

    Raises:
        NotationError: The text is not a strategy; the message says where and what to write.
        TypeError: `source` is neither a text nor a strategy of the catalog.
    """
    return CATALOG.read(source)


def names() -> tuple[str, ...]:
    """The names of all strategies."""
    return CATALOG.names()
