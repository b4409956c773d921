"""Commands that a plan prints, run: is the time of a step within the interval that was printed?

The job sleeps instead of computing, one worker on each host behind a link of its own, so that the
hosts do not need the cores of this machine; six of the commands are for clusters of 1 Gbit/s, four
times as slow (see `benchmarks.predictions`). Ten commands are run, each as it was printed, with a
limit in seconds and a folder added. Where batches are divided by speed, what is predicted is the
speed after the speeds were measured, so the steps before that do not count. It takes some ten
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import manyhands as mh
from benchmarks.figures import keep, report
from benchmarks.paced import run_to_end
from benchmarks.predictions import (
    DILATED,
    LARGE,
    MEDIUM,
    Paced,
    calibration,
    crowding,
    dilated,
    job,
)
from manyhands.lab.planning.commands import PlannedJob, command_of
from manyhands.lab.planning.timing import DECISIONS
from manyhands.reports import Run
from manyhands.reports.figures.speed import throughput
from manyhands.sampling.speed_shares import EVERY

if TYPE_CHECKING:
    from manyhands.trace import Trace

_ROOT = Path(__file__).parent.parent
_SCRIPT = Path(__file__).parent / "predictions_job.py"
_SECONDS = 25
SLOW: Final = replace(LARGE, dilation=DILATED)
"""With links of 250 Mbit/s what the job is with 1 Gbit/s, on hosts with faster processors."""
PLANS: tuple[tuple[Paced, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        SLOW,
        "4 workers, 250mbit",
        (),
        ("allreduce()", "synchronous(servers=4)", "asynchronous(servers=4)"),
    ),
    (SLOW, "4 workers, 250mbit, servers apart", (), ("synchronous()", "ssp(staleness=4)")),
    (SLOW, "4 workers, 250mbit, servers at host 0", (), ("synchronous(servers=2)",)),
    (
        MEDIUM,
        "4 workers, 100mbit",
        ("3:3x",),
        ("allreduce(shares=by_speed)", "averaging(every=8, servers=4)", "gossip()", "allreduce()"),
    ),
)
"""Job, cluster, slow workers and strategies of each plan: ten rows."""


def execute(words: list[str]) -> None:
    """Run a command of ours to its end."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    run_to_end(words, {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"})


def rows(
    paced: Paced, where: str, slow: tuple[str, ...], chosen: tuple[str, ...], place: Path
) -> list[dict[str, Any]]:
    """What a plan says of these strategies on all workers, with the commands that it prints."""
    known = crowding(dilated(calibration(paced, place), paced), 4, paced.dilation)
    found = mh.plan(job(paced), where, known, strategies=chosen, workers=[4], slow=slow)
    about = PlannedJob(str(_SCRIPT), (json.dumps(asdict(paced)),))
    return [
        asdict(row) | {"command": command_of(found, row, about)}
        for row in found.ranking
        if row.workers == 4
    ]


def rate(command: str, folder: Path, paced: Paced) -> float:
    """Samples per second of a printed command, once it knows the speeds of its workers.

    Args:
        command: as it was printed.
        folder: for the run.
        paced: the job.
    """
    program, *words = shlex.split(command)
    if program != "manyhands":
        raise RuntimeError(command)
    at = words.index("--")
    learns = "by_speed" in command
    seconds = _SECONDS * (2 if learns or paced.dilation > 1 else 1)
    limit = ["--seconds", str(seconds), "--output", str(folder)]
    execute([sys.executable, "-m", "manyhands", *words[:at], *limit, *words[at:]])
    trace = Run(folder).trace
    return settled(trace, paced.batch, DECISIONS * EVERY) if learns else throughput(trace).rate


def settled(trace: Trace, batch: int, steps: int) -> float:
    """Samples per second in lockstep after some steps.

    Args:
        trace: of the run.
        batch: samples of a step.
        steps: the steps that are left out.
    """
    computed = [one for one in trace.workers[0].spans if one.kind == "compute"]
    later = [one for one in computed if one.step >= steps]
    return (later[-1].step - later[0].step) * batch / (later[-1].start - later[0].start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, help="number of one plan, from 0")
    parser.add_argument("--calibrations", type=Path, help="folder for calibrations, to use again")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        place = given.calibrations or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for number, plan in enumerate(PLANS):
            if given.only not in (None, number):
                continue
            for at, row in enumerate(rows(*plan, place)):
                measured = rate(row["command"], Path(folder) / f"run-{number}-{at}", plan[0])
                within = row["least"] <= measured <= row["most"]
                # Stored figures have no paths of a machine.
                command = row["command"].replace(f"{_ROOT}/", "")
                found.append({**row, "command": command, "measured": measured, "within": within})
                print(
                    f"{'within' if within else 'outside'} {row['least']:.1f} to {row['most']:.1f}, "
                    f"measured {measured:.1f} samples/s: {row['command'].partition(' -- ')[0]}",
                    flush=True,
                )
    within = sum(one["within"] for one in found)
    print(f"{within} of {len(found)} within the interval that was printed")
    figures: dict[str, object] = {"within": within, "commands": len(found), "rows": found}
    if given.keep:
        keep("planned_commands", figures)
    report("planned_commands", figures)


if __name__ == "__main__":
    main()
