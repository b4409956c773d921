"""The command `manyhands`: one file per verb, each loaded when it is called."""

from manyhands.cli.app import main

__all__ = ["main"]
