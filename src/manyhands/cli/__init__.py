"""The command `manyhands`: one file per subcommand, each imported when it is called."""

from manyhands.cli.app import main

__all__ = ["main"]
