"""Origin of a job: its script and name, and settings that the command line overrides."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from manyhands.job import Job


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The script that any process can execute to get the job, and the job's name in it."""

    script: str
    package: str
    search: str
    """The first entry of the module search path."""
    argv: tuple[str, ...]
    job: str
    """The job's name at module level, or its place in a collection there: `jobs[0]`."""
    loop: str | None
    """The name of the user's own loop at module level."""


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of the job that the command line overrides."""

    epochs: float | None = None
    samples: int | None = None
    seconds: float | None = None
    target: str | None = None
    seed: int | None = None
    durability: str | None = None


def override(job: Job, overrides: Overrides) -> Job:
    """The job with the settings of the command line."""
    names = {field.name for field in fields(job)}
    given = {
        name: getattr(overrides, name)
        for name in overrides.__struct_fields__
        if getattr(overrides, name) is not None and name in names
    }
    # A limit on the command line replaces the script's samples and epochs. A target does not: it
    # may never be reached.
    limits = (overrides.epochs, overrides.samples, overrides.seconds)
    if any(limit is not None for limit in limits):
        given = {"epochs": None, "samples": None} | given
    return replace(job, **given)
