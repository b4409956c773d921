"""A declared cluster of network namespaces: its uplinks, its latencies, and training on it."""

import contextlib
import re
import subprocess
import sys
import textwrap

import pytest

from manyhands.cluster import Cluster
from manyhands.lab.networks.namespaces import NotPermitted
from manyhands.lab.networks.sites import cluster_network
from manyhands.reports import Run, read_results
from support import wait_for

MANYHANDS = (sys.executable, "-m", "manyhands")
SITES = "2 sites of 2 workers, 1gbit within, 20mbit and 10ms between"


@pytest.fixture
def places(request):
    """The hosts of a cluster; skipped where that is not permitted."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(cluster_network(Cluster.parse(request.param)))
        except NotPermitted as reason:
            pytest.skip(str(reason))
        yield made


RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    begun, count = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        count += len(data)
    print(count, begun, time.monotonic(), flush=True)
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""
ECHO = """
import socket, sys, time
address, role = sys.argv[1:]
if role == "answer":
    with socket.create_server((address, 5001)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        while data := connection.recv(1):
            connection.sendall(data)
else:
    with socket.create_connection((address, 5001)) as connection:
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            times.append(time.perf_counter() - begun)
        print(min(times))
"""


def transfers(ways, size):
    """Bytes per second of each of several transfers that begin together, and of all of them.

    They never begin and end at the same moment, so all together are the bytes of all
    between the first beginning and the last end: the single rates would sum to more.
    """
    with contextlib.ExitStack() as stack:
        receivers, senders = [], []
        for receiver, _ in ways:
            command = receiver.inside(sys.executable, "-c", RECEIVER, receiver.address)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == "listening\n"
            receivers.append(process)
        for receiver, sender in ways:
            command = sender.inside(sys.executable, "-c", SENDER, receiver.address, str(size))
            senders.append(stack.enter_context(subprocess.Popen(command)))
            stack.callback(senders[-1].kill)
        ends = [list(map(float, process.stdout.readline().split())) for process in receivers]
    counts, begun, ended = zip(*ends, strict=True)
    rates = [count / (end - begin) for count, begin, end in ends]
    return rates, sum(counts) / (max(ended) - min(begun))


def there_and_back(one, other):
    """Seconds of a round trip."""
    with subprocess.Popen(
        one.inside(sys.executable, "-c", ECHO, one.address, "answer"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            command = other.inside(sys.executable, "-c", ECHO, one.address, "ask")
            return float(subprocess.check_output(command, text=True, timeout=60))
        finally:
            process.kill()


@pytest.mark.timed
@pytest.mark.parametrize("places", [SITES], indirect=True)
def test_hosts_of_a_site_share_its_uplink_in_each_direction(places):
    a, b, c, d = places
    _, alone = transfers([(c, a)], 5_000_000)
    assert 0.75 * 2.5e6 < alone < 1.05 * 2.5e6
    each, both = transfers([(c, a), (d, b)], 2_500_000)
    assert 0.75 * 2.5e6 < both < 1.1 * 2.5e6
    assert min(each) > 0.25 * both
    each, back = transfers([(c, a), (b, d)], 5_000_000)
    assert all(rate < 1.05 * 2.5e6 for rate in each)
    assert back > 1.4 * 2.5e6, each  # acknowledgements wait behind the data
    _, within = transfers([(b, a)], 50_000_000)
    assert within > 60e6


@pytest.mark.timed
@pytest.mark.parametrize(
    "places", ["2 sites of 2 workers, 1gbit and 2ms within, 20mbit and 10ms between"], indirect=True
)
def test_latencies_on_the_way_add_up(places):
    a, b, c, _ = places
    assert 0.004 <= there_and_back(a, b) < 0.006
    assert 0.028 <= there_and_back(a, c) < 0.032


@pytest.mark.timed
@pytest.mark.parametrize(
    "places", ["2 sites of 1 worker, 1gbit within, 100mbit and 40ms between"], indirect=True
)
def test_a_message_after_a_pause_takes_its_latency_and_its_size(places):
    """Not several round trips more, as if the window began anew."""
    one, other = places
    program = """
import socket, sys, time
address, role = sys.argv[1:]
size = 200_000
def take(connection):
    count = 0
    while count < size:
        count += len(connection.recv(1 << 20))
if role == "answer":
    with socket.create_server((address, 5001)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        for _ in range(3):
            take(connection)
            connection.sendall(bytes(size))
else:
    with socket.create_connection((address, 5001)) as connection:
        for _ in range(3):
            time.sleep(1.0)
            begun = time.perf_counter()
            connection.sendall(bytes(size))
            take(connection)
        print(time.perf_counter() - begun)
"""
    with subprocess.Popen(
        one.inside(sys.executable, "-c", program, one.address, "answer"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            command = other.inside(sys.executable, "-c", program, one.address, "ask")
            took = float(subprocess.check_output(command, text=True, timeout=60))
        finally:
            process.kill()
    assert took == pytest.approx(2 * (0.04 + 0.016), rel=0.15)


JOB = """
    import torch
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(256, 20, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))
    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=32,
        epochs=2,
    )
