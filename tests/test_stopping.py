"""Early stopping: live, virtual, and what it means."""

import pytest
import torch

import manyhands as mh
from manyhands.stopping import Improvement


def job(lr=0.0, **options):
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :2].clone())
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data,
        global_batch=8,
        epochs=20,
        **options,
    )


def stops(run):
    events = [event for process in run.trace.processes for event in process.events]
    return [event for event in events if event.what == "stopped"]


def test_a_metric_that_stands_still_is_over():
    follow = Improvement(mh.EarlyStopping("loss", patience=2, min_delta=0.1))
    given = [1.0, 0.8, 0.75, 0.65, 0.6, 0.58]
    assert [follow.is_over({"loss": value}) for value in given] == [False] * 5 + [True]
    rising = Improvement(mh.EarlyStopping("accuracy", patience=1))
    assert [rising.is_over({"accuracy": value}) for value in (0.5, 0.6, 0.6)] == [
        False,
        False,
        True,
    ]
    undefined = Improvement(mh.EarlyStopping("loss", patience=1))
    assert undefined.is_over({"loss": float("nan")})


@pytest.mark.parametrize("strategy", ["synchronous()", "asynchronous()"])
def test_a_virtual_run_stops(tmp_path, strategy):
    stopping = mh.EarlyStopping("loss", patience=3)
    run = mh.simulate(job(early_stopping=stopping), strategy, workers=2, output=tmp_path / "run")
    # The first evaluation is the best, and three more follow.
    assert run.samples == 4 * 16
    (event,) = stops(run)
    assert event.detail["why"] == "loss has not improved for 3 evaluations"
    learning = mh.simulate(
        job(0.1, early_stopping=stopping), strategy, workers=2, output=tmp_path / "learning"
    )
    assert learning.samples == 20 * 16


SCRIPT = """
    import sys
    import torch
    import manyhands as mh

    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :2].clone())
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data,
        global_batch=8,
        epochs=20,
        early_stopping=mh.EarlyStopping("loss", patience=3),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=2, output="run")
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_a_live_run_stops(run_script, strategy):
    started = run_script(SCRIPT, strategy)
    assert started.finish(100) == 0, started.text()
    run = mh.Run(started.folder / "run")
    assert run.samples == 4 * 16
    assert len(stops(run)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience": 0}, "patience must be at least 1"),
        ({"min_delta": -1}, "min_delta must be 0 or more"),
        ({"mode": "up"}, '"min" or "max"'),
    ],
)
def test_impossible_rules_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        mh.EarlyStopping(**options)


def test_a_job_must_have_the_metric():
    with pytest.raises(ValueError, match="names no metric of this job; it has loss"):
        job(metrics=(), early_stopping=mh.EarlyStopping("accuracy"))
    with pytest.raises(TypeError, match="early_stopping must be a rule"):
        job(early_stopping=3)
