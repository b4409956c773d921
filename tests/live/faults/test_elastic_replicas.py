"""Replicas of several workers that are lost under `hybrid`: the others continue, and it returns."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.files.checkpoint import load_state
from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import os, signal, sys, threading, time
    from pathlib import Path
    import torch, torch.nn.functional as F
    import manyhands as mh

    HOW, WORKERS, NAME, *KILLS = sys.argv[1:]
    me = sys.orig_argv[-1] if "manyhands.live.worker.process" in sys.orig_argv else ""
    first = os.environ.get("MANYHANDS_INCARNATION") == "1"
    mine = [one.split(":")[1:] for one in KILLS if one.split(":")[0] == me and first]
    moment, at, delay = mine[0] if mine else ("", 0, 0)
    stepped = evaluated = 0

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class Watched(torch.optim.AdamW):
        def step(self, closure=None):
            global stepped
            if moment == "before" and stepped == int(at):
                die()
            result = super().step(closure)
            stepped += 1
            if moment == "after" and stepped == int(at):
                die()
            if moment == "later" and Path("later").exists():
                die()
            if moment == "during" and stepped == int(at):
                threading.Timer(float(delay), die).start()
            return result

    from manyhands.files.checkpoints import memory

    write = memory.MemoryFile.write

    def watched_write(*about):
        if moment == "handing":
            die()
        write(*about)

    memory.MemoryFile.write = watched_write

    def loss(outputs, targets):
        global evaluated
        if not torch.is_grad_enabled():
            evaluated += 1
            if moment == "evaluation" and evaluated == int(at):
                die()
        elif me:
            time.sleep(0.002 if Path("quick").exists() else 0.1)
        return F.cross_entropy(outputs, targets)

    def build():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 12), torch.nn.Tanh(),
            torch.nn.Linear(12, 3),
        ).double()

    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 6, generator=made, dtype=torch.float64)
    targets = (inputs @ torch.randn(6, 3, generator=made, dtype=torch.float64)).argmax(1)
    job = mh.Job(
        model=build,
        optimizer=lambda model: Watched(model.parameters(), lr=0.01),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:48], targets[:48]),
        global_batch=20,
        epochs=6,
        clip=0.5,
        ema=0.9,
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120),
    )

    if __name__ == "__main__":
        mh.train(job, HOW, workers=int(WORKERS), output=NAME)
"""

PIPELINE = "hybrid(data=2, pipeline=2, microbatches=2)"


def apart(one: Path, other: Path) -> float:
    """The largest difference between the parameters of two models."""
    first, second = load_state(one), load_state(other)
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def check(
    run_script,
    how: str,
    workers: int,
    *kills: str,
    rejoin: int = 1,
    later: Callable[[str], bool] | None = None,
) -> None:
    """Compare a run with kills with `single`; workers that are lost have rejoined."""
    started = run_script(SCRIPT, how, str(workers), "run", *kills)

    def rejoined() -> bool:
        count = started.text().count("has rejoined")
        return count >= rejoin or started.process.poll() is not None

    if later is not None:
        wait_for(lambda: later(started.text()), 120, "the moment of the second kill")
        (started.folder / "later").touch()
    wait_for(rejoined, 120, "rejoining")
    (started.folder / "quick").touch()
    assert started.finish(100) == 0, started.text()
    run = started.folder / "run"
    text = started.text()
    assert text.count("the other workers continue") == len(kills), text
    assert text.count("has rejoined") >= rejoin, text
    whole = run_script(SCRIPT, "single()", "1", "whole")
    assert whole.finish(100) == 0, whole.text()
    for name in ("model.safetensors", "model-ema.safetensors"):
        assert apart(run / name, whole.folder / "whole" / name) < 1e-9
    done = Run(run)
    assert done.samples == 2400
    seen = re.search(r"([\d,]+) seen, ([\d,]+) repeated, ([\d,]+) lost", done.summary())
    assert seen is not None, done.summary()
    assert (seen[1], seen[3]) == ("2,400", "0")
    assert int(seen[2]) <= 20 * len(kills)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "workers", "kill"),
    [
        ("hybrid(data=2, shard=2)", 4, "1:before:6:0"),
        pytest.param("hybrid(data=2, shard=2)", 4, "3:after:6:0", marks=pytest.mark.slow),
        pytest.param("hybrid(data=2, tensor=2)", 4, "2:before:6:0", marks=pytest.mark.slow),
        pytest.param(PIPELINE, 4, "1:during:6:0.03", marks=pytest.mark.slow),
        pytest.param(PIPELINE, 4, "0:after:6:0", marks=pytest.mark.slow),
        pytest.param("hybrid(data=2, shard=2)", 4, "0:evaluation:2:0", marks=pytest.mark.slow),
        pytest.param("hybrid(data=3, shard=2)", 6, "2:during:6:0.02", marks=pytest.mark.slow),
        pytest.param("hybrid(data=2, shard=2)", 4, "1:before:0:0", marks=pytest.mark.slow),
        pytest.param("hybrid(data=2)", 2, "1:before:6:0", marks=pytest.mark.slow),
    ],
)
def test_other_replicas_continue_and_the_lost_one_returns(run_script, how, workers, kill) -> None:
    check(run_script, how, workers, kill)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_whole_replica_is_lost(run_script) -> None:
    check(run_script, "hybrid(data=2, shard=2)", 4, "0:before:6:0", "1:before:6:0", rejoin=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_replica_is_lost_when_the_first_has_returned(run_script) -> None:
    kills = ("1:before:6:0", "2:later:0:0")

    def second(text: str) -> bool:
        return "worker 1 has rejoined" in text

    check(run_script, PIPELINE, 4, *kills, rejoin=2, later=second)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_is_lost_while_it_hands_the_state_over(run_script) -> None:
    # Worker 2 is of the first replica that is left, which writes the state.
    kills = ("0:before:6:0", "2:handing:0:0")
    check(run_script, "hybrid(data=3, shard=2)", 6, *kills, rejoin=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_ends_without_waiting_for_a_replica(run_script) -> None:
    # Three steps before the end: the successor has no time to join.
    check(run_script, "hybrid(data=2, shard=2)", 4, "3:after:117:0", rejoin=0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_without_a_complete_replica_goes_back_to_its_checkpoint(run_script) -> None:
    text = SCRIPT.replace("clip=0.5,", "clip=0.5, checkpoint=mh.every(steps=10),")
    text = text.replace(
        'os.environ.get("MANYHANDS_INCARNATION") == "1"', "not Path(f'x{me}').exists()"
    )
    text = text.replace("def die():", "def die():\n        Path(f'x{me}').touch()")
    kills = ("0:after:15:0", "2:after:15:0")
    started = run_script(text, "hybrid(data=2, shard=2)", "4", "run", *kills)
    (started.folder / "quick").touch()
    assert started.finish(150) == 0, started.text()
    assert "all go back to the last checkpoint, after 200 samples" in started.text()
    whole = run_script(SCRIPT, "single()", "1", "whole")
    assert whole.finish(100) == 0, whole.text()
    name = "model.safetensors"
    assert apart(started.folder / "run" / name, whole.folder / "whole" / name) < 1e-9
