"""Runs that are killed or interrupted, and continued from their checkpoints."""

import os
import random
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from manyhands.files.checkpoints import CHECKPOINTS, generations
from manyhands.reports import Run
from support import Started, wait_for

SCRIPT = """
    import os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    PAUSE = float(os.environ.get("PAUSE", "0"))
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=source)
    targets = torch.randint(0, 4, (200,), generator=source)

    def loss(outputs, targets):
        if torch.is_grad_enabled():
            time.sleep(PAUSE)
        return F.cross_entropy(outputs, targets)

    def optimizer(model):
        if os.environ.get("OPTIMIZER") == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=0.02)

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self):
            self.at = 0

        def __iter__(self):
            with open(f"read-{os.getpid()}", "a") as file:
                file.write(f"{self.at} ")
            while self.at < 480:
                self.at += 1
                yield inputs[(self.at - 1) % 200] + torch.rand(()), targets[(self.at - 1) % 200]
            self.at = 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    data = torch.utils.data.TensorDataset(inputs, targets)
    if "STREAM" in os.environ:
        data = Stream()
    if "GPT" in os.environ:
        data = torch.utils.data.Subset(mh.data.tinyshakespeare("train", 16), range(200))

    def model():
        if "GPT" in os.environ:
            return mh.models.GPT(length=16, width=16, layers=2, heads=2)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
            torch.nn.Linear(8, 4),
        )

    scheduler = None
    if "SCHEDULER" in os.environ:
        scheduler = lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 50)

    job = mh.Job(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        loss=loss,
        data=data,
        num_workers=int(os.environ.get("LOADERS", "0")),
        global_batch=12,
        samples=480,
        metrics=(),
        checkpoint=mh.every(steps=4, to=os.environ.get("TO", "")),
    )

    if __name__ == "__main__":
        how, workers, name, *rest = sys.argv[1:]
        given = dict(one.split("=") for one in rest)
        samples = int(given.pop("samples")) if "samples" in given else None
        mh.train(job, how, workers=int(workers), output=name, samples=samples, **given)
"""


def apart(one: Path, other: Path) -> float:
    """The largest difference between the parameters of two runs."""
    first, second = Run(one).state_dict(), Run(other).state_dict()
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def count(folder: Path) -> int:
    """The generations of a run so far."""
    return len(generations(folder / CHECKPOINTS))


def has_begun(folder: Path) -> bool:
    """Whether the workers of the present attempt are there."""
    return (folder / "trace" / "worker-0.jsonl").exists()


def has_ended(started: Started) -> bool:
    """Whether the command has ended."""
    return started.process.poll() is not None


def kill_all(started: Started) -> None:
    """End a run and all of its processes at once."""
    everything = started.tree()
    os.kill(started.process.pid, signal.SIGKILL)
    for process in everything:
        process.kill()
    started.process.wait()
    wait_for(lambda: not started.tree(), 10, "the end of all processes")


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("allreduce()", 2),
        pytest.param("synchronous(servers=2)", 2, marks=pytest.mark.slow),
        pytest.param("zero(stage=2)", 2, marks=pytest.mark.slow),
        pytest.param("pipeline(microbatches=2)", 2, marks=pytest.mark.slow),
        pytest.param("averaging(every=2)", 2, marks=pytest.mark.slow),
        pytest.param("diloco(every=3)", 2, marks=pytest.mark.slow),
        pytest.param("easgd(every=2, order=parallel)", 2, marks=pytest.mark.slow),
        pytest.param("synchronous(codec=topk(0.2))", 2, marks=pytest.mark.slow),
        pytest.param("asynchronous()", 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_continues_to_the_bit(run_script, how: str, workers: int) -> None:
    started = run_script(SCRIPT, how, str(workers), "run", PAUSE="0.05")
    run = started.folder / "run"
    wait_for(lambda: count(run) >= 2, 60, "two checkpoints")
    kill_all(started)
    again = run_script(SCRIPT, how, str(workers), "run")
    assert again.finish() == 0, again.text()
    assert "continues from" in again.text()
    assert (run / "earlier" / "1" / "trace").is_dir()
    whole = run_script(SCRIPT, how, str(workers), "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["allreduce()", "synchronous(servers=2)", "tensor(ways=2)"])
@pytest.mark.parametrize("about", [{"GPT": "1"}, {"SCHEDULER": "1", "OPTIMIZER": "sgd"}])
def test_a_gpt_and_a_scheduler_continue_to_the_bit(
    run_script, how: str, about: dict[str, str]
) -> None:
    started = run_script(SCRIPT, how, "2", "run", PAUSE="0.05", **about)
    run = started.folder / "run"
    wait_for(lambda: count(run) >= 2, 60, "two checkpoints")
    kill_all(started)
    again = run_script(SCRIPT, how, "2", "run", **about)
    assert again.finish() == 0, again.text()
    whole = run_script(SCRIPT, how, "2", "whole", **about)
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "loaders"),
    [
        ("allreduce()", "0"),
        ("allreduce()", "2"),
        ("synchronous()", "0"),
        ("synchronous()", "2"),
    ],
)
def test_a_stream_continues_at_its_place(run_script, how: str, loaders: str) -> None:
    about = {"STREAM": "1", "LOADERS": loaders}
    started = run_script(SCRIPT, how, "2", "run", PAUSE="0.05", **about)
    run = started.folder / "run"
    wait_for(lambda: count(run) >= 2, 60, "two checkpoints")
    kill_all(started)
    before = set(started.folder.glob("read-*"))
    again = run_script(SCRIPT, how, "2", "run", **about)
    assert again.finish() == 0, again.text()
    places = [one.read_text() for one in {*again.folder.glob("read-*")} - before]
    # The first sample is read once more in every process that looks at the data's form.
    assert sum(any(int(at) >= 48 for at in text.split()) for text in places) >= 2, places
    whole = run_script(SCRIPT, how, "2", "whole", **about)
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


