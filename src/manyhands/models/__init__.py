"""Networks that examples, tests and benchmarks train: plain `torch.nn` modules.

>>> sum(parameter.numel() for parameter in LeNet().parameters())
1111946
"""

from manyhands.models.gpt import GPT
from manyhands.models.lenet import LeNet
from manyhands.models.mlp import MLP
from manyhands.models.paced import Paced
from manyhands.models.residual import ResidualNetwork
from manyhands.models.resnet import ResNet50V2, ResNet101V2, ResNet152V2
from manyhands.models.shared import SharedLSTM

__all__ = [
    "GPT",
    "MLP",
    "LeNet",
    "Paced",
    "ResNet50V2",
    "ResNet101V2",
    "ResNet152V2",
    "ResidualNetwork",
    "SharedLSTM",
]
