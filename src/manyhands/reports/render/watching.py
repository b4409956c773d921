"""One screen about a run that goes on: its figures, its workers, its last faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from manyhands.reports.formatting import count, duration, percent, plural, size, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.reports.figures.progress import MemberProgress, RunProgress

_ABSENT: Final = "–"
_COLOURS: Final = {"lost": "red", "silent": "yellow", "starting": "cyan", "trained": "green"}
_SHOWN_FAULTS: Final = 3
_CELLS: Final = (26, 20)
"""Letters of a worker where there are too many for a line each, and for such cells."""


def frame(progress: RunProgress, width: int, height: int | None, quiet: float = 0.0) -> Group:
    """What is shown of a run.

    Args:
        progress: the state of the run.
        width: columns of the terminal.
        height: lines of the terminal; None shows a line for every worker.
        quiet: seconds since the last record, which are shown if they are many.
    """
    # A heading that is too long for the screen is cut, so that the lines can be counted.
    cut = height is not None
    parts: list[RenderableType] = [
        Text(line, no_wrap=cut, overflow="ellipsis" if cut else "fold")
        for line in headings(progress, quiet)
    ]
    below: list[RenderableType] = [
        Text(
            f"{note.seconds:8.1f} s  {note.words}",
            style="yellow",
            no_wrap=True,
            overflow="ellipsis",
        )
        for note in progress.faults[-_SHOWN_FAULTS:]
    ]
    workers = progress.workers
    # The heading of the table takes a line, and the cursor one.
    lines = None if height is None else max(1, height - len(parts) - len(below) - 2)
    if lines is None or len(workers) <= lines:
        parts.append(_table(progress, workers, width))
    else:
        parts.append(_cells(progress, workers, width, lines + 1))
    return Group(*parts, *below)


def headings(progress: RunProgress, quiet: float = 0.0) -> list[str]:
    """The figures of the whole run, in a few lines."""
    settings = progress.settings
    workers = progress.workers
    states: dict[str, int] = {}
    for worker in workers:
        states[progress.state(worker)] = states.get(progress.state(worker), 0) + 1
    expected = settings.get("workers", str(len(workers)))
    members = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    others = [one.name for one in progress.members.values() if one.header.role == "server"]
    servers = f", {len(others)} server{plural(len(others))}" if others else ""
    first = f"{settings.get('strategy', 'run')} on {expected} worker{plural(expected)}"
    lines = [f"{first}: {progress.phase} · {duration(progress.seconds)}", line(progress)]
    figures = [f"sent {size(progress.sent)}"]
    stale = progress.staleness
    if stale is not None:
        figures.append(f"staleness {stale[0]:.2f} on average, {stale[1]} at most")
    figures += [f"{name} {value(number)}" for name, number in sorted(progress.metrics.items())]
    lines.append(" · ".join(figures))
    faults = f"lost {progress.lost}, restarted {progress.restarts}"
    lines.append(f"workers: {members or 'none yet'}{servers} · {faults}")
    if quiet > 10.0 and progress.end is None:
        lines[-1] += f" · no record for {quiet:,.0f} s"
    return lines


def line(progress: RunProgress) -> str:
    """Samples, speed, loss and what is left, in one line."""
    total = progress.total
    done = f"{progress.samples:,} samples"
    if total:
        done = f"{progress.samples:,} of {total:,} samples ({percent(progress.samples / total)})"
    parts = [done]
    if progress.rate > 0:
        parts.append(f"{count(progress.rate)} samples/s")
    if progress.loss is not None:
        parts.append(f"loss {value(progress.loss)}")
    if total and progress.rate > 0 and progress.end is None:
        parts.append(f"{duration(max(0, total - progress.samples) / progress.rate)} left")
    return " · ".join(parts)


def _table(progress: RunProgress, workers: Sequence[MemberProgress], width: int) -> Table:
    hosts = {worker.header.host for worker in workers}
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("worker", no_wrap=True)
    if len(hosts) > 1:
        grid.add_column("host", no_wrap=True, overflow="ellipsis", max_width=max(8, width // 8))
    grid.add_column("state", no_wrap=True)
    for name in ("samples", "samples/s", "loss", "staleness", "sent"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("mostly", no_wrap=True)
    grid.add_column("restarts", justify="right", no_wrap=True)
    for worker in workers:
        state = progress.state(worker)
        stale = progress.staleness_of(worker)
        cells: list[RenderableType] = [
            worker.name.removeprefix("worker-"),
            *([worker.header.host] if len(hosts) > 1 else []),
            Text(state, style=_COLOURS.get(state, "")),
            f"{worker.all_samples:,}",
            count(worker.rate) if worker.rate else _ABSENT,
            value(worker.loss) if worker.weight else _ABSENT,
            f"{stale[0]:.2f}" if stale else _ABSENT,
            size(worker.all_sent) if worker.all_sent else _ABSENT,
            worker.doing or _ABSENT,
            str(worker.restarts) if worker.restarts else _ABSENT,
        ]
        grid.add_row(*cells)
    return grid


def _cells(
    progress: RunProgress, workers: Sequence[MemberProgress], width: int, lines: int
) -> RenderableType:
    """Several workers in a line, column by column; those that do not fit in one sum."""
    fitting = (one for one in _CELLS if max(1, width // one) * lines >= len(workers))
    wide = next(fitting, _CELLS[-1])
    columns = max(1, width // wide)
    room = columns * lines
    shown, rest = workers, workers[:0]
    if len(workers) > room:
        room = columns * max(1, lines - 1)
        shown, rest = workers[:room], workers[room:]
    rows = -(-len(shown) // columns)
    grid = Table.grid(padding=(0, 1), pad_edge=False)
    for _ in range(columns):
        grid.add_column(no_wrap=True, width=wide - 1)
    for row in range(rows):
        grid.add_row(*(_cell(progress, shown[at], wide) for at in range(row, len(shown), rows)))
    if not rest:
        return grid
    rates = [worker.rate for worker in rest]
    words = f"and {len(rest)} more, {count(min(rates))} to {count(max(rates))} samples/s each"
    return Group(grid, Text(words))


def _cell(progress: RunProgress, worker: MemberProgress, wide: int) -> Text:
    state = progress.state(worker)
    number = worker.name.removeprefix("worker-")
    if state == "training":
        kind, _, share = worker.doing.partition(" ")
        what = f"{count(worker.rate):>6}/s {kind[:7]} {share.replace(' ', '')}"
    else:
        what = f"{state} {worker.all_samples:,}"
    return Text(f"{number:>4} {what}"[: wide - 1], style=_COLOURS.get(state, ""))
