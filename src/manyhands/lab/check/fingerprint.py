"""What a script's job is in a process of its own: digests of samples and of initial parameters.

Started as `python -m manyhands.lab.check.fingerprint JOB SCRIPT ARGUMENTS…`; prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.data.sample_digest import digest
from manyhands.parameters.gradients import build
from manyhands.script.loading import MODULE, execute, job_at
from manyhands.seeding import Seeded, epoch_seed, seed_python

if TYPE_CHECKING:
    from manyhands.job import Job

SAMPLES = 64
"""The most samples that are compared."""
_LONGEST = 300.0
"""Seconds in which a script must have defined its job."""


@dataclass(frozen=True)
class Fingerprint:
    """Digests of a job."""

    inputs: tuple[str, ...]
    """Of the first samples; with an objective, of whole samples."""
    targets: tuple[str, ...]
    parameters: str


def fingerprint(job: Job) -> Fingerprint:
    """The digests of a job in this process."""
    seeded, seed = Seeded(job.data, None), epoch_seed(job.seed, 0)
    with seeded.drawing():
        samples = seeded.first(seed, SAMPLES)
    pairs = [
        sample if isinstance(sample, (tuple, list)) and len(sample) == 2 else (sample, None)
        for sample in samples
    ]
    torch.manual_seed(job.seed)
    state = build(job).state_dict()
    return Fingerprint(
        inputs=tuple(digest(given) for given, _ in pairs),
        targets=tuple(digest(wanted) for _, wanted in pairs),
        parameters=digest(state),
    )


def elsewhere(script: Path, job: str, arguments: list[str], number: int) -> Fingerprint:
    """The digests in a new process; with another `number` its sets are in another order.

    Raises:
        RuntimeError: the script fails there.
    """
    command = [sys.executable, "-m", __name__, job, str(script), *arguments]
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        env={**os.environ, "PYTHONHASHSEED": str(1 + number)},
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script} fails in a process of its own:\n{done.stderr[-2000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    return Fingerprint(tuple(said["inputs"]), tuple(said["targets"]), said["parameters"])


def _main(name: str, script: str, *arguments: str) -> None:
    path = Path(script).resolve()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.parent))
    seed_python(0)
    torch.manual_seed(0)
    job = job_at(execute(path, MODULE), name)
    found = fingerprint(job)
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
