"""Compatibility of hosts: facts that must be equal on all hosts of a run, and their comparison."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from manyhands.job import Job


def facts_of_host(script: Path) -> dict[str, str]:
    """Facts that are known before the script is executed: its hash, and the versions."""
    return {
        "script": hashlib.sha256(script.read_bytes()).hexdigest(),
        "manyhands": version("manyhands"),
        "torch": version("torch"),
    }


def facts_of_job(job: Job) -> dict[str, str]:
    """Facts about the job on this host: its settings and the size of its data."""
    from manyhands.job import SETTINGS  # noqa: PLC0415 - a joining agent loads no torch

    facts = {name: job.settings.get(name, "none") for name in SETTINGS}
    facts["samples in the data"] = job.data_words
    if job.validation is not None:
        facts["samples in the validation data"] = str(len(job.validation))
    return facts


def difference(first: Mapping[str, str], here: Mapping[str, str]) -> str:
    """A message about the first fact that differs from the first host's; empty if none does."""
    for name, ours in here.items():
        theirs = first.get(name)
        if theirs == ours:
            continue
        if name == "script":
            return "its script differs from the first host's: copy the same file to all hosts"
        return (
            f"{name} is {ours} there and {theirs} on the first host: "
            "the hosts must run the same job with the same versions"
        )
    return ""
