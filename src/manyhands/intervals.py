"""Intervals in a run, by samples, steps, seconds or epochs: `every(samples=5000)`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

_TEXT = re.compile(
    r"\s*(\d+\.?\d*(?:e[+-]?\d+)?)\s*(samples|steps?|s|seconds|min|h|epochs?|)\s*"
    r"(?:\bto\s+(\S+)\s*)?"
)
_IN_MEMORY = re.compile(r"(?:(.*),)?([^,]*\S)\s+in\s+memory\s*")
_SECONDS = {"s": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Every:
    """An interval of exactly one kind, as `every` returns it.

    Of checkpoints that are kept in memory alone it has no kind of its own, but `memory`.

    Example:
        >>> import manyhands as mh
        >>> mh.Every.read("10s"), mh.Every.read("10min, 10s in memory")
        (every(seconds=10), every(seconds=600, memory=every(seconds=10)))
    """

    samples: int | None = None
    """Samples of all workers together."""
    seconds: float | None = None
    """Seconds since the last time."""
    epochs: float | None = None
    """Passes over the data; a fraction is allowed."""
    steps: int | None = None
    """Global batches of all workers together."""
    to: str = ""
    """A URL to which checkpoints are copied, such as `s3://bucket/run`; empty for none."""
    memory: Every | None = None
    """How often a checkpoint is kept in memory; None for never."""

    def __post_init__(self) -> None:
        if self.memory is not None and (self.memory.to or self.memory.memory is not None):
            raise ValueError(
                f"memory must be an interval such as every(seconds=10), got {self.memory!r}"
            )
        if self.to and "://" not in self.to:
            raise ValueError(
                f"to must be a URL such as 's3://bucket/run', got {self.to!r}: checkpoints are in "
                "the run's own folder in any case (--output)"
            )
        given = self._given
        if not given and self.memory is not None:
            if self.to:
                raise ValueError(
                    f"checkpoints in memory are not copied to {self.to}: give an interval of those "
                    "that are, as in '10min to s3://bucket/run, 10s in memory'"
                )
            return
        if len(given) != 1:
            raise ValueError(
                "every() takes one of samples, steps, seconds and epochs, as in "
                f"every(samples=5000), got {', '.join(given) or 'none'}"
            )
        ((name, value),) = given.items()
        if name in ("samples", "steps") and not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be a whole number, an int, got {value!r}")
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {value}")

    @classmethod
    def read(cls, text: str | Every, *, bare: bool = True) -> Every:
        """The interval that a text describes.

        Args:
            text: "5000" or "5000 samples", "100 steps", "10s", "2 min", "0.5 epochs"; with "to
                s3://bucket/run" after it, of checkpoints, and with "10s in memory" alone or after
                a comma. An interval is returned as it is.
            bare: whether a number without a unit is allowed; it is a number of samples.

        Raises:
            ValueError: the text has another form.
        """
        if isinstance(text, Every):
            return text
        if kept := _IN_MEMORY.fullmatch(text):
            memory = cls.read(kept[2], bare=bare)
            beside = None if kept[1] is None else cls.read(kept[1], bare=bare)
            return cls(memory=memory) if beside is None else replace(beside, memory=memory)
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                "expected an interval such as '5000' samples, '10s' or '0.5 epochs', and of "
                f"checkpoints also '10s in memory', got {text!r}"
            )
        number, unit, to = float(match[1]), match[2], match[3] or ""
        if not unit and not bare:
            raise ValueError(
                f"the interval {text!r} has no unit: write '{match[1]}min', '{match[1]} steps' or "
                f"'{match[1]} samples'"
            )
        if unit in _SECONDS:
            return cls(seconds=number * _SECONDS[unit], to=to)
        if unit.startswith("epoch"):
            return cls(epochs=number, to=to)
        if number != int(number):
            raise ValueError(f"{unit or 'samples'} must be a whole number, got {match[1]}")
        if unit.startswith("step"):
            return cls(steps=int(number), to=to)
        return cls(samples=int(number), to=to)

    @property
    def on_disk(self) -> Every | None:
        """The interval of what is stored on the disk; None if all is kept in memory."""
        return replace(self, memory=None) if self._given else None

    @property
    def _given(self) -> dict[str, float]:
        others = ("to", "memory")
        return {
            name: one for name, one in vars(self).items() if one is not None and name not in others
        }

    def __repr__(self) -> str:
        if not self._given:
            return f"{repr(self.memory)[:-1]}, memory=True)"
        ((name, value),) = self._given.items()
        also = f", to={self.to!r}" if self.to else ""
        also += f", memory={self.memory!r}" if self.memory is not None else ""
        number = f"{value}" if isinstance(value, int) else f"{value:g}"
        return f"every({name}={number}{also})"

    def __str__(self) -> str:
        if not self._given:
            return f"{self.memory} in memory"
        also = f" to {self.to}" if self.to else ""
        also += f", {self.memory} in memory" if self.memory is not None else ""
        for name, whole in (("samples", self.samples), ("steps", self.steps)):
            if whole is not None:
                return f"{whole} {name}{also}"
        number = f"{self.seconds:g}s" if self.seconds is not None else f"{self.epochs:g} epochs"
        return f"{number}{also}"


def every(
    *,
    samples: int | None = None,
    seconds: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    to: str = "",
    memory: bool | Every = False,
) -> Every:
    """An interval in a run, for `Job(evaluate_every=…)` and `Job(checkpoint=…)`.

    Args:
        samples: so many samples of all workers together.
        seconds: so many seconds since the last time.
        epochs: so many passes over the data; a fraction is allowed.
        steps: so many global batches; for checkpoints.
        to: a URL to which checkpoints are copied too, for fsspec: `s3://bucket/run`.
        memory: True if checkpoints are kept in memory instead of on the disk; or the interval of
            those that are kept in memory beside: `every(seconds=600, memory=every(seconds=10))`.

    Returns:
        The interval.

    Raises:
        ValueError: not exactly one is given, or it is not above 0.

    Example:
        >>> import manyhands as mh
        >>> mh.every(samples=5000), mh.every(epochs=0.25)
        (every(samples=5000), every(epochs=0.25))
        >>> str(mh.every(seconds=10, memory=True))
        '10s in memory'
    """
    kind = Every(
        samples=samples,
        seconds=seconds,
        epochs=epochs,
        steps=steps,
        to="" if memory is True else to,
    )
    if memory is True:
        return Every(memory=kind, to=to)
    return replace(kind, memory=memory or None)
