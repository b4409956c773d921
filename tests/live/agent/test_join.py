"""Several hosts in one run, here on one machine, over TCP and with a key, as hosts far apart."""

import os
import shlex
import signal
import socket
import sys

import pytest

from manyhands.reports import Run
from manyhands.transport.security import JobKey
from support import wait_for

JOB = """
    import os, sys, time, warnings
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(2048, 20, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))

    def loss(outputs, targets):
        warnings.warn("said by the loss")
        time.sleep(PAUSE)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=data,
        global_batch=64,
        epochs=EPOCHS,
    )
"""
MANYHANDS = (sys.executable, "-m", "manyhands")


@pytest.fixture
def script(tmp_path):
    """Write the job, longer or shorter."""

    def write(name="job.py", pause=0.0, epochs=4):
        path = tmp_path / name
        text = JOB.replace("PAUSE", str(pause)).replace("EPOCHS", str(epochs))
        path.write_text("\n".join(line.removeprefix("    ") for line in text.splitlines()))
        return path

    return write


@pytest.fixture
def begin(start, tmp_path):
    """Begin a run on the first of two hosts; the command it offers for the other."""

    def begin(script, strategy, hosts="a:1, b:1", *options, listen="127.0.0.1"):
        first = start(
            *(*MANYHANDS, "train", script, "--strategy", strategy, "--hosts", hosts),
            *("--listen", listen, "--output", "run", *options),
        )
        lines = tmp_path / "run" / "join"
        wait_for(lambda: lines.exists() or first.process.poll() is not None, 60, "the line")
        assert lines.exists(), first.text()
        return first, shlex.split(lines.read_text())[1:]

    return begin


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce()",
        pytest.param("asynchronous(servers=2)", marks=pytest.mark.slow),
        pytest.param("gossip()", marks=pytest.mark.slow),
        pytest.param("ensemble()", marks=pytest.mark.slow),
    ],
)
def test_two_hosts_train_together(begin, start, script, tmp_path, strategy):
    first, line = begin(script(), strategy)
    second = start(*MANYHANDS, *line)
    assert first.finish(120) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    run = Run(tmp_path / "run")
    assert run.status == "finished"
    assert run.samples == 8192
    assert run.metrics["accuracy"] > 0.5
    assert "2 hosts" in run.summary()
    assert "missing" in first.text()
    assert "b:1" in first.text()
    said = [line for line in second.text().splitlines() if "said by the loss" in line]
    assert [line.startswith("[worker 1]") for line in said] == [True], second.text()
    assert ("torch.distributed" in first.text()) == (strategy == "allreduce()")
    hosts = {process.header.host for process in run.trace.processes}
    assert hosts == {"a", "b"}
    if strategy == "ensemble()":
        assert (tmp_path / "run" / "model-1.safetensors").exists(), "it came from the other host"
    assert not list((tmp_path / "run").glob("*.half"))
    assert not (tmp_path / "run" / "key").exists()


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous(servers=2)", "gossip()"])
def test_two_hosts_train_together_over_ipv6(begin, start, script, tmp_path, strategy):
    first, line = begin(script(), strategy, listen="[::1]:0")
    assert line[1].startswith("[::1]:"), line
    JobKey.new().write(tmp_path / "wrong")
    changed = [*line]
    changed[changed.index("--key-file") + 1] = "wrong"
    stranger = start(*MANYHANDS, *changed)
    assert stranger.finish(60) == 1, stranger.text()
    wait_for(lambda: "a connection from ::1 was refused" in first.text(), 10, "words")
    second = start(*MANYHANDS, *line)
    assert first.finish(120) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    run = Run(tmp_path / "run")
    assert run.samples == 8192
    assert {process.header.host for process in run.trace.processes} == {"a", "b"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_model_comes_home_when_the_first_host_only_serves(begin, start, script, tmp_path):
    first, line = begin(script(), "synchronous()", "a:0, b:2")
    second = start(*MANYHANDS, *line)
    assert first.finish(120) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    state = Run(tmp_path / "run").state_dict()
    assert state["weight"].shape == (5, 20)


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_host_that_does_not_match_is_refused_on_both_sides(begin, start, script, tmp_path):
    first, line = begin(script(), "asynchronous()")
    other = script("other.py", pause=0.001)
    JobKey.new().write(tmp_path / "wrong")
    (tmp_path / "no-key").write_text("nonsense")
    script_at = line.index("job.py")
    for words, option, value in (
        ("the key in wrong is not the key of that run", "--key-file", "wrong"),
        ("does not contain the key of a run", "--key-file", "no-key"),
        ("this run waits for b, not for c", "--as", "c"),
        ("b has 1 workers in this run, not 3", "--workers", "3"),
    ):
        changed = [*line]
        changed[changed.index(option) + 1] = value
        one = start(*MANYHANDS, *changed)
        assert one.finish(60) in {1, 2}, one.text()
        assert words in one.text(), one.text()
    changed = [*line]
    changed[script_at] = str(other)
    one = start(*MANYHANDS, *changed)
    assert one.finish(60) == 1
    assert "its script differs" in one.text(), one.text()
    wait_for(lambda: "a connection from 127.0.0.1 was refused" in first.text(), 10, "words")
    for words in ("c was not admitted", "b was not admitted: its script differs"):
        wait_for(lambda: words in first.text(), 10, words)  # noqa: B023
    assert first.process.poll() is None, "it still waits"
    friend = start(*MANYHANDS, *line)
    assert first.finish(120) == 0, first.text() + friend.text()
    assert friend.finish(30) == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_worker_killed_on_another_host_is_named_and_the_others_continue(
    begin, start, script, tmp_path
):
    first, line = begin(script(pause=0.01, epochs=10), "asynchronous()", "a:1, b:2")
    second = start(*MANYHANDS, *line)
    wait_for(lambda: pushes(tmp_path / "run" / "trace") > 5, 90, "pushes")
    second.worker(2).kill()
    assert first.finish(120) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    assert "worker 2 on b" in first.text()
    assert "the other workers continue" in first.text()
    assert " 0 lost" in Run(tmp_path / "run").summary()


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_an_error_on_another_host_ends_the_run_with_its_traceback(begin, start, script, tmp_path):
    path = script()
    path.write_text(
        path.read_text().replace(
            "    time.sleep(0.0)",
            "    if 'b' in os.environ: raise ValueError('boom on b')",
        )
    )
    first, line = begin(path, "allreduce()")
    second = start(*MANYHANDS, *line, b="1")
    assert first.finish(120) == 1, first.text()
    assert second.finish(30) == 1, second.text()
    assert "worker 1 on b" in first.text()
    assert first.text().rstrip().endswith("ValueError: boom on b"), first.text()
    assert "the run failed" in second.text()
    assert second.tree() == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("death", [signal.SIGINT, signal.SIGKILL])
def test_when_the_first_host_ends_the_others_do(begin, start, script, death):
    first, line = begin(script(pause=0.01, epochs=1000), "asynchronous()")
    second = start(*MANYHANDS, *line)
    wait_for(lambda: pushes(first.folder / "run" / "trace") > 5, 90, "pushes")
    assert second.worker(1) is not None
    first.tree()
    first.process.send_signal(death)
    assert first.finish(30) != 0
    assert second.finish(30) == 1, second.text()
    assert "the run failed" in second.text()
    wait_for(lambda: not second.tree() and not first.tree(), 10, "all processes to end")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_leaves_is_missed_and_the_others_continue(begin, start, script, interrupt):
    first, line = begin(script(pause=0.01, epochs=20), "asynchronous()")
    second = start(*MANYHANDS, *line)
    wait_for(lambda: pushes(first.folder / "run" / "trace") > 5, 90, "pushes")
    interrupt(second)
    assert second.finish(30) == 130, second.text()
    assert second.tree() == []
    assert first.finish(120) == 0, first.text()
    assert "worker 1 on b" in first.text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "strategy", ["asynchronous()", "synchronous()", "ssp(staleness=2)", "gossip()", "push_sum()"]
)
def test_a_host_comes_back_with_the_same_line(begin, start, script, interrupt, strategy):
    first, line = begin(script(pause=0.02, epochs=20), strategy)
    second = start(*MANYHANDS, *line)
    wait_for(lambda: " %)" in first.text(), 90, "training")
    interrupt(second)
    assert second.finish(30) == 130, second.text()
    wait_for(lambda: "the other workers continue" in first.text(), 30, "it is missed")
    again = start(*MANYHANDS, *line, "--output", "again")
    assert first.finish(200) == 0, first.text() + again.text()
    assert again.finish(30) == 0, again.text()
    assert "b has rejoined" in first.text()
    run = Run(first.folder / "run")
    assert " 0 lost" in run.summary()
    lives = [worker for worker in run.trace.workers if worker.header.rank == 1]
    assert len(lives) == 2
    assert lives[1].totals.samples > 0, "it trained again"


