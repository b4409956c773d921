"""`broadcast` with few workers at first."""

import pytest
import torch

import manyhands as mh
from manyhands.strategies import strategy


def job(**limits):
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=torch.nn.functional.mse_loss,
        data=torch.utils.data.TensorDataset(inputs, inputs[:, :2].clone()),
        global_batch=8,
        **limits,
    )


def trained(run):
    """The samples of each worker."""
    return [worker.totals.samples for worker in run.trace.workers]


def test_the_others_join_after_a_part_of_an_epoch(tmp_path):
    text = "broadcast(early_workers=2, early_epochs=0.5)"
    first = mh.simulate(job(samples=32), text, workers=4, output=tmp_path / "first")
    assert [bool(samples) for samples in trained(first)] == [True, True, False, False]
    whole = mh.simulate(job(epochs=2), text, workers=4, output=tmp_path / "whole")
    assert all(trained(whole))
    assert sum(trained(whole)) == 128


def test_all_begin_if_there_are_no_others():
    assert strategy("broadcast(early_workers=4)").needs(4).early is None
    assert strategy("broadcast(early_workers=4)").needs(8).early == (4, 0.25)


@pytest.mark.parametrize("text", ["broadcast(early_workers=-1)", "broadcast(early_epochs=0)"])
def test_impossible_numbers_are_refused(text):
    with pytest.raises(ValueError, match=r"early_\w+ must be"):
        strategy(text)
