"""When validation metrics end a run: at a target, or when they no longer improve."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

_TARGET = re.compile(r"\s*([^\W\d]\w*)\s*(>=|<=)\s*([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)\s*")


@dataclass(frozen=True)
class Target:
    """A value of a validation metric at which a run stops, written `accuracy >= 0.98`.

    Example:
        >>> import manyhands as mh
        >>> target = mh.Target.read("accuracy >= 0.98")
        >>> target.reached({"accuracy": 0.985, "loss": 0.05})
        True
    """

    metric: str
    """The metric's name."""
    better: Literal[">=", "<="]
    """The direction in which the metric improves."""
    value: float
    """The value to reach."""

    @classmethod
    def read(cls, text: str) -> Target:
        """The target that a text describes.

        Args:
            text: a metric, `>=` or `<=`, and a number: "accuracy >= 0.98".

        Raises:
            ValueError: the text has another form.
        """
        match = _TARGET.fullmatch(text)
        if not match:
            raise ValueError(
                f"target {text!r} is not of the form 'accuracy >= 0.98' or 'loss <= 0.1'"
            )
        return cls(match[1], cast("Literal['>=', '<=']", match[2]), float(match[3]))

    def reached(self, values: dict[str, float]) -> bool:
        """Whether validation values meet the target.

        Args:
            values: the value of every metric, by name.
        """
        value = values[self.metric]
        return value >= self.value if self.better == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric} {self.better} {self.value:g}"


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a validation metric has not improved for some evaluations.

    Example:
        >>> import manyhands as mh
        >>> str(mh.EarlyStopping("loss", patience=3))
        'loss has not improved for 3 evaluations'
    """

    metric: str = "loss"
    """The metric's name."""
    patience: int = 3
    """Evaluations without an improvement after which the run stops."""
    min_delta: float = 0.0
    """The least change that is an improvement."""
    mode: Literal["min", "max"] | None = None
    """Whether less or more is better. Default: less for the loss, more for any other metric."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1 evaluation, got {self.patience}")
        if not 0 <= self.min_delta < math.inf:
            raise ValueError(f"min_delta must be 0 or more, got {self.min_delta}")
        if self.mode not in ("min", "max", None):
            raise ValueError(f'mode must be "min" or "max", got {self.mode!r}')

    @property
    def less_is_better(self) -> bool:
        """Whether the metric improves by falling."""
        return self.metric == "loss" if self.mode is None else self.mode == "min"

    def __str__(self) -> str:
        by = f" by {self.min_delta:g}" if self.min_delta else ""
        return f"{self.metric} has not improved{by} for {self.patience} evaluations"


class ImprovementState(msgspec.Struct, frozen=True):
    """The state of an `Improvement`."""

    best: float | None
    """The best value, negated if more is better; None before the first evaluation."""
    since: int
    """Evaluations without an improvement."""


class Improvement:
    """Follows a metric from evaluation to evaluation.

    Args:
        rule: when to stop; None for never.
    """

    def __init__(self, rule: EarlyStopping | None) -> None:
        self._rule = rule
        self._best = math.inf
        self._since = 0

    def is_over(self, values: dict[str, float]) -> bool:
        """Note the values of the next evaluation; return whether the run is to stop."""
        rule = self._rule
        if rule is None:
            return False
        value = values[rule.metric] if rule.less_is_better else -values[rule.metric]
        if value < self._best - rule.min_delta:
            self._best, self._since = value, 0
        else:
            self._since += 1
        return self._since >= rule.patience

    def state(self) -> ImprovementState:
        """The state, from which `restore` continues."""
        return ImprovementState(self._best if math.isfinite(self._best) else None, self._since)

    def restore(self, state: ImprovementState) -> None:
        """Continue from a state."""
        self._best = math.inf if state.best is None else state.best
        self._since = state.since
