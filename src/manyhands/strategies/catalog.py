"""The catalog of strategies: their names, and how a text is read."""

import re
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

from manyhands import schedules
from manyhands.codecs import CATALOG as CODECS
from manyhands.codecs import Codec
from manyhands.codecs.reducers import CATALOG as REDUCERS
from manyhands.notation import Catalog, NotationError
from manyhands.placements import ALL as PLACEMENTS
from manyhands.placements import Placement
from manyhands.protocols import ALL as PROTOCOLS
from manyhands.protocols import StrategyProtocol
from manyhands.protocols.aggregation import CATALOG as AGGREGATORS
from manyhands.schedules import Schedule
from manyhands.strategies.elsewhere import ELSEWHERE
from manyhands.strategies.plugins import load_plugins

Strategy: TypeAlias = Placement | StrategyProtocol

_FIRST_WORD = re.compile(r"\s*([A-Za-z]\w*)")

CATALOG: Catalog[Strategy] = Catalog(
    kind="strategy",
    classes=(*PLACEMENTS, *PROTOCOLS),
    nested=(CODECS, REDUCERS, AGGREGATORS),
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
    try:
        hint(text)
        return CATALOG.read(text)
    except NotationError:
        if not load_plugins(add):
            raise
        hint(text)
        return CATALOG.read(text)


def is_known(text: str) -> bool:
    """Whether a text begins with the name of a strategy, or with another project's name of one.

    If it does not, a script may define the strategy.
    """
    found = _FIRST_WORD.match(text)
    if found is None:
        return True
    name = found[1].replace("_", "").lower().removesuffix("strategy")
    return found[1] in CATALOG or name in ELSEWHERE


def add(thing: type[Strategy] | type[Codec] | Schedule) -> None:
    """Add a class to the catalog of strategies or codecs, or a pipeline schedule."""
    if isinstance(thing, type) and issubclass(thing, Placement | StrategyProtocol | Codec):
        if thing.__abstractmethods__:
            missing = ", ".join(sorted(thing.__abstractmethods__))
            raise TypeError(f"{thing.__qualname__} must define {missing} before it is registered")
        if issubclass(thing, Codec):
            CODECS.add(thing)
            CATALOG.include(CODECS)
        else:
            if not hasattr(thing, "support"):
                thing.support = "experimental"
            CATALOG.add(thing)
        _read.cache_clear()
    elif not isinstance(thing, type) and callable(thing):
        schedules.add(thing)
    else:
        raise TypeError(
            f"{thing!r} cannot be registered: expected a subclass of "
            "mh.protocols.StrategyProtocol, mh.placements.Placement or mh.codecs.Codec, or the "
            "function of a pipeline schedule"
        )


T = TypeVar("T")


def register(thing: T) -> T:
    """Register a strategy, a codec or a pipeline schedule of one's own under its name.

    It is a decorator. Afterwards every verb accepts the name, in Python and on the command line,
    because every process of a run executes the script before it reads a strategy's text.

    A strategy is a subclass of `mh.protocols.StrategyProtocol` or `mh.placements.Placement`: a
    `@dataclass(frozen=True, repr=False)` with its name in text as `name`. So is a codec, a subclass
    of `mh.codecs.Codec`. A pipeline schedule is a function of stages, microbatches and ranks, known
    by its own name.

    A package registers what it defines by an entry point of the group `manyhands`, which is loaded
    when a text has an unknown name.

    Args:
        thing: the class or the function.

    Returns:
        The same.

    Raises:
        TypeError: it cannot be registered, or the name is taken; the message says why.

    Example:
        >>> import dataclasses
        >>> import manyhands as mh
        >>> @mh.register
        ... @dataclasses.dataclass(frozen=True, repr=False)
        ... class Patient(mh.protocols.Synchronous):
        ...     '''Synchronous training under another name.'''
        ...
        ...     name = "patient"
        >>> mh.strategy("patient(servers=2)")
        patient(servers=2)
    """
    add(cast("Any", thing))
    return thing


def names() -> tuple[str, ...]:
    """The names of all strategies."""
    return CATALOG.names()
