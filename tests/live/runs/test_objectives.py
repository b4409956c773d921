"""Several objectives on real processes: N workers make the alternating steps of one."""

import json
import os
from pathlib import Path

import pytest

import gans
from manyhands.files.checkpoint import load_state
from support import ROOT

SCRIPT = """
    import json, sys
    import gans
    import manyhands as mh

    job = gans.gan_job()

    if __name__ == "__main__":
        results = {}
        for strategy, workers in json.loads(sys.argv[1]):
            run = mh.train(job, strategy, workers=workers)
            results[f"{strategy} {workers}"] = [str(run.folder.resolve()), run.metrics, run.samples]
        print("RESULTS", json.dumps(results))
"""


@pytest.fixture
def run_gan(run_script):
    """Start the script with these strategies."""
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]

    def begin(wanted):
        return run_script(SCRIPT, json.dumps(wanted), PYTHONPATH=os.pathsep.join(paths))

    return begin


@pytest.fixture
def trained(run_gan):
    """Train under strategies, one after the other; what each of them gave."""

    def train(wanted):
        started = run_gan(wanted)
        assert started.finish(280) == 0, started.text()
        return json.loads(started.text().split("RESULTS ")[1].splitlines()[0])

    return train


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lockstep_equals_the_loop_of_the_dcgan_example(trained):
    wanted = [["synchronous()", 1], ["synchronous()", 2], ["synchronous(servers=2)", 3]]
    results = trained([*wanted, ["allreduce()", 2]])
    expected = gans.by_hand()
    assert len(results) == len(wanted) + 1
    for name, (folder, values, samples) in results.items():
        state = load_state(Path(folder) / "model.safetensors")
        assert gans.apart(state, expected) <= 1e-9, name
        assert values == pytest.approx(gans.losses(expected), abs=1e-9), name
        assert samples == gans.EPOCHS * gans.SAMPLES


@pytest.mark.timeout(300)
def test_asynchronous_workers_step_both(trained):
    ((folder, values, samples),) = trained([["asynchronous(servers=2)", 3]]).values()
    assert samples == gans.EPOCHS * gans.SAMPLES
    assert values == pytest.approx(
        gans.losses(load_state(Path(folder) / "model.safetensors")), abs=1e-9
    )


def test_a_strategy_that_cannot_refuses_before_a_process_starts(run_gan):
    started = run_gan([["fully_sharded()", 2]])
    assert started.finish(120) == 1
    assert "fully_sharded() takes one step of one optimizer per batch" in started.text()
    assert started.named("manyhands.live.worker.process") is None
