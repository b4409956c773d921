"""The verbs of the library: `train` today; each is a function here and a subcommand."""

from manyhands.verbs.train import train

__all__ = ["train"]
