"""Hosts that are network namespaces: their links, and real training across them."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from manyhands.lab.networks.namespaces import NetworkShape, NotPermitted, network
from manyhands.reports import Run
from manyhands.transport.security import JobKey
from support import ROOT, wait_for

MANYHANDS = (sys.executable, "-m", "manyhands")
MNIST = ROOT / "examples" / "mnist.py"

RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    begun, count = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        count += len(data)
    print(count / (time.monotonic() - begun), flush=True)
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


@pytest.fixture
def places(request):
    """Hosts with the links that the test asks for; skipped where that is not permitted."""
    count, text = request.param
    shape = NetworkShape.read(text)
    try:
        context = network(count, shape.rate, shape.latency)
        made = context.__enter__()
    except NotPermitted as reason:
        pytest.skip(str(reason))
    yield made
    context.__exit__(None, None, None)


def transfer(receiver, sender, size):
    """Bytes per second from one place to another."""
    with subprocess.Popen(
        receiver.inside(sys.executable, "-c", RECEIVER, receiver.address),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            command = sender.inside(sys.executable, "-c", SENDER, receiver.address, str(size))
            subprocess.run(command, check=True, timeout=60)
            return float(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.timed
@pytest.mark.parametrize(
    ("places", "rate"),
    [((2, "10mbit"), 1.25e6), ((3, "100mbit"), 12.5e6), ((3, "100mbit, 5ms"), 12.5e6)],
    indirect=["places"],
)
def test_a_link_carries_what_it_should_in_both_directions(places, rate):
    first, *_, last = places
    for receiver, sender in ((first, last), (last, first)):
        measured = transfer(receiver, sender, int(2 * rate))
        # Headers take 4 %; the bucket is full when it begins.
        assert 0.85 * rate < measured < 1.05 * rate


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
        for _ in range(30):
            begun = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            times.append(time.perf_counter() - begun)
        print(min(times))
"""


@pytest.mark.timed
@pytest.mark.parametrize(
    ("places", "there_and_back"),
    [((2, "1gbit, 20ms"), 0.040), ((3, "1gbit, 2ms"), 0.004), ((2, "1gbit"), 0.0)],
    indirect=["places"],
)
def test_a_packet_takes_as_long_as_was_said(places, there_and_back):
    first, *_, last = places
    with subprocess.Popen(
        first.inside(sys.executable, "-c", ECHO, first.address, "answer"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            asked = subprocess.run(
                last.inside(sys.executable, "-c", ECHO, first.address, "ask"),
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        finally:
            process.kill()
    assert there_and_back <= float(asked.stdout) < there_and_back + 0.002


@pytest.mark.parametrize("places", [(1, "100mbit")], indirect=True)
def test_nothing_leads_out_and_the_machines_own_interfaces_are_untouched(places):
    seen = subprocess.run(
        places[0].inside("ip", "-brief", "link"), capture_output=True, text=True, check=True
    )
    assert {line.split("@")[0].split()[0] for line in seen.stdout.splitlines()} == {"lo", "eth0"}
    own = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
    assert "link0" not in own.stdout
    assert "bridge0" not in own.stdout


KILLED = """
import sys, time
from manyhands.lab.networks.namespaces import network
with network(2, 1e6, float(sys.argv[1])) as places:
    print(*(place.holder for place in places), flush=True)
    time.sleep(600)
"""


def namespace(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return None


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_nothing_is_left_of_a_network_whose_maker_is_killed(start, latency):
    started = start(sys.executable, "-c", KILLED, str(latency))
    wait_for(lambda: started.text().strip() or started.process.poll() is not None, 30, "a network")
    if "NotPermitted" in started.text():
        pytest.skip(started.text().splitlines()[-1])
    holders = [int(pid) for pid in started.text().split()]
    spaces = {namespace(pid) for pid in holders}
    assert namespace(os.getpid()) not in spaces
    started.process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in holders), 10, "their end")
    left = [process.pid for process in psutil.process_iter() if namespace(process.pid) in spaces]
    assert left == []


def test_networks_are_read_from_text():
    assert NetworkShape.read("100mbit") == NetworkShape(12.5e6)
    assert NetworkShape.read("1gbit, servers apart") == NetworkShape(125e6, apart=True)
    assert NetworkShape.read("1gbit, 20ms") == NetworkShape(125e6, latency=0.02)
    assert NetworkShape.read("1gbit, servers apart, 20ms") == NetworkShape(
        125e6, apart=True, latency=0.02
    )
    assert "20 ms from one to another" in NetworkShape.read("1gbit, 20ms").words
    assert "servers beside the workers in turn" in NetworkShape.read("100mbit").words
    assert "a namespace of their own" in NetworkShape.read("100mbit, servers apart").words
    for text in ("fast", "", "100mbit, together", "100mbit, 2ms, 3ms"):
        with pytest.raises(ValueError, match="mbit"):
            NetworkShape.read(text)


def join_and_train(start, tmp_path, places, strategy, samples):
    """Train MNIST on two hosts, joined with the printed line; first one comes with a wrong key."""
    here, there = places
    first = start(
        *here.inside(*MANYHANDS, "train", str(MNIST), "--strategy", strategy),
        *("--hosts", "a:1, b:1", "--listen", here.address),
        *("--samples", str(samples), "--output", "run"),
    )
    lines = tmp_path / "run" / "join"
    wait_for(lambda: lines.exists() or first.process.poll() is not None, 60, "the line")
    line = lines.read_text().strip()
    assert line in first.text()
    JobKey.new().write(tmp_path / "wrong")
    wrong = line.replace("run/key", "wrong")
    stranger = start(*there.inside(*MANYHANDS, *shlex.split(wrong)[1:]))
    assert stranger.finish(60) == 1
    assert "the key in wrong is not the key of that run" in stranger.text()
    refused = f"a connection from {there.address} was refused"
    wait_for(lambda: refused in first.text(), 10, refused)
    second = start(*there.inside(*MANYHANDS, *shlex.split(line)[1:]))
    assert first.finish(150) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    return Run(tmp_path / "run")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("places", [(2, "1gbit")], indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_two_namespaces_train_mnist_with_the_printed_line_and_the_key(
    start, tmp_path, places, strategy
):
    run = join_and_train(start, tmp_path, places, strategy, 6000)
    assert run.samples == 6000
    assert run.metrics["accuracy"] > 0.2, "ten times as many samples go to 0.95"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("places", [(2, "1gbit")], indirect=True)
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()", "gossip()", "ssp()"])
def test_two_namespaces_train_mnist_to_the_end(start, tmp_path, places, strategy):
    run = join_and_train(start, tmp_path, places, strategy, 60_000)
    assert run.samples == 60_000
    assert run.metrics["accuracy"] > 0.93


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "network_", ["200mbit", pytest.param("200mbit, servers apart", marks=pytest.mark.slow)]
)
def test_a_run_in_a_network_of_its_own(start, tmp_path, network_):
    started = start(
        *(*MANYHANDS, "train", MNIST, "--strategy", "asynchronous()", "--workers", "2"),
        *("--samples", "3000", "--network", network_, "--output", "run"),
    )
    code = started.finish(200)
    if "network namespaces cannot be used here" in started.text():
        pytest.skip(started.text())
    assert code == 0, started.text()
    run = Run(tmp_path / "run")
    told = {setting.name: setting.value for one in run.trace.processes for setting in one.settings}
    assert told["network"] == NetworkShape.read(network_).words
    assert run.samples == 3000
    assert {worker.header.host for worker in run.trace.workers} == {"w0", "w1"}
    wait_for(lambda: not started.tree(), 10, "all processes to end")
