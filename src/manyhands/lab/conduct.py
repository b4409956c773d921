"""Execution of a comparison: its runs, with results written after each.

Live runs are made one after the other, because they are measured. Virtual ones do not depend on the
machine's speed: several are made at once, each in a forked process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import torch
from msgspec import structs

from manyhands.cluster import Cluster
from manyhands.lab.folder import Folder, claimed
from manyhands.lab.launcher import start
from manyhands.lab.provenance import Circumstances, account, now, surroundings
from manyhands.lab.runs import LiveRuns, VirtualRuns, failed_line
from manyhands.live.processes.forked_call import ForkedCall, end, wait
from manyhands.live.processes.parent_death import signals_raise
from manyhands.reports import failed, measure, write_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Literal

    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.lab.display import ComparisonDisplay
    from manyhands.lab.launcher import Launcher
    from manyhands.lab.order import PlannedRun
    from manyhands.lab.runs import Runs
    from manyhands.reports import Comparison, RunResult
    from manyhands.trace import Trace

_LOOK_EVERY = 1.0
"""Seconds between two refreshes of the display."""


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


def runs_at_once(design: Design, processes: int | None) -> int:
    """Number of runs that are made at the same time: those asked for, or one per core.

    Raises:
        ValueError: so many are not possible.
    """
    if design.virtual is None:
        if processes is not None:
            raise ValueError(
                f"processes={processes} is for virtual comparisons: live runs are measured, so one "
                "is made at a time; leave it out"
            )
        return 1
    if processes is not None and processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    if processes != 1 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        if processes is None:
            return 1
        raise ValueError(
            "a process that has used CUDA cannot be forked: use processes=1, or compare before "
            "CUDA is used"
        )
    cores = Cluster.local().cores if processes is None else processes
    return min(cores, len(design.turns))


def conduct(
    design: Design,
    job: Job,
    path: Path,
    display: ComparisonDisplay,
    launch: Launcher = start,
    processes: int = 1,
) -> Comparison:
    """Execute the runs that are missing; return the results, also written to `results.json`.

    Args:
        design: the design of the comparison.
        job: the job, as its script defines it.
        path: the comparison's folder.
        display: shows the progress.
        launch: starts a live run.
        processes: number of virtual runs at once; with 1 they are made in this process.

    Raises:
        ValueError: the folder holds other results.
        KeyboardInterrupt: the user interrupted; the current runs are ended first.
    """
    check(design, job)
    way = _way(design, job, launch)
    with claimed(path, design.identity() | surroundings(design)) as folder, signals_raise():
        if design.script is not None:
            design.script.write()
        ledger = _Ledger(design, job, folder, Circumstances.of(design, job, path, folder.created))
        missing = ledger.begin(display)
        if processes == 1 or len(missing) < 2:
            _make_in_turn(missing, ledger, way, display)
        else:
            # Once, before several processes do it at the same time; an error is that of each run.
            with contextlib.suppress(Exception):
                job.make_ready()
            _make_at_once(missing, ledger, way, display, processes)
    return ledger.results


class _Ledger:
    """The results so far, in the order of the design, whatever the order in which runs end.

    Args:
        design: the design of the comparison.
        job: the job.
        folder: the comparison's folder.
        circumstances: when and from what it was started.
    """

    def __init__(
        self, design: Design, job: Job, folder: Folder, circumstances: Circumstances
    ) -> None:
        self.folder = folder
        self._design = design
        self._job = job
        self._circumstances = circumstances
        self._runs: dict[str, RunResult] = {}
        self._started: dict[str, str] = {}
        self.results = account(design, job, (), circumstances)

    def begin(self, display: ComparisonDisplay) -> list[PlannedRun]:
        """Take over the runs of an earlier start of the comparison; return the missing ones."""
        missing = []
        for turn in self._design.turns:
            run = self._known(turn)
            if run is None:
                missing.append(turn)
            else:
                self._runs[turn.name] = run
                display.found()
        if self._runs:
            self._write()
        return missing

    def note(self, turn: PlannedRun, words: str, kind: Literal["live", "virtual"]) -> RunResult:
        """Write down a run that was made; `words` says why it failed."""
        run = self._result(turn, words, kind)
        run = structs.replace(
            run,
            where=failed_line(self.folder.log(turn)) if run.status == "failed" else "",
            started=self._started.get(turn.name, ""),
            ended=now(),
        )
        self._runs[turn.name] = run
        self._write()
        return run

    def start(self, turn: PlannedRun) -> None:
        """Prepare the folder of a run that is about to be made, and note the time."""
        self.folder.clear(turn)
        self._started[turn.name] = now()

    def _write(self) -> None:
        named = (turn.name for turn in self._design.turns)
        runs = [self._runs[name] for name in named if name in self._runs]
        self.results = account(self._design, self._job, runs, self._circumstances)
        write_results(self.results, self.folder.results)

    def _known(self, turn: PlannedRun) -> RunResult | None:
        """The result of a run from an earlier start of the comparison."""
        trace = self.folder.finished(turn)
        if trace is None:
            return self.folder.failed(turn)
        started, ended = self.folder.times(turn)
        return structs.replace(self._measured(turn, trace), started=started, ended=ended)

    def _result(self, turn: PlannedRun, words: str, kind: Literal["live", "virtual"]) -> RunResult:
        trace = self.folder.trace(turn)
        if trace is not None:
            run = self._measured(turn, trace)
            # The last message in the run's log has more detail than its trace.
            reason = words if run.status == "failed" and words else run.words
            return structs.replace(run, words=reason)
        self.folder.run(turn).mkdir(parents=True, exist_ok=True)
        return failed(
            words or "the run has no trace",
            strategy=turn.entrant.label,
            kind=kind,
            workers=turn.workers,
            repeat=turn.repeat,
            seed=turn.seed,
            folder=self.folder.place(turn),
            swept=self._design.swept(turn),
            curve=turn.entrant.curve,
        )

    def _measured(self, turn: PlannedRun, trace: Trace) -> RunResult:
        return measure(
            trace,
            strategy=turn.entrant.label,
            workers=turn.workers,
            repeat=turn.repeat,
            seed=turn.seed,
            folder=self.folder.place(turn),
            target=self.results.target,
            price=self._design.price,
            swept=self._design.swept(turn),
            curve=turn.entrant.curve,
        )


def _make_in_turn(
    missing: Iterable[PlannedRun], ledger: _Ledger, way: Runs, display: ComparisonDisplay
) -> None:
    """Make runs one after the other."""
    for turn in missing:
        display.begins(turn, ledger.results)
        ledger.start(turn)
        words = _make(way, turn, ledger.folder, partial(display.progress, turn))
        display.made(turn, ledger.note(turn, words, way.kind))


def _make_at_once(
    missing: Iterable[PlannedRun],
    ledger: _Ledger,
    way: Runs,
    display: ComparisonDisplay,
    processes: int,
) -> None:
    """Make runs in so many forked processes at once; all have ended when this returns or raises."""
    waiting = deque(missing)
    running: dict[ForkedCall, PlannedRun] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                turn = waiting.popleft()
                display.begins(turn, ledger.results)
                ledger.start(turn)
                running[ForkedCall(partial(_make_in_one_thread, way, turn, ledger.folder))] = turn
            for call in wait(running, _LOOK_EVERY):
                for words in call.read():
                    display.progress(running[call], words)
                if call.is_over:
                    turn = running.pop(call)
                    words = f"its process {call.ending}" if call.result is None else call.result
                    display.made(turn, ledger.note(turn, words, way.kind))
            display.refresh()
    finally:
        end(running)


def _make(way: Runs, turn: PlannedRun, folder: Folder, show: Callable[[str], None]) -> str:
    return way.make(turn, folder.run(turn), folder.log(turn), show)


def _make_in_one_thread(
    way: Runs, turn: PlannedRun, folder: Folder, show: Callable[[str], None]
) -> str:
    """As `_make`, in a forked process, which has none of the threads that torch may have started.

    The numbers are the same: every virtual run computes in one thread.
    """
    torch.set_num_threads(1)
    return _make(way, turn, folder, show)


def _way(design: Design, job: Job, launch: Launcher) -> Runs:
    return LiveRuns(design, launch) if design.virtual is None else VirtualRuns(design, job)
