"""Preflight: a process that checks whether a host that joins can take part in the run.

It executes the script as the workers will, compares its job with the first host's, checks the
memory and prepares the data. So the joining agent itself does not load torch.
"""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path

import msgspec

from manyhands.live.assignment import Assignment
from manyhands.live.processes.parent_death import die_with
from manyhands.script.origin import override


class Findings(msgspec.Struct, frozen=True):
    """Result of the preflight: facts about the job and the host for the agent."""

    words: str = ""
    """Why the host cannot take part, if it cannot."""
    budget: int | None = None
    seconds: float | None = None
    devices: tuple[str, ...] = ()


def findings_file(assignment: Assignment) -> Path:
    """The file to which the findings are written."""
    return Path(assignment.private) / "findings.json"


def main(path: str, workers: int) -> None:
    """Check the assignment at `path` on a host with this number of workers."""
    assignment = Assignment.read(Path(path))
    die_with(assignment.agent, signal.SIGKILL)
    try:
        findings = _examine(assignment, workers)
    except BaseException as error:  # noqa: BLE001 - every failure is reported to the agent
        traceback.print_exc()
        findings = Findings(words=f"{type(error).__name__}: {error}")
    findings_file(assignment).write_bytes(msgspec.json.encode(findings))


def _examine(assignment: Assignment, workers: int) -> Findings:
    # These load torch, which takes seconds: first the parent-death signal must be set.
    from manyhands.live.agent.memory_check import estimate  # noqa: PLC0415
    from manyhands.live.devices import devices  # noqa: PLC0415
    from manyhands.live.hosts.compatibility import difference, facts_of_job  # noqa: PLC0415
    from manyhands.live.processes.available_memory import available  # noqa: PLC0415
    from manyhands.live.processes.fork_server import can_fork  # noqa: PLC0415
    from manyhands.parameters.initial.start import check_pinned  # noqa: PLC0415
    from manyhands.parameters.optional.compilation import check_toolchain  # noqa: PLC0415
    from manyhands.script.loading import load  # noqa: PLC0415
    from manyhands.strategies import strategy  # noqa: PLC0415

    job = override(load(assignment.origin)[0], assignment.overrides)
    words = difference(assignment.facts, facts_of_job(job))
    places = devices(workers)
    if not words:
        about = (job, strategy(assignment.strategy), assignment.workers, workers, places)
        try:
            check_toolchain(job, places)
            serving = assignment.server_hosts.count(assignment.host)
            estimate(*about, forks=can_fork(), serving=serving).check(*available())
        except ValueError as error:
            words = str(error)
        else:
            job.make_ready()
            check_pinned(job)
    return Findings(words, job.budget, job.seconds, places)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
