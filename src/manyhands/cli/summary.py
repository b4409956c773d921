"""`manyhands summary RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.reports import Run

if TYPE_CHECKING:
    from pathlib import Path


def summary(folder: Path) -> None:
    """Print the end-of-run summary of a run's folder."""
    try:
        typer.echo(Run(folder).summary())
    except (OSError, ValueError) as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(2) from None
