"""Free parameters of a job: values that `search` chooses.

They are the default values of the function that makes the job::

    def job(lr=mh.free.log(1e-4, 1e-1), width=mh.free.choice(64, 128, 256)):
        return mh.Job(…)

`manyhands search` calls it with the values of a trial, in every process of the trial. Called by
`train`, or without values, each parameter has its `start`: the middle of its range, or the first of
its choices, unless another one is given.

    >>> log(1e-4, 1e-2).start, choice(64, 128).start
    (0.001, 64)
"""

from __future__ import annotations

import inspect
import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

__all__ = [
    "Choice",
    "FreeParameter",
    "Integer",
    "LogUniform",
    "Sequence",
    "Uniform",
    "choice",
    "free_parameters",
    "integer",
    "log",
    "sequence",
    "uniform",
]

_PLAIN = (bool, int, float, str)


class FreeParameter(ABC):
    """A parameter with the values that it may have.

    Example:
        >>> import manyhands as mh
        >>> rate = mh.free.log(1e-4, 1e-1)
        >>> isinstance(rate, mh.free.FreeParameter), 0.2 in rate
        (True, False)
    """

    @property
    @abstractmethod
    def start(self) -> Any:
        """The value where none is chosen."""

    @abstractmethod
    def __contains__(self, value: object) -> bool: ...

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> Any:
        """A value, all of them being as likely on the parameter's scale."""

    @abstractmethod
    def near(self, value: Any, generator: np.random.Generator, reach: float = 0.2) -> Any:
        """Another value near this one.

        Args:
            value: the value.
            generator: the source of random numbers.
            reach: the standard deviation of the step, as a fraction of the range.
        """

    def position(self, value: Any) -> float:  # noqa: ARG002 - of those that have an order
        """Where a value is on the parameter's scale, from 0 to 1."""
        raise TypeError(f"{self} has no order, and so no position of a value")

    def at(self, position: float) -> Any:  # noqa: ARG002 - of those that have an order
        """The value at a position from 0 to 1; positions beyond are the ends."""
        raise TypeError(f"{self} has no order, and so no value at a position")


@dataclass(frozen=True)
class Uniform(FreeParameter):
    """A number from `low` to `high`.

    Example:
        >>> import manyhands as mh
        >>> mh.free.uniform(0.0, 0.9).at(0.5)
        0.45
    """

    low: float
    high: float
    start: float = field(default=math.nan, kw_only=True)
    """The value where none is chosen. Default: the middle."""

    def __post_init__(self) -> None:
        self._check()
        if math.isnan(self.start):
            object.__setattr__(self, "start", self.at(0.5))
        if self.start not in self:
            raise ValueError(f"start must be from {self.low} to {self.high}, got {self.start}")

    def _check(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"low must be less than high, got {self.low} and {self.high}")

    def __contains__(self, value: object) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low <= value <= self.high  # type: ignore[operator]

    def position(self, value: float) -> float:
        """Where a value is on the parameter's scale, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def at(self, position: float) -> float:
        """The value at a position from 0 to 1; positions beyond are the ends."""
        return self.nearest(self.low + position * (self.high - self.low))

    def nearest(self, number: float) -> float:
        """The nearest value within the bounds, with twelve digits: it can be read and repeated."""
        return min(max(float(f"{number:.12g}"), self.low), self.high)

    def draw(self, generator: np.random.Generator) -> float:
        """A value, all of them being as likely on the parameter's scale."""
        return self.at(generator.random())

    def near(self, value: float, generator: np.random.Generator, reach: float = 0.2) -> float:
        """Another value near this one."""
        return self.at(self.position(value) + reach * generator.standard_normal())


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number from `low` to `high`, on a logarithmic scale: a learning rate.

    Example:
        >>> import manyhands as mh
        >>> mh.free.log(1e-4, 1e-2).at(0.5)
        0.001
    """

    def _check(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"low must be above 0 and less than high, got {self.low} and {self.high}"
            )

    def position(self, value: float) -> float:
        """Where a value is on the parameter's scale, from 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, position: float) -> float:
        """The value at a position from 0 to 1; positions beyond are the ends."""
        return self.nearest(self.low * (self.high / self.low) ** min(max(position, 0.0), 1.0))


