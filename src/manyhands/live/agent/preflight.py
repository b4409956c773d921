"""A process that finds out, for the agent of a host that joins, whether the host can take part.

It executes the script as the workers will, compares its job with the first host's, and prepares the
data. So the agent itself need not load torch.
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
    """What the agent must know of the job and the host."""

    words: str = ""
    """Why the host cannot take part, if it cannot."""
    budget: int | None = None
    seconds: float | None = None
    devices: tuple[str, ...] = ()


def findings_file(assignment: Assignment) -> Path:
    """Where the findings are laid down."""
    return Path(assignment.private) / "findings.json"


def main(path: str, workers: int) -> None:
    """Look around for the assignment at `path`, on a host with so many workers."""
    assignment = Assignment.read(Path(path))
    die_with(assignment.agent, signal.SIGKILL)
    try:
        findings = _look_around(assignment, workers)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent must hear of it
        traceback.print_exc()
        findings = Findings(words=f"{type(error).__name__}: {error}")
    findings_file(assignment).write_bytes(msgspec.json.encode(findings))


def _look_around(assignment: Assignment, workers: int) -> Findings:
    # They load torch, which is to be loaded when it is known that the process lives.
    from manyhands.live.agent.memory_check import available, estimate  # noqa: PLC0415
    from manyhands.live.devices import devices  # noqa: PLC0415
    from manyhands.live.hosts.compatibility import difference, facts_of_job  # noqa: PLC0415
    from manyhands.live.processes.fork_server import can_fork  # noqa: PLC0415
    from manyhands.script.loading import load  # noqa: PLC0415
    from manyhands.strategies import strategy  # noqa: PLC0415

    job = override(load(assignment.origin)[0], assignment.overrides)
    words = difference(assignment.facts, facts_of_job(job))
    places = devices(workers)
    if not words:
        about = (job, strategy(assignment.strategy), assignment.workers, workers, places)
        try:
            estimate(*about, forks=can_fork(), first=False).check(*available())
        except ValueError as error:
            words = str(error)
        else:
            job.make_ready()
    return Findings(words, job.budget, job.seconds, places)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
