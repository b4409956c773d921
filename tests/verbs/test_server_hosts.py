"""Servers on the hosts that were named."""

import sys

import msgspec
import pytest
import torch

import manyhands as mh
from manyhands.lab.networks.namespaces import NotPermitted, network
from manyhands.live.assignment import Assignment
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.shared_folder import marker_in
from manyhands.live.server.stored_shard import StoredShard
from manyhands.reports import Run
from manyhands.script.origin import Origin, Overrides
from manyhands.strategies import strategy
from manyhands.transport.security import JobKey
from manyhands.verbs.server_hosts import servers_by_default, servers_on_hosts
from manyhands.virtual import ProcessHosts
from support import ROOT, wait_for

HOSTS = Hosts.read("a:1, b:2, c:1")
MANYHANDS = (sys.executable, "-m", "manyhands")


@pytest.mark.parametrize(
    ("text", "chosen", "found"),
    [
        ("all", "asynchronous(servers=4)", ("a", "b", "c", "a")),
        ("c, b", "synchronous(servers=3)", ("c", "b", "c")),
        ("b", "ssp(servers=2)", ("b", "b")),
    ],
)
def test_servers_are_on_the_named_hosts_in_turn(text, chosen, found):
    assert servers_on_hosts(text, HOSTS, strategy(chosen), 4) == found


@pytest.mark.parametrize(
    ("hosts", "chosen", "found"),
    [
        ("a:2, b:2", "asynchronous(servers=3)", ("a", "b", "a")),
        ("a:0, b:4", "asynchronous(servers=2)", ()),
        ("a:2, b:0, c:0, d:2", "asynchronous(servers=3)", ("b", "c", "b")),
        ("a:2, b:2", "asynchronous()", ()),
        ("a:4", "asynchronous(servers=2)", ()),
        ("a:2, b:2", "allreduce()", ()),
        ("a:2, b:2", "gossip()", ()),
    ],
)
def test_servers_are_by_default_on_hosts_without_workers_or_else_on_all(hosts, chosen, found):
    assert servers_by_default(None, Hosts.read(hosts), strategy(chosen), 4) == found


@pytest.mark.parametrize(
    "text",
    [
        "4 workers, 1gbit",
        "2 hosts of 2 workers, 1gbit, servers at host 1",
        "2 sites of 2 workers, 1gbit within, 100mbit between, servers at site 1",
        "4 workers, 1gbit, servers at hosts 3 and 1",
        "4 workers, 1gbit, servers on 2 hosts apart",
    ],
)
@pytest.mark.parametrize(
    "chosen",
    ["synchronous()", "asynchronous(servers=4)", "hierarchical(islands=2)", "diloco(servers=2)"],
)
def test_a_live_run_has_its_servers_where_the_virtual_one_has_them(text, chosen):
    cluster, recipe = mh.Cluster.parse(text), strategy(chosen)
    hosts = Hosts(tuple((host.name, host.workers) for host in cluster.hosts))
    servers = recipe.needs(4).server_processes
    virtual = ProcessHosts.spread(cluster, 4, servers, recipe.groups(4)).servers
    live = servers_by_default(text, hosts, recipe, 4) or hosts.names[:1] * servers
    assert servers > 0
    assert live == virtual


def test_the_server_of_an_island_is_with_its_workers():
    found = servers_on_hosts("c", HOSTS, strategy("hierarchical(islands=2)"), 4)
    groups = strategy("hierarchical(islands=2)").groups(4)
    owned = {number: ranks[0] for ranks, numbers in groups for number in numbers if ranks}
    assert owned, "islands have servers"
    on = ["a", "b", "b", "c"]
    for number, host in enumerate(found):
        assert host == (on[owned[number]] if number in owned else "c")


@pytest.mark.parametrize(
    ("text", "hosts", "chosen", "words"),
    [
        ("a, d", HOSTS, "ssp()", "servers cannot be on 'd': the hosts are a, b, c"),
        ("", HOSTS, "ssp()", "servers cannot be on ''"),
        ("all", None, "ssp()", "the run has one host; name more with --hosts"),
        ("all", Hosts.read("a:4"), "ssp()", "the run has one host"),
        ("all", HOSTS, "allreduce()", "has no servers of its own"),
        ("all", HOSTS, "gossip()", "has no servers of its own"),
    ],
)
def test_what_cannot_be_is_refused(text, hosts, chosen, words):
    with pytest.raises(ValueError, match=words):
        servers_on_hosts(text, hosts, strategy(chosen), 4)


