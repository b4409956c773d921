"""Learning rate, momentum and weight decay of a network for MNIST, found by a particle swarm.

manyhands search examples/search_rates.py --method "swarm(size=8)" --trials 32 --workers 2
"""

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh

data = mh.data.mnist("train")
validation = torch.utils.data.Subset(mh.data.mnist("test"), range(2000))


def job(
    lr=mh.free.log(1e-4, 1.0),
    momentum=mh.free.uniform(0.0, 0.98),
    weight_decay=mh.free.log(1e-6, 1e-1),
):
    """A network of two layers."""
    return mh.Job(
        model=lambda: mh.models.MLP(hidden=(64,)),
        optimizer=lambda model: torch.optim.SGD(
            model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
        ),
        loss=cross_entropy,
        data=data,
        validation=validation,
        global_batch=64,
        samples=6400,
    )
