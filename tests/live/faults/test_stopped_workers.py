"""A worker is stopped, for ten seconds and for ever, under every strategy that leases samples."""

import signal
import textwrap

import pytest
from several_hosts import MANYHANDS, begun, is_training

from manyhands.reports import Run
from manyhands.reports.figures.fault_times import fault_times
from manyhands.reports.figures.speed import accounting, training_seconds
from support import wait_for

SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.05)
        return F.cross_entropy(outputs, targets)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 4), torch.randint(0, 2, (SAMPLES,)))
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        global_batch=12,
        epochs=1,
        metrics=(),
    )
"""
FREE = (
    *("asynchronous()", "easgd()", "hogwild()", "ensemble()", "broadcast()"),
    *("gossip(order=asynchronous)", "push_sum()", "softsync(wait_for=2)"),
)
"""No worker waits for another one."""
LOCKSTEP = (
    *("synchronous()", "ssp(staleness=2)", "averaging(every=4)", "local_sgd(every=4)"),
    *("diloco(every=8)", "central_storage()", "gossip()"),
)
"""Workers wait for a worker that is stopped."""


@pytest.fixture
def train(start, tmp_path):
    def begin(strategy, faults, samples, *options):
        script = tmp_path / "job.py"
        text = textwrap.dedent(SCRIPT).replace("SAMPLES", str(samples))
        script.write_text(text, encoding="utf-8")
        return start(
            *(*MANYHANDS, "train", script, "--strategy", strategy, "--workers", "3"),
            *("--faults", faults, "--output", "run", *options),
        )

    return begin


def steps_between(run, rank, begin, end):
    """Steps of a worker per second, in an interval of the time of training."""
    origin = training_seconds(run.trace)[0]
    starts = [
        span.start - origin
        for worker in run.trace.workers
        if worker.header.rank == rank
        for span in worker.spans
        if span.kind == "compute"
    ]
    return sum(begin <= start < end for start in starts) / (end - begin)


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", FREE)
def test_the_others_keep_their_rate_while_a_free_running_worker_is_stopped(train, strategy):
    started = train(strategy, "stop worker 2 from 6 s to 16 s", 4800)
    assert started.finish(200) == 0, started.text()
    run = Run(started.folder / "run")
    (stop,) = fault_times(run.trace)
    assert 9.5 < stop.over - stop.at < 11.0
    for rank in (0, 1):
        before = steps_between(run, rank, 1.0, stop.at)
        while_stopped = steps_between(run, rank, stop.at, stop.over)
        print(f"{strategy} worker {rank}: {before:.2f} steps/s, then {while_stopped:.2f}")
        assert while_stopped >= 0.95 * before
    kept = accounting(run.trace)
    assert (run.samples, kept.lost) == (4800, 0)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", LOCKSTEP)
def test_a_worker_stopped_for_ever_is_ejected_within_the_patience(train, strategy):
    started = train(strategy, "stop worker 2 at 2 s", 3000, "--patience", "6")
    assert started.finish(200) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples == 3000
    (stop,) = fault_times(run.trace)
    origin = training_seconds(run.trace)[0]
    coordinator = next(one for one in run.trace.processes if one.header.role == "coordinator")
    lost = [one for one in coordinator.events if one.what == "lost"]
    after = [one.at - origin - stop.at for one in lost if one.detail["member"] == "worker-2"]
    print(f"{strategy}: ejected {after} s after the stop")
    # The last heartbeat may be a second old, and timers are checked twice a second.
    assert after
    assert 5.0 <= after[0] <= 8.0
    assert "ejected, because it sent no heartbeat" in started.text()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", LOCKSTEP)
def test_a_stop_of_ten_seconds_within_the_patience_costs_ten_seconds(train, strategy):
    started = train(strategy, "stop worker 2 from 2 s to 12 s", 3000)
    assert started.finish(200) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.samples == 3000
    assert "ejected" not in started.text()
    assert accounting(run.trace).repeated == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()", "local_sgd(every=8)"])
def test_a_stopped_host_that_continues_is_refused_and_joins_again(start, tmp_path, strategy):
    first, (line,) = begun(start, tmp_path, strategy)
    second = start(*MANYHANDS, *line)
    wait_for(lambda: is_training(first), 90, "training")
    stopped = [*second.tree(), second.process]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    wait_for(lambda: "no heartbeat from its host for" in first.text(), 40, "the host is dropped")
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    assert first.finish(200) == 0, first.text()
    run = Run(tmp_path / "run")
    kept = accounting(run.trace)
    assert run.samples == 20 * 2048, "every sample counts once"
    assert kept.lost == 0
    assert second.finish(60) == 0, second.text()
    assert "the run continues without b" in second.text()
    assert "this host joins again" in second.text()
    assert "b has rejoined" in first.text()
