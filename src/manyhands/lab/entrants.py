"""Entrants of a comparison: strategies, each optionally slowed down, and sweeps over options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from manyhands.notation import NotationError, Value, alternatives, has_sweep, parse, spelled, split
from manyhands.notation.error import unknown
from manyhands.notation.fields import settable
from manyhands.pacing import Pace
from manyhands.reports.comparison.results import CONDITIONS
from manyhands.script.origin import read_lr
from manyhands.strategies import Strategy, strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from manyhands.notation import Alternative

_SLOWED = re.compile(r"(?P<strategy>.*\S)\s+slow\s+(?P<paces>\S.*)", re.DOTALL)
_OPTION = re.compile(r"\s*(\w+)\s*=")
OPTIONS = ("workers", "lr", *CONDITIONS)
"""What can be swept beside the fields of a strategy."""

Conditions = tuple[tuple[str, str], ...]
"""Names and values of swept conditions."""


@dataclass(frozen=True)
class Entrant:
    """A strategy in a comparison, and the workers that are slowed down under it.

    >>> Entrant.read("ssp(staleness=4) slow all:1.2x").label
    'ssp(staleness=4) slow all:1.2x'
    >>> Entrant.read("local_sgd(8)").label
    'local_sgd(every=8)'
    """

    strategy: Strategy
    slow: tuple[Pace, ...] = ()
    number: int = 1
    """Counts equal entrants: a strategy may be compared with itself."""
    text: str = field(default="", compare=False)
    """The strategy as it was written; empty if it was given as a value."""
    shown: frozenset[str] = field(default=frozenset(), compare=False)
    """Options that another entrant has with another value: `every`, `outer.every`."""
    lr: str = ""
    """Learning rate of its runs, or a factor of the optimizer's; empty for the optimizer's own."""
    curve: str = field(default="", compare=False)
    """The sweep that it is a point of, as it was written; empty if it is not part of one."""
    swept: tuple[tuple[str, int | float | str], ...] = field(default=(), compare=False)
    """Its own values of the swept options, by name."""

    @classmethod
    def read(cls, source: str | Strategy) -> Entrant:
        """Parse an entrant: a strategy, optionally followed by `slow` and paces."""
        match = _SLOWED.fullmatch(source.strip()) if isinstance(source, str) else None
        if match is not None:
            paces = tuple(map(Pace.read, match["paces"].split()))
            return cls(strategy(match["strategy"]), paces, text=match["strategy"])
        return cls(strategy(source), text=source.strip() if isinstance(source, str) else "")

    @cached_property
    def label(self) -> str:
        """The name in tables and charts, unique among the entrants of a comparison.

        It shows the fields that were written, that differ from the defaults, and that differ
        among entrants.
        """
        rate = f" lr={self.lr}" if self.lr else ""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.written}{rate}{again}"

    @property
    def written(self) -> str:
        """The text from which it can be read again, without its learning rate."""
        name = spelled(self.strategy, parse(self.text) if self.text else None, self.shown)
        slowed = f" slow {' '.join(map(str, self.slow))}" if self.slow else ""
        return f"{name}{slowed}"

    def workers(self, asked: int) -> int:
        """Number of workers it runs with, if `asked` are requested: `single()` always with one."""
        return 1 if self.strategy.needs(asked).only_one_worker else asked


@dataclass(frozen=True)
class Sweeps:
    """What a comparison sweeps: options of strategies, and options of the runs."""

    strategies: tuple[str, ...] = ()
    """Texts with ranges or sets in them, as they were written."""
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values of every other option, by name: one of `OPTIONS`."""

    @classmethod
    def read(cls, texts: Iterable[str]) -> Sweeps:
        """Parse sweeps, each a text such as "softsync(wait_for=1..8)" or "workers=2..8 step 2".

        >>> Sweeps.read(["ssp(staleness=0..4)", "workers={2, 4}"]).workers
        (2, 4)

        Raises:
            NotationError: a text has no range or set, or an option is unknown or given twice.
        """
        strategies: list[str] = []
        options: dict[str, tuple[str, ...]] = {}
        for text in texts:
            found = alternatives(text)
            (path, _), *_ = found[0].values
            name = path[0]
            if isinstance(name, int):
                strategies.append(text.strip())
                continue
            if name not in OPTIONS:
                problem = unknown(f"there is no option {name!r} to sweep", name, OPTIONS)
                raise NotationError(problem, text, _begin(text))
            if name in options:
                raise NotationError(f"{name!r} is swept twice; keep one", text, _begin(text))
            options[name] = tuple(each.values[0][1] for each in found)
        return cls(tuple(strategies), tuple(options.items()))

    @property
    def texts(self) -> tuple[str, ...]:
        """All sweeps as text."""
        return (*self.strategies, *(f"{name}={{{', '.join(v)}}}" for name, v in self.options))

    def values(self, name: str) -> tuple[str, ...]:
        """The values of an option; empty if it is not swept."""
        return dict(self.options).get(name, ())

    @property
    def workers(self) -> tuple[int, ...] | None:
        """The swept numbers of workers; None if they are not swept."""
        try:
            return tuple(map(int, self.values("workers"))) or None
        except ValueError:
            given = ", ".join(self.values("workers"))
            raise ValueError(f"workers must be whole numbers, got {given}") from None

    @property
    def conditions(self) -> tuple[Conditions, ...]:
        """Every combination of the values of swept conditions; one without any if there is none."""
        swept = [
            [(name, value) for value in values]
            for name, values in self.options
            if name in CONDITIONS
        ]
        return tuple(product(*swept))


