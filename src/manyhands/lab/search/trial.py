"""Trials of a search: what is trained, and what came of it."""

from __future__ import annotations

from typing import Any

import msgspec


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting of the job's free parameters that is trained, from its start or from another trial.

    Example:
        >>> import manyhands as mh
        >>> mh.Trial(number=3, values={"lr": 0.01}).words
        'lr=0.01'
    """

    number: int
    """Counted from 0, in the order in which they were proposed."""
    values: dict[str, Any]
    """The value of every free parameter."""
    until: int | None = None
    """Samples of the run at which it ends; None for the job's own limits."""
    parent: int | None = None
    """The trial that its values come from."""
    continues: bool = False
    """Whether it goes on from the parent's checkpoint, with its samples."""
    reason: str = ""
    """Why it was proposed, in words."""
    memory: dict[str, list[float]] = {}
    """What its method needs to know of it later."""

    @property
    def words(self) -> str:
        """The values in words."""
        return ", ".join(f"{name}={short(value)}" for name, value in self.values.items())


def short(value: Any) -> str:
    """A value in words, with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(short(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a trial.

    Example:
        >>> import manyhands as mh
        >>> trial = mh.Trial(number=0, values={"lr": 0.01})
        >>> mh.TrialResult(trial=trial, score=0.9, samples=100, seconds=1.0).is_finished
        True
    """

    trial: Trial
    score: float | None
    """The metric of the search at its end; None if it failed or diverged."""
    samples: int
    """Samples of the run at its end, those of the trials that it continues included."""
    seconds: float
    """Seconds that its run took, on the clock of the run: virtual ones of a virtual run."""
    wall: float = 0.0
    """Seconds that passed while it was made, the start of its processes included."""
    metrics: dict[str, float] = {}
    """All metrics at its end."""
    failure: str = ""
    """Why it failed."""
    attempts: int = 1
    """How often it was started: more than once if a process was killed."""

    @property
    def is_finished(self) -> bool:
        """Whether it has a score."""
        return self.score is not None
