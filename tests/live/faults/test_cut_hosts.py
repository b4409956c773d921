"""A host is cut off from the others, in both directions and in one, for a while and for ever."""

import sys
import textwrap

import pytest

from manyhands.reports import Run
from manyhands.reports.figures.fault_times import fault_times
from manyhands.reports.figures.speed import accounting, training_seconds

MANYHANDS = (sys.executable, "-m", "manyhands")
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
        global_batch=8,
        epochs=1,
        metrics=(),
    )
"""


@pytest.fixture
def train(start, tmp_path):
    """Train on two hosts of one worker each, in network namespaces, to the end."""

    def run(strategy, faults, samples):
        script = tmp_path / "job.py"
        text = textwrap.dedent(SCRIPT).replace("SAMPLES", str(samples))
        script.write_text(text, encoding="utf-8")
        started = start(
            *(*MANYHANDS, "train", script, "--strategy", strategy, "--faults", faults),
            *("--cluster", "2 hosts of 1 workers, 1gbit", "--output", "run"),
        )
        code = started.finish(280)
        if "network namespaces cannot be used here" in started.text():
            pytest.skip(started.text())
        assert code == 0, started.text()
        return Run(tmp_path / "run"), started.text()

    return run


def seconds_to(run, *whats):
    """Seconds from the cut to the first event of these kinds."""
    (cut,) = fault_times(run.trace)
    origin = training_seconds(run.trace)[0]
    found = [
        event.at - origin - cut.at
        for process in run.trace.processes
        for event in process.events
        if event.what in whats and event.at - origin >= cut.at
    ]
    return min(found, default=None)


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize("way", ["both", "incoming", "outgoing"])
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()"])
def test_a_cut_of_five_seconds_costs_no_sample_and_no_worker(train, strategy, way):
    run, text = train(strategy, f"cut host host-1 {way} from 3 s to 8 s", 3000)
    assert run.samples == 3000
    assert accounting(run.trace).lost == 0
    assert "the link of host host-1 is restored" in text
    assert "the others continue" not in text
    workers = {worker.header.rank: worker.totals.samples for worker in run.trace.workers}
    assert workers[1] > 0


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize("way", ["both", "incoming", "outgoing"])
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()"])
@pytest.mark.parametrize("length", ["for 30 s", "for ever"])
def test_a_host_that_stays_away_is_named_within_5_s_and_dropped(train, strategy, way, length):
    run, text = train(strategy, f"cut host host-1 {way} at 3 s {length}", 3600)
    assert run.status == "finished"
    kept = accounting(run.trace)
    assert (run.samples, kept.lost) == (3600, 0), "no sample is committed by two sides"
    named, dropped = seconds_to(run, "suspect"), seconds_to(run, "lost")
    print(f"{strategy} {way} {length}: named after {named:.1f} s, dropped after {dropped:.1f} s")
    assert named <= 5.0
    assert dropped <= 20.0
    assert "worker 1 on host-1" in text


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_a_first_host_that_is_cut_off_goes_on_alone(train):
    run, text = train("asynchronous()", "cut host host-0 at 3 s for ever", 3600)
    assert run.samples == 3600
    assert accounting(run.trace).lost == 0
    assert "worker 1 on host-1" in text
