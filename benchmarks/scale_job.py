"""The job of `benchmarks.scale`: a model of 10⁵ parameters, of which only servers hold any."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=lambda: torch.nn.Linear(316, 316),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-6),
    loss=F.cross_entropy,
    data=torch.utils.data.TensorDataset(torch.zeros(64, 316), torch.zeros(64, dtype=torch.long)),
    global_batch=64,
    epochs=1,
    metrics=(),
)