def _begin(text: str) -> int:
    match = _OPTION.match(text)
    return match.start(1) if match else 0


def read_entrants(
    source: str | Iterable[str | Strategy], sweeps: Sweeps | None = None
) -> tuple[Entrant, ...]:
    """Parse the entrants of a comparison: a text separated by commas, or several texts or values.

    Entrants of swept strategies follow them. A swept learning rate multiplies all.

    Raises:
        NotationError: one is not a strategy; the message states where and how to fix it.
    """
    sweeps = sweeps or Sweeps()
    parts = split(source) if isinstance(source, str) else tuple(source)
    for part in parts:
        if isinstance(part, str) and has_sweep(part):
            problem = "a range or a set of values is a sweep: give it as --sweep (in Python sweep=)"
            raise NotationError(problem, part, 0)
    entrants = [Entrant.read(part) for part in parts]
    entrants += [point for text in sweeps.strategies for point in _points(text)]
    if not entrants:
        raise ValueError(
            "expected at least 1 strategy to compare, as in 'allreduce, ssp(staleness=4)'"
        )
    if rates := sweeps.values("lr"):
        entrants = [_at_rate(entrant, rate) for entrant in entrants for rate in rates]
    found: list[Entrant] = []
    for entrant in entrants:
        what = (entrant.strategy, entrant.slow, entrant.lr)
        alike = sum((other.strategy, other.slow, other.lr) == what for other in found)
        shown = _differing(entrant.strategy, [other.strategy for other in entrants])
        found.append(replace(entrant, number=alike + 1, shown=shown))
    return tuple(found)


def _points(text: str) -> Iterator[Entrant]:
    """The entrants of a swept strategy."""
    for alternative in alternatives(text):
        entrant = Entrant.read(alternative.text)
        swept = tuple(_swept(entrant.strategy, alternative))
        yield replace(entrant, curve=text, swept=swept)


def _swept(own: Strategy, alternative: Alternative) -> Iterator[tuple[str, int | float | str]]:
    """The swept fields of a strategy and their values; a name is a path if it occurs twice."""
    paths = [_names(own, path[1:]) for path, _ in alternative.values]
    last = [path[-1] for path in paths]
    for path, (_, value) in zip(paths, alternative.values, strict=True):
        clashes = last.count(path[-1]) > 1 or path[-1] in OPTIONS
        yield ".".join((own.name, *path) if clashes else path[-1:]), number(value)


def _names(value: object, path: tuple[str | int, ...]) -> tuple[str, ...]:
    """A path in which fields that were given by position have their names."""
    names: list[str] = []
    for part in path:
        own = fields(value) if is_dataclass(value) else ()
        known = [each.name for each in own if not each.kw_only]
        name = known[part] if isinstance(part, int) and part < len(known) else str(part)
        value = getattr(value, name, None)
        names.append(name)
    return tuple(names) or ("slow",)


def _at_rate(entrant: Entrant, rate: str) -> Entrant:
    value, is_factor = read_lr(rate)
    swept = (*entrant.swept, ("lr", rate if is_factor else value))
    return replace(entrant, lr=rate, curve=entrant.curve or entrant.label, swept=swept)


def number(text: str) -> int | float | str:
    """A value as a number if it is one, else as it is written.

    >>> number("4"), number("0.5"), number("10mbit")
    (4, 0.5, '10mbit')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _differing(own: Strategy, others: Iterable[Strategy]) -> frozenset[str]:
    """The options that another strategy has under the same name with another value.

    Those of a strategy within a strategy are named by their path: `outer.every`.
    """
    theirs = [_options(other) for other in others]
    return frozenset(
        name
        for name, value in _options(own).items()
        if any(name in other and other[name] != value for other in theirs)
    )


def _options(value: Value) -> dict[str, object]:
    """All options by path, defaults included; one that is a value itself is stated by its name."""
    found: dict[str, object] = {}
    for each in settable(type(value)):
        held = getattr(value, each.name)
        found[each.name] = held.name if isinstance(held, Value) else held
        if isinstance(held, Value):
            nested = _options(held)
            found |= {f"{each.name}.{name}": option for name, option in nested.items()}
    return found
