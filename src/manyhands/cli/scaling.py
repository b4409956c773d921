"""`manyhands scaling`: the speedup table of one strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.compare import conduct, leave_if_failed
from manyhands.cli.exit import leave
from manyhands.lab.scaling import failures, markdown, remarks, scaling
from manyhands.notation import split

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def show_scaling(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Run the script's job under one strategy on several numbers of workers."""
    if len(split(options["strategies"])) != 1:
        leave(f"manyhands: scaling takes exactly one strategy, got {options['strategies']}")
    compared = conduct(script, arguments, options)
    typer.echo(f"\n{markdown(scaling(compared.results))}\n")
    typer.echo(remarks(compared.results))
    for run in failures(compared.results):
        typer.echo(f"{run.label}, repeat {run.repeat + 1}, failed: {run.failure}")
    typer.echo(f"\n{compared.where()}")
    leave_if_failed(compared.results)
