"""`manyhands simulate`: a script's job on a virtual clock."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job, paced
from manyhands.failure import RunFailed
from manyhands.verbs.simulate import Asked, plan, replay

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def simulate(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, simulate its job, and print a replay command."""
    enter(script, arguments)
    _, job, _ = load_job(script)
    asked = Asked(**paced(options))
    try:
        settled = plan(job, asked, "command line")
        again = shlex.join(
            [*replay(job, asked, script), *(["--", *arguments] if arguments else [])]
        )
    except (TypeError, ValueError) as error:
        leave(f"manyhands: {error}")
    try:
        run = settled.carry_out()
    except RunFailed as failure:
        leave(f"manyhands: {failure}\n  replay       {again}", 1)
    except BaseException:
        typer.echo(f"  replay       {again}", err=True)
        raise
    typer.echo(run.summary())
    typer.echo(f"  replay       {again}")
