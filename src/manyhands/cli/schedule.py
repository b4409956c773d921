"""`manyhands schedule`: draws a pipeline schedule, with its bubble and its activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from manyhands.cli.exit import leave
from manyhands.notation.error import unknown
from manyhands.reports.formatting import listed, plural
from manyhands.reports.render.gantt import gantt, text_rows
from manyhands.schedules import ALL, Durations, replay

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.schedules import Kind, Replay, Table

_LARGEST = {"stages": 256, "microbatches": 1024}


def schedule(
    name: str, stages: int, microbatches: int, workers: int | None, output: Path | None
) -> None:
    """Print a schedule, its bubble and its activations; draw it as SVG if a file is given."""
    if name not in ALL:
        leave(f"manyhands: {unknown(f'there is no schedule {name!r}', name, ALL)}")
    if output is not None and output.suffix != ".svg":
        leave(f"manyhands: a schedule is drawn as SVG: use {output.with_suffix('.svg')}")
    for what, value in (("stages", stages), ("microbatches", microbatches)):
        if value > _LARGEST[what]:
            leave(f"manyhands: {what} must be from 1 to {_LARGEST[what]}, got {value}")
    if workers is None:
        # The smallest number of stages per worker that the schedule has.
        workers = stages // 2 if name == "interleaved" and stages % 2 == 0 else stages
    try:
        table = ALL[name](stages, microbatches, workers)
    except ValueError as error:
        leave(f"manyhands: {error}")
    done = replay(table, Durations.even(stages, 1, 1, 1))
    title = (
        f"{name}: {stages} stage{plural(stages)} on {workers} worker{plural(workers)}, "
        f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
    )
    _print(name, title, table, done)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(gantt(f"{title}: idle {_share(done)}", table, done), "utf-8")
        typer.echo(f"  picture      {output}: open it in a browser")


def _print(name: str, title: str, table: Table, done: Replay) -> None:
    used = {timed.action.kind for rank in done.ranks for timed in rank}
    typer.echo(title)
    typer.echo()
    typer.echo("\n".join(text_rows(table, done, Console().width)))
    words: dict[Kind, str] = {
        "forward": "F forward",
        "backward": "B backward",
        "input": "I gradient of the inputs",
        "weight": "W gradient of the parameters",
    }
    typer.echo()
    later = "; lower-case: a worker's later stages" if table.stages > len(table.ranks) else ""
    typer.echo(f"  letters      {', '.join(words[kind] for kind in words if kind in used)}{later}")
    typer.echo("  times        a forward takes as long as each half of a backward")
    at_ends = ", at the ends of the stream of microbatches" if name == "pipedream" else ""
    typer.echo(f"  bubble       {_share(done)} of the workers' time{at_ends}")
    typer.echo(f"  activations  {_activations(table)}")


def _share(done: Replay) -> str:
    return f"{100 * done.idle_share:.1f} %"


def _activations(table: Table) -> str:
    """The most microbatches whose activations a worker holds, of every worker or of all alike."""
    held = [table.in_flight(rank) for rank in range(len(table.ranks))]
    each = ", once for each stage," if table.stages > len(table.ranks) else ""
    most = f"at most {max(held)} microbatch{'es' if max(held) > 1 else ''}{each} at a time"
    if len(set(held)) == 1 or len(held) > 16:
        return f"{most} on a worker"
    return f"{most}; on workers 0 to {len(held) - 1}: {listed(list(map(str, held)))}"
