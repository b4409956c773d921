"""The verbs of the library: each is a function here and a subcommand."""

from manyhands.verbs.simulate import simulate
from manyhands.verbs.train import train

__all__ = ["simulate", "train"]
