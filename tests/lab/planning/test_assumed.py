"""Plans for machines that are not there: computing at an assumed speed."""

import pytest
import torch

import manyhands as mh
from manyhands.lab.calibration.assumed import STEP, assume, read_speed


def job() -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(64, 100), torch.zeros(64, 50))
    return mh.Job(
        model=lambda: torch.nn.Linear(100, 50, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=64,
        epochs=1,
        metrics=(),
    )


def test_a_batch_takes_three_times_the_operations_of_its_forward_pass() -> None:
    found = assume(job(), "2 GFLOP/s")
    # 100 products and 99 sums for each of 50 outputs, or 100 of both: within a hundredth.
    work = 3 * 64 * 2 * 100 * 50 / 2e9
    assert found.seconds(64) - STEP == pytest.approx(work, rel=0.01)
    assert found.seconds(8) - STEP == pytest.approx(work / 8, rel=0.01)
    assert found.parameters == 4 * 100 * 50


def test_what_was_assumed_is_said() -> None:
    found = assume(job(), "2 GFLOP/s")
    assert found.source == (
        "computing at an assumed 0.002 TFLOP/s per worker, which was not measured,"
    )
    planned = mh.plan(job(), "2 hosts of 1 worker, 1gbit", found, strategies=["allreduce()"])
    assert "allreduce()" in {one.strategy for one in planned.ranking}


@pytest.mark.parametrize("text", ["fast", "10", "-1 TFLOP/s", "0 TFLOP/s", ""])
def test_a_speed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a speed such as '10 TFLOP/s'"):
        read_speed(text)


def test_collectives_cost_more_on_crowded_hosts() -> None:
    one = mh.ComputeTime(samples=8, seconds=0.1, cv=0.0, data=0.01, steps=9)
    found = mh.Calibration(
        date="",
        job="job",
        parameters=8,
        compute=(one,),
        collective=0.002,
        sharded=0.01,
        machine=mh.reports.Machine(cores=2),
    )
    assert found.seconds(8) == pytest.approx(0.11)
    assert found.overhead(1, 1) == 0
    assert found.overhead(2, 2) == pytest.approx(0.002)
    assert found.overhead(2, 2, sharded=True) == pytest.approx(0.01)
    assert found.overhead(5, 1) == pytest.approx(0.002)
    assert found.overhead(5, 5) == pytest.approx(0.005)
