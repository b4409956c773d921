"""What each verb does with a cluster: it runs on it, or says in words why not."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.live.hosts.slurm import read_hosts
from manyhands.verbs.command import Command
from manyhands.verbs.train import TrainOptions, _plan

HOSTS = tuple(mh.Host(name, cores=2, memory=1 << 30) for name in ("a", "b", "c", "d", "e"))
CLUSTER = mh.Cluster(HOSTS, link=mh.Link(1.25e8))
DATA = TensorDataset(torch.eye(2).repeat(16, 1), torch.arange(32) % 2)
JOB = mh.Job(
    model=lambda: torch.nn.Linear(2, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=cross_entropy,
    data=DATA,
    global_batch=8,
    epochs=1,
)
train_module = import_module("manyhands.verbs.train")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A machine with two GPUs, as torch finds them."""
    found = ("cuda:0", "cuda:1")
    monkeypatch.setattr(
        train_module, "devices", lambda workers: tuple(found[at % 2] for at in range(workers))
    )
    return found


def test_train_has_one_worker_per_gpu_by_default(gpus: tuple[str, ...]) -> None:
    plan = _plan(JOB, TrainOptions(), Command(), None)
    assert plan.workers == 2
    assert plan.cluster.hosts[0].devices == gpus
    assert str(plan.strategy) == "allreduce()"


def test_train_runs_on_a_cluster_that_is_this_machine(gpus: tuple[str, ...]) -> None:
    here = mh.Cluster((mh.Host("here", 1, 1 << 30, devices=gpus, address="192.0.2.7"),))
    plan = _plan(JOB, TrainOptions(cluster=here), Command(), None)
    assert plan.cluster is here
    assert plan.workers == 2
    assert plan.listen == "192.0.2.7"
    two = read_hosts("here:1, there:1")
    assert _plan(JOB, TrainOptions(cluster=here, listen="x"), Command(), two).listen == "x"
    with pytest.raises(ValueError, match="listen='x' is where other hosts"):
        _plan(JOB, TrainOptions(cluster=here, listen="x"), Command(), None)


def test_train_refuses_devices_that_this_machine_does_not_have() -> None:
    cluster = mh.Cluster((mh.Host("a", 1, 1 << 30, devices=("cuda:0",)),))
    with pytest.raises(mh.Refused, match="host a of the cluster has cuda:0, and this machine has"):
        mh.train(JOB, cluster=cluster)


def test_train_refuses_a_cluster_without_the_gpus_that_it_would_use(gpus: tuple[str, ...]) -> None:
    with pytest.raises(mh.Refused, match="has no GPU, and this machine has cuda:0, cuda:1: give"):
        mh.train(JOB, cluster=mh.Cluster(HOSTS[:1]))


@pytest.mark.parametrize("hosts", [None, "a:1, b:1"])
def test_train_refuses_several_hosts(hosts: str | None) -> None:
    with pytest.raises(mh.Refused, match="this machine only, and the cluster has 5 hosts: name"):
        mh.train(JOB, cluster=CLUSTER, hosts=hosts)


def test_train_refuses_a_cluster_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module.torchrun, "is_torchrun", lambda: True)
    with pytest.raises(mh.Refused, match="under torchrun its processes are the workers: leave out"):
        mh.train(JOB, cluster=mh.Cluster(HOSTS[:1]))


def test_simulate_runs_on_the_hosts_with_a_worker_on_each_by_default(tmp_path: Path) -> None:
    run = mh.simulate(JOB, cluster=CLUSTER, output=tmp_path / "run")
    assert [worker.header.host for worker in run.trace.workers] == ["a", "b", "c", "d", "e"]


def test_simulate_has_one_worker_per_device_of_the_cluster(tmp_path: Path) -> None:
    devices = ("cuda:0", "cuda:1", "cuda:2")
    cluster = mh.Cluster((mh.Host("a", 8, 1 << 30, devices), mh.Host("b", 8, 1 << 30, devices)))
    cluster = mh.Cluster(cluster.hosts, link=mh.Link(1e9))
    run = mh.simulate(JOB, cluster=cluster, output=tmp_path / "run")
    assert [worker.header.host for worker in run.trace.workers] == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize(
    "given", [{"bandwidth": "1gbit"}, {"latency": "1ms"}, {"cores": 2}, {"placing": "apart"}]
)
def test_simulate_refuses_what_the_cluster_determines(given: dict[str, str | int]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} is given twice: leave it out, the cluster"):
        mh.simulate(JOB, cluster=CLUSTER, **given)


def test_compare_runs_virtually_on_the_cluster_and_states_it(tmp_path: Path) -> None:
    made = mh.compare(
        JOB,
        mh.strategies.asynchronous(),
        cluster=CLUSTER,
        virtual=True,
        repeats=1,
        output=tmp_path / "made",
    )
    (result,) = made.results.runs
    assert (result.strategy, result.workers, made.results.hosts) == ("asynchronous()", 5, 5)
    workers = mh.Run(made.folder / result.folder).trace.workers
    assert [worker.header.host for worker in workers] == ["a", "b", "c", "d", "e"]
    assert made.results.network == "virtual links of 1000 Mbit/s between the hosts a, b, c, d, e"
    with pytest.raises(ValueError, match="other settings"):
        mh.compare(
            JOB,
            "asynchronous",
            workers=5,
            cluster=mh.Cluster(HOSTS, link=mh.Link(1e6)),
            virtual=True,
            repeats=1,
            output=tmp_path / "made",
        )


def test_compare_refuses_what_the_cluster_determines_and_live_one_without_text(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="hosts is given twice: leave it out, the cluster"):
        mh.compare(JOB, cluster=CLUSTER, virtual=True, hosts=2, output=tmp_path)
    with pytest.raises(ValueError, match="a live comparison needs a cluster that has a text"):
        mh.compare(JOB, cluster=CLUSTER, output=tmp_path)


def test_limits_and_seed_in_place_of_the_jobs(tmp_path: Path) -> None:
    run = mh.simulate(JOB, workers=2, samples=16, seed=7, output=tmp_path / "run")
    assert run.samples == 16
    plan = _plan(JOB, TrainOptions(samples=16, seed=7, target=None), Command(seed=8), None)
    assert (plan.overrides.samples, plan.overrides.seed) == (16, 8)
    told = {setting.name: (setting.value, setting.source) for setting in plan.settings}
    assert told["samples"] == ("16", "script")
    assert told["seed"] == ("8", "command line")


def test_a_value_is_taken_wherever_its_text_is(tmp_path: Path) -> None:
    value, text = mh.strategies.ssp(staleness=4), "ssp(staleness=4)"
    runs = [
        mh.simulate(JOB, given, workers=2, output=tmp_path / str(at))
        for at, given in enumerate((value, text))
    ]
    assert runs[0].parameters_digest == runs[1].parameters_digest
    assert {
        _plan(JOB, TrainOptions(strategy=given), Command(), None).strategy
        for given in (value, text)
    } == {value}
