"""A job of a few seconds, for tests of callbacks."""

import torch

import manyhands as mh


def job(callbacks, **fields):
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=3,
        callbacks=callbacks,
        **fields,
    )
