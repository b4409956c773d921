"""Mistakes and failures give a message without a traceback."""

import re
import subprocess
import sys

import pytest

from manyhands import Cluster, Host
from manyhands.live.agent.checks import crowded
from manyhands.strategies import strategy
from manyhands.verbs.command import Command
from manyhands.verbs.train import TrainOptions, _plan

JOB = """
import torch, torch.nn.functional as F
import manyhands as mh

def make(rate):
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=rate),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        global_batch=16, epochs=1,
    )
"""
ONE = JOB + "job = make(0.1)\n"
MANY = (
    JOB
    + """
jobs = [make(0.1), make(0.2)]
if __name__ == "__main__":
    for j in jobs:
        print(mh.train(j, workers=1).status)
"""
)
MAIN = (
    JOB
    + """
def main():
    mh.train(make(0.1), workers=1)
if __name__ == "__main__":
    main()
"""
)
IMPORTED = """
import manyhands as mh
import jobs
if __name__ == "__main__":
    print(mh.train(jobs.job, workers=1).status)
"""


def command(start, *words):
    return start(sys.executable, "-m", "manyhands", *words)


def test_mistakes_in_the_surroundings_are_answered_in_words(start, tmp_path) -> None:
    (tmp_path / "script.py").write_text(ONE)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "file").write_text("mine")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "script.py").write_text("from . import nothing\n" + ONE)
    (tmp_path / "runs").write_text("a file where a folder would be")
    cases = [
        (("train", "script.py", "--output", "file"), "file is a file; choose a folder for the run"),
        (("train", "script.py", "--workers", "1"), "the folder runs/"),
        (("train", "main.py"), "the job has no name at the top level of a script"),
        (("train", "package/script.py"), "run python -m package.script in"),
        (("train", "-"), "there is no file -"),
    ]
    for words, expected in cases:
        started = command(start, *words)
        assert started.finish() == 2, started.text()
        assert expected in started.text()
        assert "Traceback" not in started.text()


@pytest.mark.slow
def test_jobs_in_a_list_and_in_another_module_are_trained(start, tmp_path) -> None:
    (tmp_path / "many.py").write_text(MANY)
    (tmp_path / "jobs.py").write_text(ONE)
    (tmp_path / "imported.py").write_text(IMPORTED)
    for script, runs in (("many.py", 2), ("imported.py", 1)):
        started = start(sys.executable, script)
        assert started.finish() == 0, started.text()
        assert started.text().count("finished") == runs


@pytest.mark.slow  # the model waits two minutes for space
@pytest.mark.timeout(300)
def test_a_full_disk_is_named(start, tmp_path) -> None:
    (tmp_path / "script.py").write_text(ONE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.unfinished").symlink_to("/dev/full")
    started = command(start, "train", "script.py", "--workers", "1", "--output", "out")
    assert started.finish(240) == 1
    assert "no space left on the disk of out; free some" in started.text()
    assert "Traceback" not in started.text()


def test_the_version_is_told_without_loading_torch() -> None:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "manyhands", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("manyhands ")
    assert " torch\n" not in told.stderr


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("ddp", "allreduce()"),
        ("DDP()", "allreduce()"),
        ("horovod", "allreduce()"),
        ("MultiWorkerMirroredStrategy", "allreduce()"),
        ("mirrored", "allreduce()"),
        ("fsdp", "fully_sharded()"),
        ("zero1", "zero(stage=1)"),
        ("deepspeed(stage=3)", "zero(stage=2)"),
        ("parameter_server", "asynchronous()"),
    ],
)
def test_names_of_other_projects_are_translated(name, here) -> None:
    with pytest.raises(ValueError, match=re.escape(f"its name here is {here}\n")):
        strategy(name)
    strategy(here)


def test_many_workers_on_few_cores_are_mentioned() -> None:
    assert crowded(100, 2).startswith("100 workers share 2 cores: each computes about 50 times")
    assert crowded(3, 1).startswith("3 workers share 1 core:")
    assert crowded(4, 2) == ""


def test_a_cluster_of_several_hosts_is_refused() -> None:
    hosts = tuple(Host(name=name, cores=2, memory=1 << 30) for name in ("a", "b"))
    with pytest.raises(ValueError, match=r"the cluster has 2 hosts: name them with hosts="):
        _plan(None, TrainOptions(workers=2, cluster=Cluster(hosts=hosts)), Command(), None)
