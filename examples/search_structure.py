"""The layers of a network for MNIST, found by evolution.

    manyhands search examples/search_structure.py --method "evolution(size=8)" --trials 32 \
        --workers 2

A structure is a list of layers. A child has one more than its parent, one less, or another one.
"""

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh

data = mh.data.mnist("train")
validation = torch.utils.data.Subset(mh.data.mnist("test"), range(2000))


def network(layers: list[str]) -> torch.nn.Module:
    """The network that a list of layers describes, as `["conv 8", "pool", "dense 32"]`."""
    channels, side, parts = 1, 28, []
    for layer in layers:
        kind, _, size = layer.partition(" ")
        if kind == "conv":
            parts += [torch.nn.Conv2d(channels, int(size), 3, padding=1), torch.nn.ReLU()]
            channels = int(size)
        elif side >= 4:
            parts.append(torch.nn.MaxPool2d(2))
            side //= 2
    return torch.nn.Sequential(
        *parts, torch.nn.Flatten(), torch.nn.Linear(channels * side * side, 10)
    )


def job(
    layers=mh.free.sequence(mh.free.choice("conv 4", "conv 8", "conv 16", "pool"), 1, 6),
    lr=mh.free.log(3e-3, 0.3),
):
    """A network with these layers."""
    return mh.Job(
        model=lambda: network(layers),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        loss=cross_entropy,
        data=data,
        validation=validation,
        global_batch=64,
        samples=3200,
    )
