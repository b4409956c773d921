"""Runs that start from existing weights, and what is refused before a process starts."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

import manyhands as mh
from manyhands.files.checkpoint import save_model
from manyhands.seeding import seed_all


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(6, 2),
    )


def job_of(**fields):
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=2,
        **fields,
    )


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("synchronous()", 3),
        ("asynchronous()", 3),
        ("ssp(staleness=2, servers=2)", 3),
        ("easgd()", 2),
        ("gossip()", 3),
        ("hogwild()", 2),
        ("central_storage()", 2),
        ("local_sgd(every=2)", 2),
    ],
)
def test_a_virtual_run_from_its_own_initial_weights_is_the_same(tmp_path, strategy, workers):
    job = job_of(seed=3)
    seed_all(3)
    save_model(model(), tmp_path / "initial.safetensors")
    started = replace(job, start=tmp_path / "initial.safetensors")
    digests = {
        mh.simulate(one, strategy, workers=workers, output=tmp_path / name).parameters_digest
        for name, one in (("without", job), ("with", started))
    }
    assert len(digests) == 1
    assert None not in digests


def test_a_run_continues_from_another_one(tmp_path):
    first = mh.simulate(job_of(), "synchronous()", workers=2, output=tmp_path / "first")
    again = replace(job_of(), start=first.folder, samples=8, epochs=None)
    second = mh.simulate(again, "synchronous()", workers=2, output=tmp_path / "second")
    before, after = first.state_dict(), second.state_dict()
    assert (before["0.weight"] - after["0.weight"]).abs().max() < 0.02
    other = mh.simulate(
        replace(again, start=None), "synchronous()", workers=2, output=tmp_path / "third"
    )
    assert (before["0.weight"] - other.state_dict()["0.weight"]).abs().max() > 0.02
    told = {one.name: one.value for each in second.trace.processes for one in each.settings}
    assert told["start"] == str(first.folder)
    assert told["start_sha256"] == first.parameters_digest


def test_trained_weights_and_the_model_with_them_are_returned(tmp_path):
    job = job_of()
    run = mh.simulate(job, "synchronous()", workers=2, output=tmp_path / "run")
    trained = run.model()
    assert trained is not run.model()
    for name, tensor in run.state_dict().items():
        assert torch.equal(trained.state_dict()[name], tensor)
    inputs, targets = job.validation[:]
    outputs = trained.eval()(inputs)
    assert torch.nn.functional.cross_entropy(outputs, targets).item() == pytest.approx(
        run.metrics["loss"], abs=1e-6
    )
    with pytest.raises(ValueError, match=r"give Run\(folder, model=job.model\)"):
        mh.Run(run.folder).model()
    assert mh.Run(run.folder, model=model).model().training


def test_a_run_without_a_model_says_so(tmp_path):
    run = mh.simulate(job_of(), "synchronous()", workers=2, time_only=True, output=tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors: "):
        run.model()


def test_other_weights_are_refused_and_leave_no_folder(tmp_path):
    safetensors.torch.save_file({"0.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    job = job_of(start=tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="does not fit the model"):
        mh.simulate(job, "synchronous()", workers=2, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    def model():
        return torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(6, 2)
        )

    strategy, workers, start = map(json.loads, sys.argv[1:])
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    job = mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        global_batch=8,
        epochs=2,
        metrics=(),
        start=start,
        seed=3,
    )

    if __name__ == "__main__":
        run = mh.train(job, strategy, workers=workers)
        trained = run.model().state_dict()
        assert all(torch.equal(trained[name], one) for name, one in run.state_dict().items())
        print("digest", run.parameters_digest)
"""


def live(run_script, strategy, workers, start):
    started = run_script(SCRIPT, *map(json.dumps, (strategy, workers, start)))
    return started, started.finish(100)


def digest_of(run_script, strategy, workers, start):
    started, code = live(run_script, strategy, workers, start)
    assert code == 0, started.text()
    return started.text().split("digest ")[1].split()[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("allreduce()", 2),
        ("fully_sharded()", 2),
        ("tensor(ways=2)", 2),
        ("pipeline()", 2),
        ("zero(stage=2)", 2),
        ("synchronous()", 2),
        ("synchronous(servers=2)", 2),
        ("asynchronous()", 1),
        ("ssp(staleness=2)", 1),
    ],
)
def test_a_live_run_from_its_own_initial_weights_is_the_same(
    run_script, tmp_path, strategy, workers
):
    seed_all(3)
    initial = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(6, 2)
    )
    save_model(initial, tmp_path / "initial.safetensors")
    own = digest_of(run_script, strategy, workers, None)
    assert digest_of(run_script, strategy, workers, "initial.safetensors") == own
    save_model(model_of_zeros(initial), tmp_path / "zeros.safetensors")
    assert digest_of(run_script, strategy, workers, "zeros.safetensors") != own


def model_of_zeros(initial):
    with torch.no_grad():
        for parameter in initial.parameters():
            parameter.mul_(0.5)
    return initial


def test_a_live_run_from_other_weights_is_refused_before_a_process_starts(run_script, tmp_path):
    safetensors.torch.save_file({"0.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    started, code = live(run_script, "synchronous()", 2, "other.safetensors")
    assert code != 0
    assert "does not fit the model: 3 that the model has, and the weights lack" in started.text()
    assert not [*(tmp_path / "runs").glob("*")]


def test_a_live_run_from_a_pickle_is_refused_before_a_process_starts(run_script, tmp_path):
    torch.save({}, tmp_path / "old.pt")  # noqa: TID251 - what is refused
    started, code = live(run_script, "allreduce()", 2, "old.pt")
    assert code != 0
    assert "old.pt is a pickle file" in started.text()
    assert "weights_only=True" in started.text()
    assert not [*(tmp_path / "runs").glob("*")]