@pytest.mark.slow
def test_a_run_whose_disk_is_lost_continues_from_a_url(run_script, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="the library fsspec is not installed")
    there = tmp_path / "there"
    url, about = f"file://{there}", ("allreduce()", "2")
    # The first time there is nothing at the URL yet.
    started = run_script(SCRIPT, *about, "run", f"resume={url}", PAUSE="0.05", TO=url)
    wait_for(lambda: len([*there.glob("*/manifest.sha256")]) >= 2, 60, "two checkpoints")
    kill_all(started)
    shutil.rmtree(started.folder / "run")
    again = run_script(SCRIPT, *about, "again", f"resume={url}", TO=url)
    assert again.finish() == 0, again.text()
    assert "continues from" in again.text()
    whole = run_script(SCRIPT, *about, "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(again.folder / "again", whole.folder / "whole") == 0.0
    # The last generation was copied before the run ended.
    assert max(path.name for path in there.iterdir()) == f"{480:012}"


@pytest.mark.slow
def test_workers_that_share_a_model_go_back_to_the_last_checkpoint(run_script) -> None:
    started = run_script(SCRIPT, "fully_sharded()", "2", "run", PAUSE="0.05")
    run = started.folder / "run"
    wait_for(lambda: count(run) >= 2, 90, "two checkpoints")
    started.worker(1).kill()
    assert started.finish(150) == 0, started.text()
    assert "all go back to the last checkpoint" in started.text()
    whole = run_script(SCRIPT, "fully_sharded()", "2", "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_told_to_end_stores_a_checkpoint_first(run_script, number) -> None:
    how = "synchronous()" if number == signal.SIGTERM else "allreduce()"
    started = run_script(SCRIPT, how, "2", "run", PAUSE="0.05")
    run = started.folder / "run"
    wait_for(lambda: count(run) >= 1, 60, "a checkpoint")
    before = generations(run / CHECKPOINTS)[0].name
    os.kill(started.process.pid, number)
    assert started.finish(40) != 0
    assert "a last checkpoint is stored" in started.text(), started.text()
    assert generations(run / CHECKPOINTS)[0].name > before
    again = run_script(SCRIPT, how, "2", "run")
    assert again.finish() == 0, again.text()
    whole = run_script(SCRIPT, how, "2", "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") < 1e-12


@pytest.mark.slow
def test_a_run_that_is_continued_twice_with_the_same_settings_names_no_change(run_script) -> None:
    for name, samples, before in (("a", 48, ""), ("b", 96, "a"), ("c", 144, "b")):
        given = (f"samples={samples}", *([f"resume={before}"] if before else []))
        run = run_script(SCRIPT, "ssp()", "2", name, *given)
        assert run.finish() == 0, run.text()
        assert ("continues from" in run.text()) == bool(before)
        assert "changed since" not in run.text()


@pytest.mark.slow
def test_the_first_checkpoint_may_be_the_one_before_leaving(run_script) -> None:
    text = SCRIPT.replace("mh.every(steps=4, to", "mh.every(seconds=3600, to")
    started = run_script(text, "allreduce()", "2", "run", PAUSE="0.05")
    run = started.folder / "run"
    wait_for(lambda: "samples" in started.text(), 60, "the first samples")
    os.kill(started.process.pid, signal.SIGUSR1)
    assert started.finish(40) == 128 + signal.SIGUSR1
    assert "stored: " in started.text(), started.text()
    again = run_script(text, "allreduce()", "2", "run")
    assert again.finish() == 0, again.text()
    assert "continues from" in again.text()
    whole = run_script(text, "allreduce()", "2", "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["allreduce()", "fully_sharded()"])
def test_a_run_on_two_hosts_that_share_its_folder_continues(
    run_script, start, tmp_path: Path, how: str
) -> None:
    def both(**environment: str) -> tuple[Started, Started]:
        options = ("hosts=a:1, b:1", "listen=127.0.0.1")
        lines = tmp_path / "run" / "join"
        lines.unlink(missing_ok=True)  # of the run that was killed
        first = run_script(SCRIPT, how, "2", "run", *options, **environment)
        wait_for(lambda: lines.exists() or first.process.poll() is not None, 90, "the command")
        assert lines.exists(), first.text()
        join = shlex.split(lines.read_text())[1:]
        return first, start(sys.executable, "-m", "manyhands", *join, **environment)

    first, second = both(PAUSE="0.05")
    run = first.folder / "run"
    wait_for(lambda: count(run) >= 2, 120, "two checkpoints")
    kill_all(first)
    kill_all(second)
    files = {path.name for path in generations(run / CHECKPOINTS)[0].glob("*.safetensors")}
    assert files == {"worker-0.safetensors", "worker-1.safetensors"}
    again, other = both()
    assert again.finish(150) == 0, again.text() + other.text()
    assert "continues from" in again.text()
    assert "0 repeated, 0 lost" in Run(run).summary()
    whole = run_script(SCRIPT, how, "2", "whole")
    assert whole.finish() == 0, whole.text()
    assert apart(run, whole.folder / "whole") == 0.0


LEGS = [
    ("allreduce()", 4, 96),
    ("zero(stage=2)", 2, 192),
    # After the short batch at the end of the first epoch.
    ("pipeline(microbatches=2)", 2, 284),
    ("synchronous(servers=2)", 3, 380),
    ("tensor(ways=2)", 2, 480),
]
"""How each part of a run is trained, and after how many samples it ends: with whole batches."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "about",
    [
        {"OPTIMIZER": "sgd"},
        {"OPTIMIZER": "adamw"},
        {"OPTIMIZER": "sgd", "SCHEDULER": "1"},
        {"OPTIMIZER": "adamw", "GPT": "1"},
    ],
    ids=["sgd", "adamw", "scheduler", "gpt"],
)
def test_a_run_continues_under_other_strategies(run_script, about: dict[str, str]) -> None:
    resume: list[str] = []
    for number, (how, workers, samples) in enumerate(LEGS):
        name = f"leg-{number}"
        leg = run_script(SCRIPT, how, str(workers), name, f"samples={samples}", *resume, **about)
        assert leg.finish() == 0, leg.text()
        resume = [f"resume={name}"]
    whole = run_script(SCRIPT, "single()", "1", "whole", **about)
    assert whole.finish() == 0, whole.text()
    assert apart(whole.folder / f"leg-{len(LEGS) - 1}", whole.folder / "whole") < 1e-9


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["allreduce()", "synchronous(servers=2)"])
def test_fifty_kills_at_seeded_moments(run_script, how: str) -> None:
    """Everything is killed again and again; what is left equals a run without kills."""
    rng = random.Random(18)  # noqa: S311 - repeatable
    whole = run_script(SCRIPT, how, "2", "whole")
    assert whole.finish() == 0, whole.text()
    kills, inside, runs = 0, 0, 0
    while kills < 50:
        runs += 1
        name = f"run-{runs}"
        while True:
            started = run_script(SCRIPT, how, "2", name, PAUSE="0.02")
            run = started.folder / name
            before = count(run)
            # Of five kills four are in training, however long a start takes here.
            if rng.random() < 0.8:
                wait_for(
                    lambda one=started, run=run: has_begun(run) or has_ended(one), 60, "training"
                )
            moment = time.monotonic() + rng.uniform(0.0, 3.0)
            while time.monotonic() < moment and not has_ended(started):
                time.sleep(0.005)
            if has_ended(started):
                break
            inside += has_begun(run)
            kill_all(started)
            kills += 1
            if not (run / "trace").exists() or not count(run):
                # Killed before its first checkpoint: there is nothing to continue from.
                shutil.rmtree(run, ignore_errors=True)
            assert count(run) >= min(before, 3)
            if (run / "model.safetensors").exists():
                break  # Killed when its model was stored: there is nothing left to do.
        assert (run / "model.safetensors").exists(), started.text()
        assert apart(run, whole.folder / "whole") == 0.0
    print(f"{kills} kills, {inside} of them in training, of {runs} runs")
    assert inside >= 25
