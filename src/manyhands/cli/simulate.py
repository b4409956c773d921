"""`manyhands simulate`: a script's job on a virtual clock."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from manyhands.failure import RunFailed
from manyhands.job import Job
from manyhands.live.script import MODULE, execute
from manyhands.verbs.simulate import Asked, plan, replay

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def simulate(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, simulate its job, and say how to do it again."""
    if not script.is_file():
        _leave(f"there is no file {script}", 2)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    job = _only_job(script)
    asked = Asked(**options)
    try:
        settled = plan(job, asked, "command line")
        again = shlex.join(
            [*replay(job, asked, script), *(["--", *arguments] if arguments else [])]
        )
    except (TypeError, ValueError) as error:
        _leave(f"manyhands: {error}", 2)
    try:
        run = settled.carry_out()
    except RunFailed as failure:
        _leave(f"manyhands: {failure}\n  replay       {again}", 1)
    except BaseException:
        typer.echo(f"  replay       {again}", err=True)
        raise
    typer.echo(run.summary())
    typer.echo(f"  replay       {again}")


def _only_job(script: Path) -> Job:
    module = execute(script.resolve(), MODULE)
    jobs = {name: value for name, value in vars(module).items() if isinstance(value, Job)}
    if len(jobs) != 1:
        found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
        _leave(f"{script} has {found} at its top level; it needs exactly one", 2)
    (job,) = jobs.values()
    return job


def _leave(words: str, code: int) -> NoReturn:
    typer.echo(words, err=True)
    raise typer.Exit(code)
