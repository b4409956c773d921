"""The jobs behind curves that lectures draw, each made by one command on the virtual clock.

docs/cases/sweeps.md has the commands: accuracy over H of `averaging`, over S of `softsync`, speed
over the number of servers, and one worker against many in the same time.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import manyhands as mh

accuracy = mh.Job(
    model=lambda: mh.models.MLP(hidden=(64,)),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    metrics=["accuracy"],
    global_batch=256,
    samples=30_720,
)
"""An MLP on MNIST, plain SGD: 8 workers have 32 samples each, and take 120 steps."""

servers = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    global_batch=256,
    samples=256 * 20,
    metrics=(),
)
"""LeNet, 4.4 MB of parameters: 20 steps, of which only the times count."""
