"""Workers that hold parts of a model go back to a checkpoint in memory when one is killed."""

import random
import re
from pathlib import Path

import pytest

from manyhands.reports import Run
from support import Started, wait_for

SCRIPT = """
    import os, signal, sys, threading, time
    from pathlib import Path
    import torch, torch.nn.functional as F
    import manyhands as mh
    from manyhands.files.checkpoints import memory

    torch.set_default_dtype(torch.float64)
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=made)
    targets = torch.randint(0, 4, (200,), generator=made)

    # Every attempt of the run ends with one of these kills, the last attempt with none.
    name, how, workers, *kills = sys.argv[1:]
    earlier = len([*Path().glob(f"killed-{name}-*")])
    me = sys.orig_argv[-1] if "manyhands.live.worker.process" in sys.orig_argv else ""
    victim, moment, at, delay = (kills[earlier] if earlier < len(kills) else "-::0:0").split(":")
    doomed, at = me == victim, int(at)
    stepped = copied = 0

    def die():
        if doomed:
            Path(f"killed-{name}-{earlier}").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    class Watched(torch.optim.AdamW):
        def step(self, closure=None):
            global stepped
            if moment == "before" and stepped == at:
                die()
            result = super().step(closure)
            stepped += 1
            if moment == "after" and stepped == at:
                die()
            if moment == "during" and stepped == at:
                threading.Timer(float(delay), die).start()
            with open(f"steps-{name}-{earlier}", "a") as file:
                file.write(f"{time.time()}\\n")
            return result

    copy, write = memory._copy, memory.MemoryFile.write

    def watched_write(*about):
        global copied
        copied += 1
        write(*about)

    def watched_copy(tensor, *about):
        if moment == "copy" and copied == at and tensor.dim() == 1:
            die()
        return copy(tensor, *about)

    memory._copy, memory.MemoryFile.write = watched_copy, watched_write

    def loss(outputs, targets):
        if torch.is_grad_enabled() and me:
            time.sleep(float(os.environ.get("PAUSE", "0")))
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 8), torch.nn.Tanh(),
            torch.nn.Dropout(0.1), torch.nn.Linear(8, 4),
        ),
        optimizer=lambda model: Watched(model.parameters(), lr=0.02),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=12,
        samples=360,
        metrics=(),
        checkpoint=mh.every(steps=4, memory=True),
    )

    if __name__ == "__main__":
        mh.train(job, how, workers=int(workers), output=name)
"""

BACK = re.compile(
    r"all go back to the (?:last checkpoint in memory, after (\d+) samples|beginning)"
)


def apart(one: Path, other: Path) -> float:
    """The largest difference between the parameters of two runs."""
    first, second = Run(one).state_dict(), Run(other).state_dict()
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def times(started: Started, name: str, kills: int) -> list[float]:
    """Seconds from every kill to the first step after it."""
    found = []
    for number in range(kills):
        killed = float((started.folder / f"killed-{name}-{number}").read_text())
        steps = (started.folder / f"steps-{name}-{number + 1}").read_text().split()
        found.append(float(steps[0]) - killed)
    return found


def check(run_script, how: str, workers: int, kills: list[str], limit: float = 0.0) -> list[int]:
    """Compare a run with kills with one without; the samples that every attempt went back to."""
    started = run_script(SCRIPT, "run", how, str(workers), *kills, PAUSE="0.02")
    assert started.finish(100) == 0, started.text()
    run = started.folder / "run"
    assert not (run / "checkpoints").exists()
    back = [int(found or 0) for found in BACK.findall(started.text())]
    assert len(back) == len(kills), started.text()
    seconds = times(started, "run", len(kills))
    print(f"{how} on {workers}: {' '.join(f'{one:.1f}' for one in seconds)} s to the next step")
    # Nothing is lost beyond the cut, and nothing counted twice.
    assert Run(run).samples == 360
    assert "0 repeated, 0 lost" in Run(run).summary()
    whole = run_script(SCRIPT, "whole", how, str(workers))
    assert whole.finish(60) == 0, whole.text()
    assert apart(run, whole.folder / "whole") <= limit
    return back


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_a_kill_during_the_copy_leaves_the_generation_before(run_script) -> None:
    assert check(run_script, "fully_sharded()", 2, ["1:copy:3:0"]) == [96]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("fully_sharded()", 3),
        ("zero(stage=2)", 3),
        ("zero(stage=3)", 2),
        ("pipeline(microbatches=2)", 3),
        ("tensor(ways=2)", 2),
        ("hybrid(shard=2, tensor=2)", 4),
        ("hybrid(shard=2, pipeline=2, microbatches=2)", 4),
        ("single()", 1),
    ],
)
def test_kills_at_seeded_moments_change_nothing(run_script, how: str, workers: int) -> None:
    draw = random.Random(how)  # noqa: S311 - repeatable
    moments = ["before", "after", "during", "copy"]
    draw.shuffle(moments)
    kills = []
    for moment in moments:
        at = 2 if moment == "copy" else draw.randint(5, 7)
        kills.append(f"{draw.randrange(workers)}:{moment}:{at}:{draw.uniform(0, 0.03):.3f}")
    back = check(run_script, how, workers, kills)
    assert back == sorted(back)


@pytest.mark.slow
def test_before_the_first_checkpoint_the_run_begins_again(run_script) -> None:
    assert check(run_script, "zero(stage=2)", 2, ["0:after:2:0"]) == [0]


@pytest.mark.slow
def test_the_later_one_of_memory_and_disk_is_taken(run_script) -> None:
    text = SCRIPT.replace("steps=4, memory=True", "steps=4, memory=mh.every(steps=10)")
    started = run_script(text, "run", "fully_sharded()", "2", "1:before:9:0", "0:before:4:0")
    assert started.finish(100) == 0, started.text()
    words = re.findall(r"all go back to the (.*)\n", started.text())
    assert words == [
        "last checkpoint, after 96 samples",
        "last checkpoint in memory, after 120 samples",
    ], started.text()
    whole = run_script(text, "whole", "fully_sharded()", "2")
    assert whole.finish(60) == 0, whole.text()
    assert apart(started.folder / "run", whole.folder / "whole") == 0.0


def test_a_strategy_that_continues_by_itself_keeps_none(run_script) -> None:
    started = run_script(SCRIPT, "run", "allreduce()", "2")
    assert started.finish(60) == 0, started.text()
    assert "no checkpoint is kept in memory: under allreduce()" in started.text()


def test_hosts_of_which_one_has_all_workers_are_refused(run_script) -> None:
    text = SCRIPT.replace("output=name", 'output=name, hosts="a:0, b:2", listen="127.0.0.1"')
    started = run_script(text, "run", "fully_sharded()", "2")
    assert started.finish(60) != 0
    assert "need workers on the first host and on another one" in started.text()


@pytest.mark.slow
def test_memory_that_does_not_suffice_is_said(run_script) -> None:
    text = SCRIPT.replace(
        "    copy, write",
        "    from manyhands.live.worker.checkpoints import memory_copies\n"
        "    memory_copies.available = lambda: (1000, 0)\n\n    copy, write",
    )
    started = run_script(text, "run", "fully_sharded()", "2")
    wait_for(lambda: "samples" in started.text() or started.process.poll() is not None, 60, "start")
    assert started.finish(60) == 0, started.text()
    assert "checkpoints are not kept in memory: two of them need" in started.text()
