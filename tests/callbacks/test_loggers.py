"""Loggers of other tools record curves, settings and figures, and that a run failed."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from callback_jobs import job

import manyhands as mh


def broken(*_):
    raise RuntimeError("broken")


def test_settings_are_told_before_the_first_evaluation(tmp_path):
    told = []

    class Noting(mh.callbacks.Callback):
        def on_settings(self, settings):
            told.append(dict(settings))

        def on_evaluation(self, values, samples, seconds):
            del values, seconds
            told.append(samples)

    mh.simulate(job([Noting()]), "synchronous()", workers=2, output=tmp_path / "run")
    assert told[0]["strategy"] == "synchronous()"
    assert told[0]["workers"] == "2"
    assert told[1:] == [16, 32, 48]


def test_the_run_of_on_end_has_its_model(tmp_path):
    made = []

    class Keeping(mh.callbacks.Callback):
        def on_end(self, run):
            made.append(run.model())

    run = mh.simulate(job([Keeping()]), "synchronous()", workers=2, output=tmp_path / "run")
    assert torch.equal(made[0].weight, run.state_dict()["weight"])


@pytest.mark.parametrize(("name", "logger"), [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_a_logger_that_is_not_installed_names_the_extra(
    tmp_path, monkeypatch, capsys, name, logger
):
    monkeypatch.setitem(sys.modules, name, None)
    run = mh.simulate(
        job([getattr(mh.callbacks, logger)()]),
        "synchronous()",
        workers=2,
        output=tmp_path / "run",
    )
    assert run.status == "finished"
    assert f"pip install 'manyhands[{name}]'" in capsys.readouterr().err


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch):
    """A client of an empty store."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    return uri, mlflow.MlflowClient(tracking_uri=uri)


def only_run(client, experiment):
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run


@pytest.mark.filterwarnings("ignore")  # of MLflow and its database
def test_mlflow_has_curves_settings_and_figures(tmp_path, mlflow_store):
    uri, client = mlflow_store
    logger = mh.callbacks.MLflow("digits", tracking_uri=uri, tags={"who": "test"})
    run = mh.simulate(job([logger]), "asynchronous()", workers=2, output=tmp_path / "run")
    stored = only_run(client, "digits")
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "run"
    assert stored.data.tags["who"] == "test"
    assert stored.data.params["strategy"] == "asynchronous()"
    assert stored.data.params["workers"] == "2"
    points = client.get_metric_history(stored.info.run_id, "validation/loss")
    assert [point.step for point in points] == [16, 32, 48]
    assert points[-1].value == pytest.approx(run.metrics["loss"])
    figures = {name: value for name, value in stored.data.metrics.items() if "run/" in name}
    assert figures["run/samples"] == 48
    assert figures["run/final.loss"] == pytest.approx(run.metrics["loss"])


@pytest.mark.filterwarnings("ignore")  # of MLflow and its database
def test_mlflow_marks_a_failed_run(tmp_path, mlflow_store):
    uri, client = mlflow_store
    failing = replace(job([mh.callbacks.MLflow(tracking_uri=uri)]), loss=broken)
    with pytest.raises(RuntimeError, match="broken"):
        mh.simulate(failing, "synchronous()", workers=2, output=tmp_path / "run")
    stored = only_run(client, "manyhands")
    assert stored.info.status == "FAILED"
    assert stored.data.tags["manyhands.error"] == "RuntimeError: broken"


WANDB = """
    import sys
    import torch
    import manyhands as mh

    def broken(*_):
        raise RuntimeError("broken")

    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=broken if sys.argv[1] == "fail" else torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=3,
        callbacks=[mh.callbacks.WandB(project="digits", mode="offline", tags=["a"])],
    )

    if __name__ == "__main__":
        mh.simulate(job, "asynchronous()", workers=2, output="run")
"""


def records(folder):
    """What an offline run of wandb stored: protocol buffers in a log of LevelDB's format."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, at, begun, found = path.read_bytes(), 7, b"", []
    while at < len(content):
        left = 32768 - at % 32768
        if left < 7:  # the rest of a block that has no room for a header
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(begun)
            found.append(record)
            begun = b""
    return found


def items(updates):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}


@pytest.mark.slow
def test_wandb_has_curves_settings_and_figures(run_script):
    pytest.importorskip("wandb")
    started = run_script(WANDB, "train", WANDB_SILENT="true")
    assert started.finish(100) == 0, started.text()
    found = records(started.folder / "run")
    kinds = {record.WhichOneof("record_type") for record in found}
    assert {"run", "history", "config", "summary", "exit"} <= kinds
    history = [
        items(record.history.item)
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["samples"] for row in history] == [16, 32, 48]
    assert all(0 < row["validation/loss"] < math.inf for row in history)
    config = {}
    for record in found:
        if record.WhichOneof("record_type") == "config":
            config |= items(record.config.update)
    assert config["strategy"] == "asynchronous()"
    summary = {}
    for record in found:
        if record.WhichOneof("record_type") == "summary":
            summary |= items(record.summary.update)
    assert summary["samples"] == 48
    assert summary["final.loss"] == pytest.approx(history[-1]["validation/loss"])
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name, [*run.tags]) == ("digits", "run", ["a"])
    (end,) = [record.exit for record in found if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 0


@pytest.mark.slow
def test_wandb_marks_a_failed_run(run_script):
    pytest.importorskip("wandb")
    started = run_script(WANDB, "fail", WANDB_SILENT="true")
    assert started.finish(100) == 1
    found = records(started.folder / "run")
    (end,) = [record.exit for record in found if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 1
