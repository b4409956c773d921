"""The catalog of strategies: every name that may stand where a strategy is asked for."""

from typing import TypeAlias

from manyhands.notation import Catalog
from manyhands.placements import ALL as PLACEMENTS
from manyhands.placements import Placement
from manyhands.protocols import ALL as PROTOCOLS
from manyhands.protocols import StrategyProtocol

Strategy: TypeAlias = Placement | StrategyProtocol

CATALOG: Catalog[Strategy] = Catalog(
    kind="strategy",
    classes=(*PLACEMENTS, *PROTOCOLS),
    # A server applies one update at a time, whole: "asynchronous with a lock" is what it is.
    aliases={"locked": "asynchronous"},
)


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
