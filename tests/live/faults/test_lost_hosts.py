"""A host is lost, and something else happens before the run ends."""

import subprocess
import time

import pytest
import torch
from several_hosts import BATCH, EPOCH, EPOCHS, MANYHANDS, begun, is_training, kill

from manyhands.lab.networks.namespaces import NotPermitted, check_permitted, network
from manyhands.reports import Run
from support import wait_for


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["synchronous()", "asynchronous()"])
def test_a_server_that_is_restarted_knows_which_workers_are_lost(start, tmp_path, strategy):
    first, (line,) = begun(start, tmp_path, strategy)
    second = start(*MANYHANDS, *line)
    wait_for(lambda: is_training(first), 90, "training")
    kill(second)
    server = first.named("manyhands.live.server.process", "0")
    server.kill()
    assert first.finish(200) == 0, first.text()
    run = Run(tmp_path / "run")
    assert "worker 1 on b" in first.text()
    assert run.samples == EPOCHS * EPOCH, "every sample counts once"


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
        first, (line,) = begun(start, tmp_path, strategy, listen=here.address, inside=here.inside())
        second = start(*there.inside(*MANYHANDS, *line))
        wait_for(lambda: is_training(first), 90, "training")
        subprocess.run(there.inside("ip", "link", "set", "eth0", "down"), check=True)
        wait_for(lambda: "the other workers continue" in first.text(), 60, "the host is dropped")
        time.sleep(1)
        subprocess.run(there.inside("ip", "link", "set", "eth0", "up"), check=True)
        assert first.finish(250) == 0, first.text() + second.text()
        assert Run(tmp_path / "run").samples == EPOCHS * EPOCH, "every sample counts once"
        second.finish(60)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["40 steps", "40 steps in memory"])
@pytest.mark.parametrize("lost", ["worker 1", "worker 0", "host b"])
def test_parts_of_a_model_on_two_hosts_go_back_to_the_last_checkpoint(start, tmp_path, lost, where):
    first, (line,) = begun(start, tmp_path, "fully_sharded()", options=("--checkpoint", where))
    second = start(*MANYHANDS, *line)
    trace = tmp_path / "run" / "trace" / "worker-0.jsonl"
    wait_for(lambda: trace.exists() and '"checkpoint' in trace.read_text(), 120, "a checkpoint")
    if lost == "host b":
        kill(second)
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
    assert run.samples == EPOCHS * EPOCH
    (resumed,) = (one for one in run.trace.workers[0].events if one.what == "resumed")
    assert int(resumed.detail["samples"]) % (40 * BATCH) == 0
    alone = start(
        *(*MANYHANDS, "train", "job.py", "--strategy", "single()", "--workers", "1"),
        *("--output", "alone"),
    )
    assert alone.finish(100) == 0, alone.text()
    mine, its = run.state_dict(), Run(tmp_path / "alone").state_dict()
    assert all(torch.allclose(mine[name], its[name], atol=1e-5) for name in its)
