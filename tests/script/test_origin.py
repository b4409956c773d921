"""Settings that the command line overrides: the learning rate."""

import pytest
import torch

import manyhands as mh
from manyhands.script.origin import Overrides, override, read_lr


def a_job(*groups: float, **options: object) -> mh.Job:
    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        parameters = [{"params": [p], "lr": lr} for p, lr in zip(model.parameters(), groups)]  # noqa: B905
        return torch.optim.SGD(parameters, momentum=0.9)

    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 2))
    return mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=optimizer,
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=4,
        epochs=1,
        **options,
    )


def rates(job: mh.Job, lr: str) -> list[float]:
    made = override(job, Overrides(lr=lr))
    groups = made.optimizer(torch.nn.Linear(2, 2)).param_groups
    assert all(group["momentum"] == 0.9 for group in groups)
    return [group["lr"] for group in groups]


def test_a_rate_replaces_the_one_of_all_groups() -> None:
    assert rates(a_job(0.5, 0.5), "0.01") == [0.01, 0.01]


def test_a_factor_multiplies_the_rate_of_each_group() -> None:
    assert rates(a_job(0.5, 0.1), "2x") == [1.0, 0.2]


def test_a_rate_in_place_of_different_ones_is_refused() -> None:
    with pytest.raises(ValueError, match=r"learning rates of parameter groups \(0.1, 0.5\).*0.5x"):
        rates(a_job(0.5, 0.1), "0.01")


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "0x", "1y", "nan", "inf"])
def test_what_is_no_learning_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lr must be a learning rate above 0"):
        read_lr(text)
