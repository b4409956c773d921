"""Records of how a comparison was made, from which it can be made again: parts of `results.json`.

`docs/results.md` explains every field. New fields come with a default, so that older files are
still read.
"""

from typing import Any, Literal

import msgspec

from manyhands.assumptions import Assumption


class ScriptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The script that defined the job.

    Example:
        >>> ScriptRecord(name="train.py", job="job", arguments=("--width", "64")).arguments
        ('--width', '64')
    """

    name: str = ""
    """The file's name."""
    path: str | None = None
    """The file relative to `results.json`; null if it was not in a folder above it."""
    sha256: str = ""
    text: str | None = None
    """The whole script; null if it was not encoded in UTF-8."""
    job: str = ""
    """The job's name at the script's top level."""
    arguments: tuple[str, ...] = ()


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job's model."""

    name: str = ""
    """Its class."""
    parameters: int = 0
    """Numbers in its parameters; one that is used in several places counts once."""
    bytes: int = 0
    """Of its parameters."""


class OptimizerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job's optimizer."""

    name: str = ""
    """Its class."""
    options: dict[str, Any] = {}
    """All options by name, defaults included."""
    groups: tuple[dict[str, Any], ...] = ()
    """For every parameter group, the number of its `parameters` and the options that differ."""


class DataRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job's datasets."""

    name: str = ""
    """The class of the training data."""
    samples: int = 0
    validation_name: str | None = None
    """The class of the validation data; null if there is none."""
    validation_samples: int | None = None


class DesignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a comparison beside its strategies, workers and repeats.

    Null is what was not asked for: the job's own limit, or the default of `manyhands simulate`.
    """

    kind: Literal["live", "virtual"] = "live"
    seed: int = 0
    """Of the first repeat; each further repeat adds 1."""
    epochs: float | None = None
    samples: int | None = None
    seconds: float | None = None
    target: str | None = None
    evaluate_every: str | None = None
    measures: str | None = None
    lr: str | None = None
    """Learning rate of all runs, or a factor of the optimizer's: `0.5x`."""
    fixed: tuple[str, ...] = ()
    """The strategies that are not swept."""
    slow: tuple[str, ...] = ()
    """Workers that were slowed under all strategies, as in `2:4x`."""
    faults: str = ""
    """What went wrong on purpose in every run, as in `crash(worker=2, at=20.0)`."""
    network: str = ""
    """As it was given: `100mbit`; empty for the machine's own."""
    times: str | None = None
    bandwidth: str | float | None = None
    latency: str | float | None = None
    cores: int | None = None
    hosts: int | None = None
    coding: str | float | None = None
    time_only: bool | None = None
    assumed: tuple[Assumption, ...] = ()
    """What virtual runs assumed because it was not asked for; `times` holds the assumed times."""
