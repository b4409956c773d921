"""When virtual runs evaluate and end, what they write down, and what they refuse."""

import msgspec
import pytest
import torch
from torch import nn
from virtual_jobs import a_job

import manyhands as mh
from manyhands.files.checkpoint import load_state
from manyhands.protocols import Asynchronous
from manyhands.reports import accounting, breakdown, epochs, loss_curve, throughput, traffic
from manyhands.trace import read
from manyhands.trace.recorder import PEERS
from manyhands.virtual import ProcessHosts
from manyhands.virtual.log import FULL
from manyhands.virtual.worker.endpoint import HEAD


def with_validation(**changes):
    job = a_job()
    return a_job(**({"validation": job.data} | changes))


def validation(done) -> list[tuple[str, int]]:
    return [
        (point.name, point.samples)
        for process in done.run.trace.processes
        for point in process.points
        if point.name.startswith("validation/")
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_epoch_ends_with_an_evaluation(virtually, workers: int) -> None:
    done = virtually(with_validation(epochs=3), workers=workers, seconds="exponential(0.1)")
    assert validation(done) == [("validation/loss", n) for n in (200, 400, 600)]
    assert [(e.number, e.samples) for e in epochs(done.run.trace)] == [(0, 200), (1, 200), (2, 200)]


def test_an_epoch_waits_for_the_one_before_it_only_if_there_is_something_to_evaluate(
    virtually,
) -> None:
    slow = "constant(0.1, slow=[slow(rank=0, factor=30.0)])"
    paused = virtually(with_validation(), seconds=slow)
    free = virtually(a_job(), seconds=slow)
    assert validation(free) == []
    assert free.run.seconds < paused.run.seconds
    assert [e.samples for e in epochs(free.run.trace)] == [200, 200]


def test_a_budget_that_ends_within_an_epoch_is_evaluated_at_its_end(virtually) -> None:
    done = virtually(with_validation(epochs=None, samples=250))
    assert validation(done) == [("validation/loss", 200), ("validation/loss", 250)]
    assert done.run.samples == 250
    assert len(epochs(done.run.trace)) == 1


def test_a_target_ends_the_run(virtually) -> None:
    done = virtually(with_validation(epochs=100, target="loss <= 0.5"))
    (reached,) = done.events("target")
    assert reached["target"] == "loss <= 0.5"
    assert int(reached["samples"]) == done.run.samples < 20_000
    assert done.run.metrics["loss"] <= 0.5
    assert done.run.samples % 200 == 0


def test_virtual_seconds_end_the_run(virtually) -> None:
    done = virtually(a_job(epochs=None, seconds=2.05))
    # Batches that were under way are finished: 21 rounds of 20 samples.
    assert done.run.seconds == pytest.approx(2.1, abs=1e-3)
    assert done.run.samples == 420


def test_the_trained_model_is_what_was_evaluated(virtually) -> None:
    job = with_validation()
    done = virtually(job, Asynchronous(servers=2), workers=4)
    model = nn.Linear(4, 2)
    model.load_state_dict(load_state(done.run.folder / "model.safetensors"))
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    loss = nn.functional.mse_loss(model(inputs), targets).item()
    assert done.run.metrics["loss"] == pytest.approx(loss)


def test_an_evaluation_gives_all_workers_the_shared_statistics(virtually) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))

    done = virtually(with_validation(model=model), workers=3)
    own = [worker.replication.buffers for worker in done.world._workers]
    shared = done.run.state_dict()
    for mean, var, _ in own:
        assert torch.equal(mean, shared["0.running_mean"])
        assert torch.equal(var, shared["0.running_var"])
    # How many batches it normalised is a worker's own affair; the first one's is stored.
    counts = [int(count) for _, _, count in own]
    assert sum(counts) == done.world.versions[0]
    assert shared["0.num_batches_tracked"] == counts[0]


def test_bytes_are_counted_by_both_sides(virtually) -> None:
    done = virtually(a_job(epochs=1), workers=4)
    found = traffic(done.run.trace)
    # 4 pulls and 40 pushes, each answered with the parameters.
    sent = 4 * HEAD + 40 * (HEAD + 40) + 44 * (HEAD + 40)
    assert (found.sent, found.received) == (sent, sent)
    workers = [p.totals for p in done.run.trace.workers]
    assert {peer for totals in workers for peer in totals.sent} == {"server-0"}
    assert sum(totals.samples for totals in workers) == 200


def test_all_of_a_worker_s_time_is_accounted_for(virtually) -> None:
    places = ProcessHosts.host_each(6, 1, mh.Link(1e4, 1e-2))
    shares = breakdown(virtually(places=places, seconds="exponential(0.1)").run.trace).overall
    assert shares.other == pytest.approx(0, abs=1e-6)
    assert min(shares.compute, shares.communication, shares.wait) > 0


