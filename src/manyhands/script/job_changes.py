"""Changes of a job: settings that a single run replaces, declared once for verbs and subcommands.

The docstring of a field is the help text of the option of the same name, and the least value of its
type is that of the option.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
"""At least 1."""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """When a run ends and what it evaluates; None leaves that to the job."""

    epochs: float | None = None
    """Stop after this many passes over the data."""
    samples: Count | None = None
    """Stop after this many samples."""
    seconds: float | None = None
    """Stop after this many seconds of training."""
    target: str | None = None
    """Stop when a validation metric reaches a value: 'accuracy >= 0.97'."""
    evaluate_every: str | None = None
    """When to evaluate: 5000 (samples) or 10s, in addition to the end of every epoch; or '0.25
    epochs', in place of it."""
    measures: str | None = None
    """What to record at evaluations beside metrics, separated by commas: gradient_norm, spread,
    staleness."""


@dataclass(frozen=True, kw_only=True)
class JobChanges(RunLimits):
    """Settings of a job that a run replaces; None leaves the job's own."""

    seed: int | None = None
    """Seed of the run, in place of the job's."""
    lr: str | None = None
    """Learning rate, in place of the optimizer's: 0.01; or a factor of it: 0.5x."""
    global_batch: Count | None = None
    """Samples of a global batch, in place of the job's."""
    checkpoint: str | None = None
    """When to store a checkpoint: 10min, '1000 steps', '50000 samples', '10s in memory'."""
    keep: Count | None = None
    """Number of checkpoints that are kept."""


def as_text(value: object) -> str | None:
    """A value of a change as text, which all processes read alike; None where there is none."""
    return None if value is None else str(value)


LIMITS = tuple(field.name for field in fields(RunLimits))
"""The names of the fields of `RunLimits`."""
CHANGES = tuple(field.name for field in fields(JobChanges))
"""The names of the fields of `JobChanges`."""
