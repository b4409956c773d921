"""The catalog of strategies: their names, and how a text is read."""

import re
from functools import lru_cache
from typing import TypeAlias

from manyhands.notation import Catalog, NotationError
from manyhands.placements import ALL as PLACEMENTS
from manyhands.placements import Placement
from manyhands.protocols import ALL as PROTOCOLS
from manyhands.protocols import StrategyProtocol
from manyhands.strategies.elsewhere import ELSEWHERE

Strategy: TypeAlias = Placement | StrategyProtocol

_FIRST_WORD = re.compile(r"\s*([A-Za-z]\w*)")

CATALOG: Catalog[Strategy] = Catalog(
    kind="strategy",
    classes=(*PLACEMENTS, *PROTOCOLS),
    # A server applies one update at a time, whole: "asynchronous with a lock" is what it is.
    aliases={"locked": "asynchronous"},
)


def hint(text: str) -> None:
    """Raise NotationError if a text begins with another project's name of a strategy."""
    found = _FIRST_WORD.match(text)
    if found is None or found[1] in CATALOG:
        return
    here = ELSEWHERE.get(found[1].replace("_", "").lower().removesuffix("strategy"))
    if here is not None:
        problem = f"there is no strategy {found[1]!r}; its name here is {here}"
        raise NotationError(problem, text, found.start(1))


def strategy(source: str | Strategy) -> Strategy:
    """The strategy that a text describes.

    Every function that takes a strategy takes its text as well. `mh.strategies` has the same
    strategies as classes.

    Args:
        source: a text, as on the command line; a strategy is returned as it is.

    Returns:
        The strategy, a frozen value. `str` gives its text.

    Raises:
        NotationError: the text is not a strategy; the message shows the place and the remedy.
        TypeError: `source` is neither a text nor a strategy of the catalog.

    Example:
        >>> import manyhands as mh
        >>> mh.strategy("allreduce(10)")
        allreduce(bucket_mb=10.0)
        >>> mh.strategy("ssp") == mh.strategies.ssp()
        True
    """
    return _read(source) if isinstance(source, str) else CATALOG.read(source)


@lru_cache(maxsize=64)
def _read(text: str) -> Strategy:
    """The strategy of a text: it is parsed once per process, however many parts of it ask."""
    hint(text)
    return CATALOG.read(text)


def names() -> tuple[str, ...]:
    """The names of all strategies."""
    return CATALOG.names()