def test_the_loss_falls(virtually) -> None:
    curve = loss_curve(virtually(a_job(epochs=8)).run.trace)
    assert curve[-1].value < curve[0].value / 4
    assert curve[-1].samples == 1600


def test_many_workers_share_one_trace_whose_sums_are_exact(virtually) -> None:
    workers = FULL + 36
    job = a_job(size=2000, global_batch=2 * workers, epochs=1)
    done = virtually(job, workers=workers, seconds="lognormal(0.1, cv=0.4)")
    files = sorted(path.name for path in (done.run.folder / "trace").iterdir())
    assert len(files) == FULL + 3
    assert "workers-64-99.jsonl" in files
    assert "worker-63.jsonl" in files
    trace = done.run.trace
    assert sum(worker.totals.samples for worker in trace.workers) == 2000
    assert sum(worker.totals.steps for worker in trace.workers) == 1000
    assert throughput(trace).samples == accounting(trace).seen == 2000
    shares = breakdown(trace).overall
    assert shares.other == pytest.approx(0, abs=1e-6)
    assert shares.seconds == pytest.approx(workers * done.run.seconds, rel=0.02)
    (server,) = [p for p in trace.processes if p.header.role == "server"]
    assert len(server.totals.sent) == PEERS
    assert traffic(trace).sent == traffic(trace).received


def test_a_crash_among_those_who_share_a_trace_is_counted_too(virtually) -> None:
    workers = FULL + 6
    job = a_job(size=700, global_batch=workers, epochs=1)
    faults = "[crash(worker=68, at=0.25, restart=0.5), crash(worker=69, at=0.25)]"
    done = virtually(job, workers=workers, faults=faults, detection=0.5)
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.repeated, kept.lost) == (700, 2, 0)


def test_a_long_run_s_trace_stays_small(virtually) -> None:
    job = a_job(size=4000, global_batch=70, epochs=1)
    done = virtually(job, workers=70, seconds="exponential(0.1)")
    path = done.run.folder / "trace" / "workers-64-69.jsonl"
    assert path.stat().st_size < 150_000
    assert read(done.run.folder).skipped == 0


def test_data_of_any_kind_is_read(virtually, tmp_path) -> None:
    plain = a_job()
    pairs = [plain.data[index] for index in range(len(plain.data))]

    def collate(samples):
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    digests = {
        virtually(job).run.parameters_digest
        for job in (plain, a_job(data=pairs), a_job(data=pairs, collate_fn=collate))
    }
    assert len(digests) == 1
    with pytest.raises(TypeError, match=r"must be a pair \(input, target\)"):
        virtually(a_job(data=[(1.0, 2.0, 3.0)] * 20))


def test_what_is_not_simulated_is_refused_with_what_to_use(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"is not simulated: leave it out, or run allreduce\(\)"):
        mh.simulate(a_job(), "allreduce(codec=int8())", workers=2, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"latency": "1ms"}, "give their bandwidth too"),
        ({"workers": 0}, "at least 1 worker"),
        ({"bandwidth": "wide"}, "expected a bandwidth such as '100mbit'"),
        ({"cluster": mh.Cluster((mh.Host("a", 1, 0),)), "cores": 2}, "cores is given twice"),
        ({"service": -1}, "expected a time .* got -1"),
        ({"handover": "-1us"}, "expected a time .* got '-1us'"),
        ({"faults": "crash(worker=7, at=0)"}, "names worker-7"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given, words: str, tmp_path) -> None:
    with pytest.raises(ValueError, match=words):
        mh.simulate(a_job(), output=tmp_path / "run", **given)


def test_a_folder_with_a_run_in_it_is_refused(tmp_path) -> None:
    mh.simulate(a_job(), workers=2, output=tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run"):
        mh.simulate(a_job(), workers=2, output=tmp_path / "run")


def test_settings_say_where_they_come_from(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = mh.Cluster((mh.Host("a", 2, 0), mh.Host("b", 2, 0)), mh.Link(1e6, 1e-3))
    run = mh.simulate(a_job(), workers=3, cluster=cluster, seed=8, times="constant(0.2)")
    assert run.folder.parent.name == "runs"
    assert run.folder.name.endswith("-asynchronous-3-virtual")
    (coordinator,) = [p for p in run.trace.processes if p.header.role == "coordinator"]
    told = {s.name: (s.value, s.source) for s in coordinator.settings}
    assert told["strategy"] == ("asynchronous()", "default")
    assert told["workers"] == ("3", "script")
    assert told["seed"] == ("8", "script")
    assert told["times"] == ("constant(mean=0.2)", "script")
    assert told["hosts"] == ("2", "default")
    assert told["latency"] == ("1 ms", "default")
    assert "output" not in told
    assert msgspec.json.encode(told)
