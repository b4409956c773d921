"""`manyhands reproduce results.json`: a stored comparison made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from manyhands.cli.exit import leave
from manyhands.lab.reproduction.reproduce import plan_reproduction

if TYPE_CHECKING:
    from pathlib import Path


def reproduce(results: Path, output: Path | None, script: Path | None) -> None:
    """Make a stored comparison again; exit with 0 if it came out the same, with 1 if it did not."""
    if script is not None and not script.is_file():
        leave(f"manyhands: there is no file {script}")
    try:
        planned = plan_reproduction(results, None, script, output)
        for words in planned.versions:
            typer.echo(f"  differs      {words}")
        if planned.script is not None:
            typer.echo(f"  script       {planned.script.words}")
        found = planned.carry_out(Console(stderr=True))
    except (OSError, TypeError, ValueError) as error:
        leave(f"manyhands: {error}")
    except KeyboardInterrupt:
        kept = f"; continue with the same command and --output {output}" if output else ""
        leave(f"manyhands: interrupted; all processes are ended{kept}", 130)
    typer.echo(found.outcome())
    raise typer.Exit(0 if found.same else 1)
