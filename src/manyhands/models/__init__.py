"""Networks that examples, tests and benchmarks train: plain modules that know nothing else here."""

from manyhands.models.lenet import LeNet
from manyhands.models.mlp import MLP
from manyhands.models.residual import ResidualNetwork

__all__ = ["MLP", "LeNet", "ResidualNetwork"]
