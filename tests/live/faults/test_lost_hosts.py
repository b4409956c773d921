"""A host is lost, and something else happens before the run ends."""

import shlex
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from manyhands.lab.networks.namespaces import NotPermitted, check_permitted, network
from manyhands.reports import Run
from support import wait_for

JOB = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(2048, 20, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))

    def loss(outputs, targets):
        time.sleep(0.02)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=data,
        global_batch=64,
        epochs=20,
    )
"""
MANYHANDS = (sys.executable, "-m", "manyhands")


def begun(start, tmp_path, strategy, listen="127.0.0.1", inside=(), options=()):
    """A run that two hosts train, each by its agent, and the command that joins it."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB))
    first = start(
        *(*inside, *MANYHANDS, "train", script, "--strategy", strategy, "--hosts", "a:1, b:1"),
        *("--listen", listen, "--patience", "6", "--output", "run", *options),
    )
    line = tmp_path / "run" / "join"
    wait_for(lambda: line.exists() or first.process.poll() is not None, 60, "the line to join by")
    assert line.exists(), first.text()
    return first, shlex.split(line.read_text())[1:]


def is_training(run):
    return " %)" in run.text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["synchronous()", "asynchronous()"])
def test_a_server_that_is_restarted_knows_which_workers_are_lost(start, tmp_path, strategy):
    first, line = begun(start, tmp_path, strategy)
    second = start(*MANYHANDS, *line)
    wait_for(lambda: is_training(first), 90, "training")
    for process in (*second.tree(), second.process):
        process.send_signal(signal.SIGKILL)
    server = first.named("manyhands.live.server.process", "0")
    server.kill()
    assert first.finish(200) == 0, first.text()
    run = Run(tmp_path / "run")
    assert "worker 1 on b" in first.text()
    assert run.samples == 20 * 2048, "every sample counts once"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["diloco(every=20)", "local_sgd(every=8)", "asynchronous()"])
def test_a_link_that_heals_after_its_host_was_dropped_disturbs_nobody(start, tmp_path, strategy):
    try:
        check_permitted()
    except NotPermitted as error:
        pytest.skip(str(error))
    with network(2, 125e6) as hosts:
        here, there = hosts
        first, line = begun(start, tmp_path, strategy, here.address, here.inside())
        second = start(*there.inside(*MANYHANDS, *line))
        wait_for(lambda: is_training(first), 90, "training")
        subprocess.run(there.inside("ip", "link", "set", "eth0", "down"), check=True)
        wait_for(lambda: "the others carry on" in first.text(), 60, "the host is dropped")
        time.sleep(1)
        subprocess.run(there.inside("ip", "link", "set", "eth0", "up"), check=True)
        assert first.finish(250) == 0, first.text() + second.text()
        assert Run(tmp_path / "run").samples == 20 * 2048, "every sample counts once"
        second.finish(60)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["40 steps", "40 steps in memory"])
@pytest.mark.parametrize("lost", ["worker 1", "worker 0", "host b"])
def test_parts_of_a_model_on_two_hosts_go_back_to_the_last_checkpoint(start, tmp_path, lost, where):
    first, line = begun(start, tmp_path, "fully_sharded()", options=("--checkpoint", where))
    second = start(*MANYHANDS, *line)
    trace = tmp_path / "run" / "trace" / "worker-0.jsonl"
    wait_for(lambda: trace.exists() and '"checkpoint' in trace.read_text(), 120, "a checkpoint")
    if lost == "host b":
        for process in (*second.tree(), second.process):
            process.send_signal(signal.SIGKILL)
        wait_for(lambda: "all go back to the last checkpoint" in first.text(), 60, "the way back")
        second = start(*MANYHANDS, *line)
    else:
        rank = lost.removeprefix("worker ")
        host = first if rank == "0" else second
        host.named("manyhands.live.worker.process", rank).kill()
    assert first.finish(200) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    assert "all go back to the last checkpoint" in first.text()
    assert ("this host joins again" in second.text()) == (lost != "host b")
    run = Run(tmp_path / "run")
    assert run.samples == 20 * 2048
    (resumed,) = (one for one in run.trace.workers[0].events if one.what == "resumed")
    assert int(resumed.detail["samples"]) % (40 * 64) == 0
    alone = start(
        *(*MANYHANDS, "train", "job.py", "--strategy", "single()", "--workers", "1"),
        *("--output", "alone"),
    )
    assert alone.finish(100) == 0, alone.text()
    mine, its = run.state_dict(), Run(tmp_path / "alone").state_dict()
    assert all(torch.allclose(mine[name], its[name], atol=1e-5) for name in its)
