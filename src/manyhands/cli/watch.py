"""`manyhands watch RUN`: follows a run from its folder, and costs the run nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.live import Live

from manyhands.cli.exit import leave
from manyhands.reports.figures.outcome import ending, lives
from manyhands.reports.figures.progress import RunProgress
from manyhands.reports.render.summary import summary
from manyhands.reports.render.watching import frame, line
from manyhands.trace import Following, read

if TYPE_CHECKING:
    from pathlib import Path

_EVERY = 1.0
"""Seconds between two looks at the trace."""
_PLAIN_EVERY = 10.0
"""Seconds between two lines, without a terminal."""
_DOUBTFUL = 5.0
"""Seconds without a record after which is asked whether the run's processes are alive."""
_GIVEN_UP = 120.0
"""Seconds without a record after which a virtual run, whose process is not known, is given up."""


def watch(folder: Path, *, once: bool = False) -> None:
    """Show a run until it ends, then its summary; the exit code is 1 if it did not finish."""
    if not (folder / "trace").is_dir():
        leave(
            f"manyhands: {folder} holds no run: it has no folder trace. Give the folder of a run, "
            "such as the newest one in runs"
        )
    console = Console(highlight=False)
    progress, trace = RunProgress(), Following(folder)
    progress.add(trace.records())
    if once:
        height = console.height if console.is_terminal else None
        console.print(frame(progress, console.width, height, _quiet(folder)))
        return
    try:
        if console.is_terminal:
            _follow(progress, trace, folder, console)
        else:
            _follow_plainly(progress, trace, folder)
    except KeyboardInterrupt:
        leave(f"manyhands: no longer watching; the run in {folder} goes on", 130)
    _conclude(folder)


def _follow(progress: RunProgress, trace: Following, folder: Path, console: Console) -> None:
    """Show one screen until the run is over."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            quiet = _quiet(folder)
            live.update(frame(progress, console.width, console.height, quiet), refresh=True)
            if _is_over(progress, folder):
                return
            time.sleep(_EVERY)
            progress.add(trace.records())


def _follow_plainly(progress: RunProgress, trace: Following, folder: Path) -> None:
    """Print faults and phases as they begin, and a line from time to time, until the end."""
    told, written, phase = 0, 0.0, ""
    while True:
        for note in progress.faults[told:]:
            typer.echo(f"{note.seconds:.1f} s: {note.words}")
        told = len(progress.faults)
        now = time.monotonic()
        due = progress.phase != phase or now - written >= _PLAIN_EVERY
        if due and progress.end is None:
            written, phase = now, progress.phase
            typer.echo(f"{progress.phase}: {line(progress)}")
        if _is_over(progress, folder):
            return
        time.sleep(_EVERY)
        progress.add(trace.records())


def _is_over(progress: RunProgress, folder: Path) -> bool:
    """Whether the run has ended, or all processes that would record its end are gone."""
    if progress.end is not None:
        return True
    quiet = _quiet(folder)
    if not progress.members or quiet < _DOUBTFUL:
        return False
    if any(one.header.kind == "virtual" for one in progress.members.values()):
        return quiet > _GIVEN_UP
    judges = [one.header for one in progress.members.values() if one.header.rank == 0]
    here = [header for header in judges if header.role in ("agent", "coordinator")] or judges
    return not any(map(lives, here))


def _quiet(folder: Path) -> float:
    """Seconds since the last record."""
    written = [path.stat().st_mtime for path in (folder / "trace").glob("*.jsonl")]
    return max(0.0, time.time() - max(written)) if written else 0.0


def _conclude(folder: Path) -> None:
    trace = read(folder)
    typer.echo(summary(trace))
    if ending(trace).status != "finished":
        raise typer.Exit(1)