@pytest.fixture
def places():
    try:
        with network(2, 125e6) as made:
            yield made
    except NotPermitted as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("chosen", ["asynchronous(servers=2)", "synchronous(servers=2)"])
def test_two_hosts_have_a_server_each_and_one_is_killed(start, tmp_path, places, chosen):
    JobKey.new().write(tmp_path / "key")
    here, there = places
    place, script = f"{here.address}:40001", ROOT / "examples" / "mnist.py"
    common = ("--key-file", "key", "--output")
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    first = start(
        *here.inside(*MANYHANDS, "train", str(script), "--strategy", chosen),
        *("--hosts", "a:1, b:1", "--listen", place, "--servers-on", "all"),
        *("--samples", "12000", *common, "run"),
        **quiet,
    )
    joining = (*MANYHANDS, "join", place, str(script), "--as", "b", *common, "b")
    second = start(*there.inside(*joining), **quiet)
    trace = tmp_path / "run" / "trace" / "server-1.jsonl"
    wait_for(
        lambda: (trace.exists() and '"span"' in trace.read_text()) or first.process.poll(),
        150,
        "updates on the second server",
    )
    server = second.named("manyhands.live.server.process", "1")
    assert server is not None, first.text() + second.text()
    server.kill()
    assert first.finish(250) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    assert "it is restarted" in second.text()
    run = Run(tmp_path / "run")
    assert run.samples == 12_000
    assert " 0 lost" in run.summary()
    hosts = {
        process.header.host for process in run.trace.processes if process.header.role == "server"
    }
    assert hosts == {"a", "b"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_servers_of_two_hosts_store_checkpoints_in_a_folder_that_they_share(
    start, tmp_path, places
):
    JobKey.new().write(tmp_path / "key")
    here, there = places
    place, script = f"{here.address}:40001", ROOT / "examples" / "mnist.py"

    def train(name, *options):
        common = ("--key-file", "key", "--output")
        first = start(
            *here.inside(*MANYHANDS, "train", str(script), "--strategy", "synchronous(servers=2)"),
            *("--hosts", "a:1, b:1", "--listen", place, "--servers-on", "all"),
            *(*options, *common, name),
        )
        joining = (*MANYHANDS, "join", place, str(script), "--as", "b", *common, f"{name}-b")
        second = start(*there.inside(*joining))
        assert first.finish(200) == 0, first.text() + second.text()
        assert second.finish(30) == 0, second.text()
        return Run(tmp_path / name)

    stored = train("stored", "--samples", "2048", "--checkpoint", "4 steps")
    (*_, last) = sorted((tmp_path / "stored" / "checkpoints").iterdir())
    assert {"server-0", "server-1"} <= {
        each for one in last.iterdir() for each in ("server-0", "server-1") if each in one.name
    }
    assert not list((tmp_path / "stored").glob(".run-*")), "the marker is removed at the end"
    resumed = train("resumed", "--samples", "4096", "--resume", "stored")
    whole = train("whole", "--samples", "4096")
    assert (stored.samples, resumed.samples, whole.samples) == (2048, 4096, 4096)
    mine, its = resumed.state_dict(), whole.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)


def test_a_server_that_does_not_see_the_folder_is_refused(tmp_path):
    job = mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 2)),
        global_batch=4,
        epochs=1,
        checkpoint=mh.every(steps=1),
    )
    assignment = Assignment(
        origin=Origin("", "", "", (), "job", None),
        overrides=Overrides(),
        strategy="ssp(servers=2)",
        workers=2,
        host="b",
        folder=str(tmp_path / "there"),
        coordinator="",
        private="",
        store_address="",
        store_port=0,
        servers=("", ""),
        leasing=None,
        agent=1,
        devices=("cpu",),
        hosts=(("a", 1), ("b", 1)),
        storage=str(tmp_path),
        attempt="7",
    )
    holder = None  # it is asked for nothing before a checkpoint is stored
    with pytest.raises(
        ValueError, match=r"server-1 on b does not see .*: let --output be a folder"
    ):
        StoredShard(assignment, 1, job, holder)
    marker_in(tmp_path, "7").touch()
    StoredShard(assignment, 1, job, holder)
    gone = msgspec.structs.replace(assignment, resume=str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="does not see the checkpoint"):
        StoredShard(gone, 1, job, holder)
