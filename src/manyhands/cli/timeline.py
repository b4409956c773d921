"""`manyhands timeline RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.reports import Run

if TYPE_CHECKING:
    from pathlib import Path


def timeline(folder: Path, output: Path | None) -> None:
    """Write a run's timeline: an image if the file ends in .svg, else a Chrome trace."""
    target = output or folder / "timeline.json"
    drawn = target.suffix == ".svg"
    try:
        run = Run(folder)
        if drawn:
            run.timeline(target)
        else:
            run.chrome(target)
    except (OSError, ValueError) as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(2) from None
    if drawn:
        typer.echo(f"{target}: open it in a browser")
        return
    typer.echo(f"{target}: open it at https://ui.perfetto.dev (the file stays on your machine)")
