"""Exit of a subcommand with an error message."""

import sys
import traceback
from pathlib import Path
from typing import NoReturn

import typer

_ISSUES = "https://github.com/manyhands/manyhands/issues"


def leave(words: str, code: int = 2) -> NoReturn:
    """Print an error message and exit the command with this code."""
    typer.echo(words, err=True)
    raise typer.Exit(code)


def check_folder() -> None:
    """Exit with a message if the current folder does not exist any more."""
    try:
        Path.cwd()
    except FileNotFoundError:
        sys.exit("manyhands: the current folder has been deleted: change to one that exists")


def show(error: Exception) -> int:
    """Print an error that no subcommand has explained; return the exit code.

    It is an error of the user's script, of which the frames of the user's files are shown, or a
    defect of ours.
    """
    # Not at the top: `manyhands --help` should not wait for them.
    from manyhands.data.originals import DataMissingError  # noqa: PLC0415
    from manyhands.failure import RunFailed  # noqa: PLC0415
    from manyhands.script.user_traceback import VARIABLE, user_traceback, wants_all  # noqa: PLC0415

    found = None if isinstance(error, DataMissingError) else user_traceback(error)
    if found is not None:
        typer.echo(found.rstrip(), err=True)
        if not wants_all():
            typer.echo(
                f"manyhands: the script failed; {VARIABLE}=full shows the frames of libraries too",
                err=True,
            )
        return 1
    if isinstance(error, (ValueError, RunFailed, DataMissingError)) and str(error):
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
