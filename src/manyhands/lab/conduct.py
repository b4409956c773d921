"""Execution of a comparison: its runs one after the other, with results written after each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from manyhands.lab.folder import Folder, claimed
from manyhands.lab.launcher import start
from manyhands.lab.provenance import account, surroundings
from manyhands.lab.runs import LiveRuns, VirtualRuns
from manyhands.live.processes.parent_death import signals_raise
from manyhands.reports import failed, measure, write_results

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.lab.display import ComparisonDisplay
    from manyhands.lab.launcher import Launcher
    from manyhands.lab.order import PlannedRun
    from manyhands.lab.runs import Runs
    from manyhands.reports import Comparison, RunResult
    from manyhands.trace import Trace


def check(design: Design, job: Job) -> None:
    """Raise ValueError or TypeError, with the fix, if a run of a comparison is not possible.

    All runs are checked before the first one is started.
    """
    design.check()
    design.budget.of(job)
    way = _way(design, job, start)
    for turn in design.turns:
        if turn.repeat == 0:
            way.check(turn)


def conduct(
    design: Design, job: Job, path: Path, display: ComparisonDisplay, launch: Launcher = start
) -> Comparison:
    """Execute the runs that are missing; return the results, also written to `results.json`.

    Args:
        design: the design of the comparison.
        job: the job, as its script defines it.
        path: the comparison's folder.
        display: shows the progress.
        launch: starts a live run.

    Raises:
        ValueError: the folder holds other results.
        KeyboardInterrupt: the user interrupted; the current run is ended first.
    """
    check(design, job)
    way = _way(design, job, launch)
    runs: list[RunResult] = []
    with claimed(path, design.identity() | surroundings(design)) as folder, signals_raise():
        results = account(design, job, runs, folder.created)
        for turn in design.turns:
            run = _known(design, results, turn, folder)
            if run is None:
                display.begins(turn, results)
                run = _make(design, results, turn, folder, way, display)
                display.made(turn, run)
            else:
                display.found()
            runs.append(run)
            results = account(design, job, runs, results.created)
            write_results(results, folder.results)
    return results


def _way(design: Design, job: Job, launch: Launcher) -> Runs:
    return LiveRuns(design, launch) if design.virtual is None else VirtualRuns(design, job)


def _known(
    design: Design, results: Comparison, turn: PlannedRun, folder: Folder
) -> RunResult | None:
    """The result of a run from an earlier start of the comparison."""
    trace = folder.finished(turn)
    if trace is not None:
        return _measured(design, results, turn, folder, trace)
    return folder.failed(turn)


def _make(
    design: Design,
    results: Comparison,
    turn: PlannedRun,
    folder: Folder,
    way: Runs,
    display: ComparisonDisplay,
) -> RunResult:
    folder.clear(turn)
    words = way.make(turn, folder.run(turn), folder.log(turn), display.progress)
    trace = folder.trace(turn)
    if trace is not None:
        run = _measured(design, results, turn, folder, trace)
        # The last message in the run's log has more detail than its trace.
        reason = words if run.status == "failed" and words else run.words
        return structs.replace(run, words=reason)
    folder.run(turn).mkdir(parents=True, exist_ok=True)
    return failed(
        words or "the run has no trace",
        strategy=turn.entrant.label,
        kind=way.kind,
        workers=turn.workers,
        repeat=turn.repeat,
        seed=turn.seed,
        folder=folder.place(turn),
    )


def _measured(
    design: Design, results: Comparison, turn: PlannedRun, folder: Folder, trace: Trace
) -> RunResult:
    return measure(
        trace,
        strategy=turn.entrant.label,
        workers=turn.workers,
        repeat=turn.repeat,
        seed=turn.seed,
        folder=folder.place(turn),
        target=results.target,
        price=design.price,
    )