"""


def hosts_of(run):
    return {
        process.header.name: process.header.host
        for process in run.trace.processes
        if process.header.role in ("worker", "server")
    }


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_server_of_an_island_runs_live_at_its_site(start, tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    text = "2 sites of 1 worker, 1gbit within, 100mbit and 5ms between"
    started = start(
        *(*MANYHANDS, "train", "job.py", "--strategy", "hierarchical(outer=diloco(every=4))"),
        *("--cluster", text, "--output", "run"),
    )
    code = started.finish(200)
    if "network namespaces cannot be used here" in started.text():
        pytest.skip(started.text())
    assert code == 0, started.text()
    run = Run(tmp_path / "run")
    assert run.samples == 512
    assert hosts_of(run) == {
        "worker-0": "host-0",
        "worker-1": "host-1",
        "server-0": "host-0",
        "server-1": "host-1",
        "server-2": "host-0",
    }
    told = {setting.name: setting.value for one in run.trace.processes for setting in one.settings}
    assert told["cluster"] == text
    assert told["strategy"] == "hierarchical(outer=diloco(every=4), islands=2)"
    wait_for(lambda: not started.tree(), 10, "all processes to end")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_live_comparison_and_a_virtual_one_have_every_process_at_the_same_place(start, tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    strategies = "diloco(every=4), hierarchical(outer=diloco(every=4)), gossip"
    text = f"{SITES}, servers at site 1"
    found = {}
    for kind in ("live", "virtual"):
        started = start(
            *(*MANYHANDS, "compare", "job.py", "--strategies", strategies, "--cluster", text),
            *("--repeats", "1", "--output", kind, *(["--virtual"] if kind == "virtual" else [])),
        )
        code = started.finish(400)
        if "network namespaces cannot be used here" in started.text():
            pytest.skip(started.text())
        assert code == 0, started.text()
        results = read_results(tmp_path / kind)
        assert results.cluster == text
        assert [run.status for run in results.runs] == ["finished"] * 3
        found[kind] = [
            (run.strategy, {**hosts_of(Run(tmp_path / kind / run.folder))}) for run in results.runs
        ]
    servers = [
        {name: host for name, host in places.items() if name.startswith("server")}
        for _, places in found["live"]
    ]
    assert servers[0] == {"server-0": "host-2"}
    assert servers[1] == {"server-0": "host-0", "server-1": "host-2", "server-2": "host-2"}
    workers = [{f"worker-{rank}": f"host-{rank}" for rank in range(4)}] * 3
    assert [
        {name: host for name, host in places.items() if name.startswith("worker")}
        for _, places in found["live"]
    ] == workers
    # A peer server is a thread of its worker; virtually it has a trace of its own.
    for (name, live), (again, virtual) in zip(found["live"], found["virtual"], strict=True):
        assert name == again
        assert live.items() <= virtual.items()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_of_a_joined_host_that_is_killed_continues_from_its_journal(start, tmp_path):
    slow = JOB.replace("epochs=2", "epochs=40").replace("import torch\n", "import time, torch\n")
    slow = slow.replace("loss=torch.nn.functional.cross_entropy", "loss=loss")
    function = """
    def loss(outputs, targets):
        time.sleep(0.02)
        return torch.nn.functional.cross_entropy(outputs, targets)

    job = mh.Job("""
    script = textwrap.dedent(slow.replace("\n    job = mh.Job(", function))
    (tmp_path / "job.py").write_text(script)
    started = start(
        *(*MANYHANDS, "train", "job.py", "--strategy", "hierarchical(outer=diloco(every=4))"),
        *("--cluster", "2 sites of 1 worker, 1gbit within, 100mbit and 5ms between"),
        *("--output", "run"),
    )
    trains = lambda: " %)" in started.text() or started.process.poll() is not None  # noqa: E731
    wait_for(trains, 100, "training")
    if "network namespaces cannot be used here" in started.text():
        pytest.skip(started.text())
    server = started.named("manyhands.live.server.process", "1")
    assert server is not None, started.text()
    server.kill()
    assert started.finish(150) == 0, started.text()
    joined = (tmp_path / "run" / "hosts" / "host-1" / "join.txt").read_text()
    assert re.search(r"server 1 on host-1 .* was killed .*; it is restarted", joined)
    run = Run(tmp_path / "run")
    assert run.samples == 40 * 256
    assert run.metrics["accuracy"] > 0.8
