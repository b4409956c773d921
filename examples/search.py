"""Learning rate, momentum and width of a LeNet on MNIST, found by parallel trials.

    manyhands search examples/search.py --method "population(size=8)" --trials 24 --workers 2

and, with the values that were found:

    manyhands train examples/search.py --set lr=0.05 --set momentum=0.9 --set width=64
"""

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh

data = mh.data.mnist("train")
validation = mh.data.mnist("test")


def job(
    lr=mh.free.log(1e-3, 1.0),
    momentum=mh.free.uniform(0.0, 0.98),
    width=mh.free.choice(16, 32, 64),
):
    """A LeNet whose convolutions and dense layer have this width."""
    return mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Conv2d(1, width // 4, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(4),
            torch.nn.Conv2d(width // 4, width // 2, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(width // 2 * 9, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 10),
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        loss=cross_entropy,
        data=data,
        validation=validation,
        global_batch=64,
        samples=9600,
    )
