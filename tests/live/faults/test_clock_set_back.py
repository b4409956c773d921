"""The wall clock of a machine is set back while a run is under way."""

import pytest

from manyhands.reports import Run
from support import wait_for

CLOCK = """
    # Every process of the run sees its wall clock an hour earlier once the file is there.
    import os, sys, time

    _now, _now_ns = time.time, time.time_ns
    _file = os.environ["CLOCK_SET_BACK"]

    def back():
        return 3600 if os.path.exists(_file) else 0

    time.time = lambda: _now() - back()
    time.time_ns = lambda: _now_ns() - back() * 10**9
"""

SCRIPT = """
    import sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    class Slow(torch.nn.Linear):
        def forward(self, inputs):
            time.sleep(0.05)
            return super().forward(inputs)

    torch.manual_seed(0)
    job = mh.Job(
        model=lambda: Slow(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(2400, 4), torch.randint(0, 2, (2400,))),
        global_batch=16,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=3, output="run")
"""


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A wall clock for started processes; it is set back when the file is written."""
    folder = tmp_path / "clock"
    folder.mkdir()
    lines = [line[4:] for line in CLOCK.splitlines()]
    (folder / "sitecustomize.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("CLOCK_SET_BACK", str(folder / "set-back"))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder / "set-back"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(one, marks=pytest.mark.slow) for one in ("asynchronous()", "synchronous()")],
)
def test_a_worker_that_is_started_again_after_the_clock_was_set_back_works(
    run_script, clock, strategy
):
    started = run_script(SCRIPT, strategy)
    wait_for(lambda: " %)" in started.text(), 60, "training")
    clock.touch()
    started.worker(2).kill()
    wait_for(lambda: "worker 2 has rejoined" in started.text(), 30, "its return")
    assert started.finish(60) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples == 2400
    lives = [process for process in run.trace.workers if process.header.rank == 2]
    assert lives[-1].totals.samples > 0, "it has worked since"
