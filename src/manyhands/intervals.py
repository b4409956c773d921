"""Intervals in a run, by samples, seconds or epochs: `every(samples=5000)`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_TEXT = re.compile(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?)\s*(samples|s|seconds|min|h|epochs?|)\s*")
_SECONDS = {"s": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Every:
    """An interval of exactly one kind, as `every` returns it.

    Example:
        >>> import manyhands as mh
        >>> mh.Every.read("10s")
        every(seconds=10)
    """

    samples: int | None = None
    """Samples of all workers together."""
    seconds: float | None = None
    """Seconds since the last time."""
    epochs: float | None = None
    """Passes over the data; a fraction is allowed."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                "every() takes one of samples, seconds and epochs, as in every(samples=5000), "
                f"got {', '.join(given) or 'none'}"
            )
        ((name, value),) = given.items()
        if name == "samples" and not hasattr(value, "__index__"):
            raise TypeError(f"samples must be a whole number, an int, got {value!r}")
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {value}")

    @classmethod
    def read(cls, text: str | Every) -> Every:
        """The interval that a text describes.

        Args:
            text: "5000" or "5000 samples", "10s", "2 min", "0.5 epochs"; an interval is returned
                as it is.

        Raises:
            ValueError: the text has another form.
        """
        if isinstance(text, Every):
            return text
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"expected an interval such as '5000' samples, '10s' or '0.5 epochs', got {text!r}"
            )
        number, unit = float(match[1]), match[2]
        if unit in _SECONDS:
            return cls(seconds=number * _SECONDS[unit])
        if unit.startswith("epoch"):
            return cls(epochs=number)
        if number != int(number):
            raise ValueError(f"samples must be a whole number, got {match[1]}")
        return cls(samples=int(number))

    def __repr__(self) -> str:
        ((name, value),) = ((n, v) for n, v in vars(self).items() if v is not None)
        return f"every({name}={value:g})" if name != "samples" else f"every({name}={value})"

    def __str__(self) -> str:
        if self.samples is not None:
            return f"{self.samples} samples"
        return f"{self.seconds:g}s" if self.seconds is not None else f"{self.epochs:g} epochs"


def every(
    *, samples: int | None = None, seconds: float | None = None, epochs: float | None = None
) -> Every:
    """An interval in a run, for `Job(evaluate_every=…)`.

    Args:
        samples: so many samples of all workers together.
        seconds: so many seconds since the last time.
        epochs: so many passes over the data; a fraction is allowed.

    Returns:
        The interval.

    Raises:
        ValueError: not exactly one is given, or it is not above 0.

    Example:
        >>> import manyhands as mh
        >>> mh.every(samples=5000), mh.every(epochs=0.25)
        (every(samples=5000), every(epochs=0.25))
    """
    return Every(samples=samples, seconds=seconds, epochs=epochs)