@dataclass(frozen=True)
class Integer(FreeParameter):
    """A whole number from `low` to `high`.

    Example:
        >>> import manyhands as mh
        >>> mh.free.integer(1, 9).start, mh.free.integer(8, 512, scale="log").start
        (5, 64)
    """

    low: int
    high: int
    scale: str = field(default="linear", kw_only=True)
    """`linear` or `log`."""
    start: Any = field(default=None, kw_only=True)
    """The value where none is chosen. Default: the middle."""

    def __post_init__(self) -> None:
        if self.scale not in ("linear", "log"):
            raise ValueError(f'scale must be "linear" or "log", got {self.scale!r}')
        for one in (self.low, self.high):
            operator.index(one)
        if not self.low < self.high or (self.scale == "log" and self.low < 1):
            least = ", and low at least 1" if self.scale == "log" else ""
            raise ValueError(f"low must be less than high{least}, got {self.low} and {self.high}")
        if self.start is None:
            object.__setattr__(self, "start", self.at(0.5))
        if self.start not in self:
            raise ValueError(f"start must be from {self.low} to {self.high}, got {self.start}")

    def __contains__(self, value: object) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.low <= value <= self.high  # type: ignore[operator]

    def position(self, value: int) -> float:
        """Where a value is on the parameter's scale, from 0 to 1."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, position: float) -> int:
        """The value at a position from 0 to 1; positions beyond are the ends."""
        position = min(max(position, 0.0), 1.0)
        exact: float = self.low + position * (self.high - self.low)
        if self.scale == "log":
            exact = self.low * (self.high / self.low) ** position
        return min(max(math.floor(exact + 0.5), self.low), self.high)

    def draw(self, generator: np.random.Generator) -> int:
        """A value, all of them being as likely on the parameter's scale."""
        if self.scale == "log":
            return self.at(generator.random())
        return int(generator.integers(self.low, self.high, endpoint=True))

    def near(self, value: int, generator: np.random.Generator, reach: float = 0.2) -> int:
        """Another value near this one."""
        step = reach * generator.standard_normal()
        found = self.at(self.position(value) + step)
        if found == value:
            found += 1 if step > 0 else -1
        # At an end, the neighbour on the other side.
        return found if found in self else 2 * value - found


@dataclass(frozen=True)
class Choice(FreeParameter):
    """One of several values: numbers, texts or truth values.

    Example:
        >>> import manyhands as mh
        >>> mh.free.choice("allreduce()", "ssp(staleness=4)").start
        'allreduce()'
    """

    values: tuple[Any, ...]
    start: Any = field(default=None, kw_only=True)
    """The value where none is chosen. Default: the first."""

    def __post_init__(self) -> None:
        for one in self.values:
            if not isinstance(one, _PLAIN):
                raise TypeError(
                    f"a choice is between numbers, texts and truth values, because it is stored "
                    f"and sent to other processes as text; got {one!r}"
                )
        if len(self.values) < 2 or len({(type(one), one) for one in self.values}) < len(
            self.values
        ):
            raise ValueError(f"a choice needs two or more different values, got {self.values}")
        if self.start is None:
            object.__setattr__(self, "start", self.values[0])
        if self.start not in self:
            raise ValueError(f"start must be one of {self.values}, got {self.start!r}")

    def __contains__(self, value: object) -> bool:
        return any(value == one and type(value) is type(one) for one in self.values)

    def position(self, value: Any) -> float:
        """Where a value is on the parameter's scale, from 0 to 1."""
        return (self.values.index(value) + 0.5) / len(self.values)

    def at(self, position: float) -> Any:
        """The value at a position from 0 to 1; positions beyond are the ends."""
        return self.values[min(max(int(position * len(self.values)), 0), len(self.values) - 1)]

    def draw(self, generator: np.random.Generator) -> Any:
        """A value, all of them being as likely."""
        return self.values[int(generator.integers(len(self.values)))]

    def near(self, value: Any, generator: np.random.Generator, reach: float = 0.2) -> Any:  # noqa: ARG002 - choices have no distance
        """Another value."""
        others = [one for one in self.values if one != value or type(one) is not type(value)]
        return others[int(generator.integers(len(others)))]