def pushes(trace):
    file = trace / "server-0.jsonl"
    return file.read_text().count('"span"') if file.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["ssp(staleness=1)", "synchronous()"])
def test_a_worker_that_is_stopped_is_ejected_and_the_others_go_on(start, script, strategy):
    started = start(
        *(*MANYHANDS, "train", script(pause=0.02, epochs=8), "--strategy", strategy),
        *("--workers", "3", "--patience", "6", "--output", "run"),
    )
    wait_for(lambda: pushes(started.folder / "run" / "trace") > 5, 90, "pushes")
    started.worker(2).send_signal(signal.SIGSTOP)
    assert started.finish(150) == 0, started.text()
    assert "worker 2 on " in started.text()
    assert "ejected, because it sent no heartbeat for" in started.text()
    assert "the other workers continue" in started.text()
    assert " 0 lost" in Run(started.folder / "run").summary()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["asynchronous()", "gossip()"])
def test_a_worker_killed_at_its_start_on_another_host_is_started_again_there(
    begin, start, script, tmp_path, strategy
):
    first, line = begin(script(), strategy)
    second = start(*MANYHANDS, *line)
    logs = tmp_path / "runs" / "run-b" / "logs"
    wait_for(logs.is_dir, 60, "the other host's folder")
    # It cannot report itself before there is a reader of its log.
    os.mkfifo(logs / "worker-1.out")
    wait_for(lambda: second.worker(1), 90, "a worker on the other host")
    second.worker(1).kill()
    assert first.finish(120) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    assert "before all workers had joined; it is restarted" in second.text()
    assert Run(tmp_path / "run").samples == 8192


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_worker_that_is_stopped_on_another_host_is_ejected_there(begin, start, script):
    first, line = begin(script(pause=0.02, epochs=20), "synchronous()", "a:1, b:2", "--patience=6")
    second = start(*MANYHANDS, *line)
    wait_for(lambda: pushes(first.folder / "run" / "trace") > 5, 90, "pushes")
    second.worker(2).send_signal(signal.SIGSTOP)
    assert first.finish(150) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    assert "worker 2 on b" in first.text()
    assert "ejected" in first.text()


def test_memory_that_hosts_cannot_share_is_refused_at_once(start, script):
    one = start(
        *(*MANYHANDS, "train", script(), "--strategy", "hogwild()", "--hosts", "a:1, b:1"),
        *("--listen", "127.0.0.1"),
    )
    assert one.finish(60) == 2
    assert "this run has 2 hosts" in one.text()
