"""How a subcommand ends when it cannot do what it was asked."""

from typing import NoReturn

import typer


def leave(words: str, code: int = 2) -> NoReturn:
    """End the command with words on the error stream."""
    typer.echo(words, err=True)
    raise typer.Exit(code)
