"""A model of one number, for `benchmarks.step_floor`."""

import torch

import manyhands as mh

job = mh.Job(
    model=lambda: torch.nn.Linear(1, 1, bias=False),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
    loss=torch.nn.functional.mse_loss,
    data=torch.utils.data.TensorDataset(torch.zeros(1024, 1), torch.zeros(1024, 1)),
    global_batch=1,
    epochs=1000,
    metrics=(),
)