@dataclass(frozen=True)
class Sequence(FreeParameter):
    """A list of choices, of any length within bounds: the layers of a network.

    A near one has an item more, an item less, or another item.

    Example:
        >>> import manyhands as mh
        >>> layers = mh.free.sequence(mh.free.choice(16, 32, 64), 1, 4)
        >>> layers.start, [16, 64] in layers, [] in layers
        ([16], True, False)
    """

    of: Choice
    """The items."""
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not isinstance(self.of, Choice):
            raise TypeError(f"a sequence is of choices: sequence(choice(…), 1, 4), got {self.of!r}")
        if not 0 <= self.shortest < self.longest:
            raise ValueError(
                f"the shortest length must be 0 or more and less than the longest, got "
                f"{self.shortest} and {self.longest}"
            )

    @property
    def start(self) -> list[Any]:
        """The value where none is chosen."""
        return [self.of.start] * max(1, self.shortest)

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, list)
            and self.shortest <= len(value) <= self.longest
            and all(one in self.of for one in value)
        )

    def draw(self, generator: np.random.Generator) -> list[Any]:
        """A value, all lengths being as likely."""
        length = int(generator.integers(self.shortest, self.longest, endpoint=True))
        return [self.of.draw(generator) for _ in range(length)]

    def near(
        self, value: list[Any], generator: np.random.Generator, reach: float = 0.2
    ) -> list[Any]:
        """Another value near this one."""
        ways = []
        if len(value) < self.longest:
            ways.append("more")
        if len(value) > self.shortest:
            ways.append("less")
        if value:
            ways.append("other")
        way = ways[int(generator.integers(len(ways)))]
        found = list(value)
        if way == "more":
            found.insert(int(generator.integers(len(value) + 1)), self.of.draw(generator))
        elif way == "less":
            del found[int(generator.integers(len(value)))]
        else:
            where = int(generator.integers(len(value)))
            found[where] = self.of.near(found[where], generator, reach)
        return found


uniform = Uniform
log = LogUniform
integer = Integer
sequence = Sequence


def choice(*values: Any, start: Any = None) -> Choice:
    """One of several values: numbers, texts or truth values.

    Args:
        values: the values.
        start: the value where none is chosen. Default: the first.

    Example:
        >>> import manyhands as mh
        >>> mh.free.choice(64, 128, 256, start=128).start
        128
    """
    return Choice(values, start=start)


def free_parameters(function: Callable[..., Any]) -> dict[str, FreeParameter]:
    """The free parameters of a function: those whose default value is one, by name.

    Example:
        >>> import manyhands as mh
        >>> mh.free.free_parameters(lambda lr=mh.free.log(0.001, 0.1), depth=2: None)
        {'lr': LogUniform(low=0.001, high=0.1, start=0.01)}
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return {}
    return {
        name: one.default
        for name, one in parameters.items()
        if isinstance(one.default, FreeParameter)
    }


def settled(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every free parameter of a function: the one that is given, or its start.

    Raises:
        ValueError: a value is for no free parameter, or is none that it may have.
    """
    free = free_parameters(function)
    for name, value in values.items():
        if name not in free:
            known = ", ".join(free) or "none"
            raise ValueError(f"{name} is not a free parameter of the job; it has {known}")
        if value not in free[name]:
            raise ValueError(f"{name} cannot be {value!r}: it is {_range(free[name])}")
    return {name: values.get(name, one.start) for name, one in free.items()}


def _range(parameter: FreeParameter) -> str:
    """The values that a parameter may have, in words."""
    match parameter:
        case Choice(values=values):
            return f"one of {', '.join(map(written, values))}"
        case Sequence(of=of, shortest=shortest, longest=longest):
            return f"a list of {shortest} to {longest} items, each {_range(of)}"
        case Uniform(low=low, high=high) | Integer(low=low, high=high):
            return f"from {low} to {high}"
    return str(parameter)


def read_values(texts: Mapping[str, str], function: Callable[..., Any]) -> dict[str, Any]:
    """The values that texts of a command line describe, for the free parameters of a function.

    Raises:
        ValueError: a text is not a value of its parameter.
    """
    free = free_parameters(function)
    return {name: _read(text, free[name]) if name in free else text for name, text in texts.items()}


def _read(text: str, parameter: FreeParameter) -> Any:
    match parameter:
        case Choice(values=values):
            return next((one for one in values if written(one) == text.strip()), text)
        case Sequence(of=of):
            items = [one for one in text.strip().strip("[]").split(",") if one.strip()]
            return [_read(one.strip(), of) for one in items]
        case Integer():
            return int(text) if text.strip().lstrip("+-").isdigit() else text
    try:
        return float(text)
    except ValueError:
        return text


def written(value: Any) -> str:
    """A value as text, as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(written(one) for one in value)}]"
    return str(value)
