"""A virtual run that diverges fails, and says where."""

import pytest
import torch
from virtual_jobs import a_job

from manyhands.failure import Diverged
from manyhands.reports import Run
from manyhands.reports.figures.speed import accounting
from manyhands.verbs.simulate import simulate


def diverging(**changes):
    return a_job(
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e30), epochs=4, **changes
    )


@pytest.mark.parametrize("strategy", ["asynchronous()", "gossip()", "hogwild()"])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, strategy) -> None:
    words = r"diverged: the training loss became (NaN|infinite) at sample \d+ on worker \d"
    with pytest.raises(Diverged, match=words):
        simulate(diverging(), strategy, workers=2, output=tmp_path / "out")
    run = Run(tmp_path / "out")
    assert run.status == "failed"
    assert "failed: diverged: the training loss became" in run.summary().replace("\n  ", " ")


def test_a_run_that_goes_on_has_failed_all_the_same(tmp_path) -> None:
    run = simulate(diverging(stop_on_nan=False), workers=2, output=tmp_path / "out")
    kept = accounting(run.trace)
    assert (kept.seen + (kept.lost or 0), kept.lost != 0) == (800, True)
    assert run.status == "failed"


def test_a_validation_loss_that_is_not_finite_is_named(tmp_path) -> None:
    bad = torch.utils.data.TensorDataset(torch.full((4, 4), torch.nan), torch.zeros(4, 2))
    job = a_job(validation=bad)
    with pytest.raises(Diverged, match="the validation loss became NaN after 200 samples"):
        simulate(job, workers=2, output=tmp_path / "out")
