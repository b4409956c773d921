"""`manyhands tensorboard RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.reports.render.tensorboard import write_scalars
from manyhands.trace import read

if TYPE_CHECKING:
    from pathlib import Path


def tensorboard(folder: Path, output: Path | None) -> None:
    """Write a run's scalars as TensorBoard event files."""
    target = output or folder / "tensorboard"
    try:
        write_scalars(read(folder), target)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{target}: tensorboard --logdir {target}")
