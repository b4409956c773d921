"""Errors that no subcommand explains: those of the user's script, and defects."""

import traceback

import typer

from manyhands.failure import RunFailed
from manyhands.script.user_traceback import VARIABLE, user_traceback, wants_all

_ISSUES = "https://github.com/manyhands/manyhands/issues"


def show(error: Exception) -> int:
    """Print an error, with the frames of the user's files alone; return the exit code."""
    found = user_traceback(error)
    if found is not None:
        typer.echo(found.rstrip(), err=True)
        if not wants_all():
            typer.echo(
                f"manyhands: the script failed; {VARIABLE}=full shows the frames of libraries too",
                err=True,
            )
        return 1
    if isinstance(error, (ValueError, RunFailed)) and str(error):
        typer.echo(f"manyhands: {error}", err=True)
        return 2
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    typer.echo(
        f"manyhands: an error that should not happen: {type(error).__name__}: {error}{place}. "
        f"Repeat the command with {VARIABLE}=full before it, and report what it prints at "
        f"{_ISSUES}",
        err=True,
    )
    return 1
