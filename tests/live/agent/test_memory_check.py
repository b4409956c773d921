"""What a run needs of a host's memory, and that what cannot fit is refused before it starts."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.lab.calibration.assumed import assume
from manyhands.live.agent.memory_check import FORKED, MemoryEstimate, check_hosts, estimate
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.processes.available_memory import available
from manyhands.live.request import Request
from manyhands.script.origin import Origin, Overrides
from manyhands.strategies import strategy
from manyhands.verbs.server_hosts import servers_by_default
from support import wait_for

SCRIPT = """
    import sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.05)
        return F.cross_entropy(outputs, targets)

    # Memory that is never touched takes no room here.
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.empty(SAMPLES, 4), torch.zeros(SAMPLES).long()),
        global_batch=12,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=int(sys.argv[2]), output="run")
"""


def job(samples: int = 1000) -> mh.Job:
    return mh.Job(
        model=lambda: torch.nn.Linear(1000, 1000, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.empty(samples, 250), torch.empty(samples, 250)),
        global_batch=10,
        epochs=1,
    )


JOB = replace(job(), model=lambda: torch.nn.Linear(250, 250))
"""As a script has it at its top level."""


@pytest.mark.parametrize(
    ("text", "copies", "shared", "servers"),
    [
        ("asynchronous(servers=2)", 2, 1, 2),
        ("gossip()", 3, 0, 0),
        ("hogwild()", 1, 1, 0),
        ("allreduce()", 2, 0, 0),
    ],
)
def test_the_estimate_counts_copies_of_the_model_and_of_the_data(text, copies, shared, servers):
    found = estimate(job(), strategy(text), 4, 4, ("cpu",) * 4, forks=True)
    size = 4 * 1000 * 1000
    assert found.data == 2 * 1000 * 250 * 4
    assert copies * size <= found.model <= (copies + 1) * size
    assert (found.shared, found.servers) == (shared * size, servers)
    assert found.total == 4 * (FORKED + found.data + found.model) + servers * FORKED + found.shared


@pytest.mark.parametrize(
    ("text", "counts"),
    [("asynchronous(servers=4)", (2, 2)), ("asynchronous()", (1, 0)), ("gossip()", (0, 0))],
)
def test_a_host_holds_its_own_servers_only(text, counts):
    hosts = Hosts.read("a:2, b:2")
    chosen = strategy(text)
    everywhere = estimate(job(), chosen, 4, 2, ("cpu",) * 2, forks=True)
    places = servers_by_default(None, hosts, chosen, 4)
    for number, (name, expected) in enumerate(zip(hosts.names, counts, strict=True)):
        request = Request(
            job=job(),
            origin=Origin("job.py", "", "", (), "job", None),
            overrides=Overrides(),
            strategy=chosen,
            workers=4,
            cluster=mh.Cluster.local(),
            folder=Path(),
            settings=(),
            hosts=Hosts((*hosts.counts[number:], *hosts.counts[:number])),
            server_hosts=places or (hosts.names[0],) * everywhere.servers,
        )
        found = estimate(
            *(request.job, chosen, 4, request.here, ("cpu",) * 2),
            forks=True,
            serving=request.serving,
        )
        assert found.servers == expected, name
        assert found.shared * max(1, everywhere.servers) == everywhere.shared * expected, name


def test_the_optimizer_state_is_where_the_optimizer_is():
    size = 4 * 1000 * 1000
    adam = replace(job(), optimizer=lambda model: torch.optim.Adam(model.parameters()))
    for text, worker, shared in (
        ("single()", 2, 0),
        ("allreduce()", 2, 0),
        ("fully_sharded()", 0.5, 0),
        ("asynchronous()", 0, 3),
        ("local_sgd(every=8)", 2, None),
    ):
        found = estimate(
            adam, strategy(text), 1 if text == "single()" else 4, 4, ("cpu",), forks=True
        )
        assert found.state == pytest.approx(worker * size, rel=0.01), text
        if shared is not None:
            assert found.shared == pytest.approx(shared * size, rel=0.01), text


@pytest.mark.parametrize("memory", ["300MB", "2GB"])
def test_a_declared_host_that_is_too_small_is_refused_by_every_verb(memory, tmp_path):
    cluster = f"2 hosts of 1 worker, 1gbit, {memory} of memory"
    alone = Cluster.parse(f"1 host of 2 workers, {memory} of memory")
    about = {"strategy": "allreduce()", "cluster": cluster, "time_only": True, "samples": 20}
    known = assume(JOB, "1 GFLOP/s")
    planned = mh.plan(JOB, cluster, known, strategies=["allreduce()"], workers=[2])
    if memory == "2GB":
        mh.simulate(JOB, **about, output=tmp_path / "run")
        check_hosts(strategy("allreduce()"), JOB, 2, alone)
        assert not planned.left_out
        return
    with pytest.raises(ValueError, match=r"of memory .*one worker does not fit"):
        mh.simulate(JOB, **about, output=tmp_path / "run")
    with pytest.raises(ValueError, match="one worker does not fit"):
        mh.compare(JOB, "allreduce()", virtual=True, cluster=cluster, output=tmp_path / "many")
    with pytest.raises(ValueError, match="one worker does not fit"):
        mh.train(JOB, "allreduce()", workers=2, cluster=alone, output=tmp_path / "live")
    assert not planned.ranking
    assert all("one worker does not fit" in left.why for left in planned.left_out)


def test_what_cannot_fit_is_refused_with_the_figures_and_what_nearly_fits_is_said():
    need = MemoryEstimate(100, 1, FORKED, 10**9, 10**6, 10**6)
    assert need.check(2 * need.total) == ""
    assert "100 workers need at least 103.8 GB" in need.check(int(1.1 * need.total))
    assert "may kill processes" in need.check(need.total // 2, swap=need.total)
    with pytest.raises(ValueError, match="use at most 48 workers on this host") as raised:
        need.check(50 * 10**9)
    assert "1.0 GB for its data" in str(raised.value)
    assert "numpy.memmap" in str(raised.value)


def test_available_memory_is_told_by_the_kernel():
    memory, swap = available()
    assert 2**20 < memory < 2**50
    assert swap >= 0


def test_a_run_that_cannot_fit_is_refused_before_anything_is_started(run_script):
    started = run_script(SCRIPT.replace("SAMPLES", str(10**8 // 4)), "asynchronous()", "900")
    assert started.finish(60) != 0
    assert not started.seen, "a process was started"
    assert "900 workers need at least " in started.text()
    assert " are available: use at most " in started.text()
    assert "memory-mapped file" in started.text()
    assert not (started.folder / "run" / "trace").exists() or not list(
        (started.folder / "run" / "trace").iterdir()
    )


@pytest.mark.slow
def test_a_forked_worker_costs_what_is_said(run_script):
    started = run_script(SCRIPT.replace("SAMPLES", "9600"), "asynchronous()", "2")
    wait_for(lambda: " %)" in started.text(), 90, "training")
    rollup = Path(f"/proc/{started.worker(1).pid}/smaps_rollup").read_text(encoding="ascii")
    private = re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE)
    assert FORKED / 2 < 1024 * sum(map(int, private)) < 1.5 * FORKED
