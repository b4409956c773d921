"""Servers on the hosts that were named."""

import sys

import pytest

from manyhands.lab.networks.namespaces import NotPermitted, network
from manyhands.live.hosts.host_list import Hosts
from manyhands.reports import Run
from manyhands.strategies import strategy
from manyhands.transport.security import JobKey
from manyhands.verbs.server_hosts import servers_on_hosts
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
def test_checkpoints_of_servers_elsewhere_are_refused(start, tmp_path):
    script = ROOT / "examples" / "mnist.py"
    refused = start(
        *(*MANYHANDS, "train", script, "--strategy", "ssp(servers=2)", "--hosts", "a:1, b:1"),
        *("--listen", "127.0.0.1", "--servers-on", "b", "--checkpoint", "10s"),
    )
    assert refused.finish(100) == 2, refused.text()
    assert "servers on b cannot store checkpoints in the folder of a" in refused.text()
