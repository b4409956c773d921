"""Callbacks are called in the script's process, once each, and cannot end a run."""

import csv
import sys
import textwrap
from dataclasses import replace

import pytest
from callback_jobs import job

import manyhands as mh


class Noting(mh.callbacks.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def on_start(self, folder):
        self.told.append(("start", folder.name))

    def on_epoch(self, epoch, samples):
        self.told.append(("epoch", epoch, samples))

    def on_evaluation(self, values, samples, seconds):
        assert seconds >= 0
        self.told.append(("evaluation", sorted(values), samples))

    def on_end(self, run):
        self.told.append(("end", run.status))

    def on_failure(self, error):
        self.told.append(("failure", type(error).__name__))


class Failing(mh.callbacks.Callback):
    """Raises at the first evaluation."""

    calls = 0

    def on_evaluation(self, values, samples, seconds):
        del values, samples, seconds
        self.calls += 1
        raise RuntimeError("the disk is full")


def test_a_virtual_run_calls_them(tmp_path):
    noting = Noting()
    mh.simulate(job([noting]), "synchronous()", workers=2, output=tmp_path / "run")
    assert noting.told[0] == ("start", "run")
    assert noting.told[-1] == ("end", "finished")
    assert [one for one in noting.told if one[0] == "evaluation"] == [
        ("evaluation", ["accuracy", "loss"], 16 * number) for number in (1, 2, 3)
    ]
    assert [one for one in noting.told if one[0] == "epoch"] == [
        ("epoch", number, 16 * (number + 1)) for number in range(3)
    ]


def test_one_that_fails_is_not_called_again_and_the_run_goes_on(tmp_path, capsys):
    failing, noting = Failing(), Noting()
    run = mh.simulate(job([failing, noting]), "synchronous()", workers=2, output=tmp_path / "run")
    assert run.status == "finished"
    assert failing.calls == 1
    assert noting.told[-1] == ("end", "finished")
    assert "Failing.on_evaluation failed and is not called any more" in capsys.readouterr().err


def test_a_failed_run_is_told(tmp_path):
    def broken(*_):
        raise RuntimeError("broken")

    noting = Noting()
    failing = replace(job([noting]), loss=broken)
    with pytest.raises(RuntimeError, match="broken"):
        mh.simulate(failing, "synchronous()", workers=2, output=tmp_path / "run")
    assert noting.told[-1] == ("failure", "RuntimeError")


def test_evaluations_are_rows_and_scalars(tmp_path):
    loggers = [mh.callbacks.CSVLogger(), mh.callbacks.TensorBoard()]
    run = mh.simulate(job(loggers), "asynchronous()", workers=2, output=tmp_path / "run")
    with (run.folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["samples"]) for row in rows] == [16, 32, 48]
    assert float(rows[-1]["loss"]) == pytest.approx(run.metrics["loss"])
    accumulate = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    scalars = accumulate.EventAccumulator(str(run.folder / "tensorboard"))
    scalars.Reload()
    assert [one.step for one in scalars.Scalars("validation/accuracy")] == [16, 32, 48]


SCRIPT = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    class Noting(mh.callbacks.Callback):
        def on_evaluation(self, values, samples, seconds):
            print("noted", sorted(values), samples)

        def on_end(self, run):
            print("noted the end", run.status)

    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=3,
        callbacks=[Noting()],
    )

    if __name__ == "__main__":
        mh.train(job, "allreduce()", workers=2, output="run")
"""


@pytest.mark.slow
def test_a_live_run_calls_them_in_one_process(run_script):
    started = run_script(SCRIPT)
    assert started.finish(100) == 0, started.text()
    noted = [line for line in started.text().splitlines() if line.startswith("noted")]
    assert noted == [
        *(f"noted ['accuracy', 'loss'] {samples}" for samples in (16, 32, 48)),
        "noted the end finished",
    ]


@pytest.mark.slow
def test_under_torchrun_worker_0_calls_them(start, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    command = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py")
    started = start(sys.executable, *command)
    assert started.finish(100) == 0, started.text()
    noted = [line for line in started.text().splitlines() if line.startswith("noted")]
    assert noted == [
        *(f"noted ['accuracy', 'loss'] {samples}" for samples in (16, 32, 48)),
        "noted the end finished",
    ]


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="callbacks must be objects with the methods of"):
        job([print])
