"""What the hosts of a run must have in common, and what to say when they have not."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from manyhands.job import Job


def facts_of_host(script: Path) -> dict[str, str]:
    """What is known before the script is executed: its text, and the versions."""
    return {
        "script": hashlib.sha256(script.read_bytes()).hexdigest(),
        "manyhands": version("manyhands"),
        "torch": version("torch"),
    }


def facts_of_job(job: Job) -> dict[str, str]:
    """What the script makes of it on this host: the job's settings and the size of its data."""
    from manyhands.job import SETTINGS  # noqa: PLC0415 - a joining agent loads no torch

    facts = {name: job.settings.get(name, "none") for name in SETTINGS}
    facts["samples in the data"] = str(len(job.data))
    if job.validation is not None:
        facts["samples in the validation data"] = str(len(job.validation))
    return facts


def difference(first: Mapping[str, str], here: Mapping[str, str]) -> str:
    """In words, the first fact on which a host differs from the run's first; empty if none."""
    for name, ours in here.items():
        theirs = first.get(name)
        if theirs == ours:
            continue
        if name == "script":
            return (
                "its script is another one than the first host's: copy the same file to all hosts"
            )
        return (
            f"{name} is {ours} there and {theirs} on the first host: "
            "the hosts must run the same job with the same versions"
        )
    return ""
