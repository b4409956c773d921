"""`manyhands simulate`: a script's job on a virtual clock."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job, paced, read_settings
from manyhands.failure import RunFailed
from manyhands.verbs.asked import Asked
from manyhands.verbs.simulate import plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def simulate(
    script: Path, arguments: list[str], options: Mapping[str, Any], name: str | None = None
) -> None:
    """Execute the script up to its main guard, simulate its job, and print how to repeat it."""
    enter(script, arguments)
    given = dict(options)
    texts = given.pop("values", None)
    _, job, _ = load_job(script, name, read_settings(texts))
    asked = Asked(**paced(given))
    try:
        settled = plan(job, asked, "command line")
        settled.check_used()
        named = ["--job", name] if name else []
        named += [word for text in texts or () for word in ("--set", text)]
        rest = ["--", *arguments] if arguments else []
        again = shlex.join([*settled.replay(script), *named, *rest])
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
