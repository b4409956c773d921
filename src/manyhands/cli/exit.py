"""Exit of a subcommand with an error message."""

from typing import NoReturn

import typer


def leave(words: str, code: int = 2) -> NoReturn:
    """Print an error message and exit the command with this code."""
    typer.echo(words, err=True)
    raise typer.Exit(code)
