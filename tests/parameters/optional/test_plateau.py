"""Jobs whose learning rates depend on evaluations, which a restarted worker does not know."""

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.parameters.optional.plateau import has_plateau


def refuses_meta() -> torch.nn.Module:
    model = torch.nn.Linear(2, 1)
    model.scale = model.weight.sum().item()
    return model


@pytest.mark.parametrize(
    ("model", "scheduler", "found"),
    [
        (lambda: torch.nn.Linear(2, 1), None, False),
        (lambda: torch.nn.Linear(2, 1), lambda one: lr_scheduler.StepLR(one, 2), False),
        (lambda: torch.nn.Linear(2, 1), lr_scheduler.ReduceLROnPlateau, True),
        (refuses_meta, lambda one: lr_scheduler.StepLR(one, 2), False),
        (refuses_meta, lr_scheduler.ReduceLROnPlateau, True),
    ],
)
def test_whether_a_lost_worker_stays_away(model, scheduler, found):
    data = TensorDataset(torch.zeros(4, 2), torch.zeros(4, 1))
    job = mh.Job(
        model=model,
        optimizer=lambda made: torch.optim.SGD(made.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data,
        global_batch=2,
        epochs=1,
        metrics=(),
        lr_scheduler=scheduler,
    )
    assert has_plateau(job) is found
