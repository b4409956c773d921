"""Real jobs of a real Slurm: two nodes train together, and a time limit loses nothing."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from slurm_cluster import SlurmCluster, obstacle, slurm_cluster, wait_until_quiet

from manyhands.live.hosts.slurm import expand_nodes
from manyhands.reports import Run
from manyhands.reports.figures.speed import accounting
from support import ROOT, wait_for

MANYHANDS = (sys.executable, "-m", "manyhands")
DATA = os.environ.get("MANYHANDS_DATA", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(obstacle()), reason=f"no cluster of Slurm: {obstacle()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster for all tests of this file; none of its processes is left."""
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster(folder) as made:
        yield made
    wait_until_quiet(made)
    assert not [pid for pid in made.daemons if psutil.pid_exists(pid)]


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Write a batch file with `manyhands slurm` and submit it; the job's id."""

    def begin(*options: str | Path) -> str:
        said = cluster.run(*MANYHANDS, "slurm", *options, "--submit", cwd=tmp_path)
        return re.search(r"submitted as job (\d+)", said)[1]

    yield begin
    cluster.cancel_all()


def secrets_shown(key: Path) -> list[list[str]]:
    """Command lines, of all processes of this machine, that have the key of a run in them."""
    digits, found = key.read_text().strip(), []
    assert len(digits) == 64
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            found += [line] if any(digits in word for word in line) else []
    return found


@pytest.mark.skipif(
    not DATA or not Path(DATA, "mnist").is_dir(), reason="no MNIST in MANYHANDS_DATA"
)
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_two_nodes_with_four_workers_learn_mnist(
    cluster: SlurmCluster, submit, tmp_path: Path, strategy: str
) -> None:
    (tmp_path / "mnist.py").write_text((ROOT / "examples" / "mnist.py").read_text())
    job = submit("mnist.py", "--nodes=2", "--workers-per-node=2", f"--strategy={strategy}")
    folder, output = tmp_path / "runs" / f"mnist-{job}", tmp_path / f"mnist-{job}.out"
    joined = folder / "hosts" / "n2" / "join.txt"
    wait_for(lambda: joined.exists() and "joined" in joined.read_text(), 120, "n2")
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert secrets_shown(folder / "key") == []
    cluster.finish(job, output, 600)
    run = Run(folder)
    assert run.status == "finished"
    assert run.metrics["accuracy"] >= 0.97, run.summary()
    assert "4 workers, 2 hosts" in run.summary()
    assert "60,000 seen, 0 repeated, 0 lost" in run.summary()
    assert {process.header.host for process in run.trace.processes} == {"n1", "n2"}
    assert not (folder / "key").exists()
    wait_until_quiet(cluster)


SLOW = """
import pathlib, time
import torch, torch.nn.functional as F
import manyhands as mh

torch.set_default_dtype(torch.float64)
source = torch.Generator().manual_seed(0)
inputs = torch.randn(STEPS * 12, 6, generator=source)
targets = torch.randint(0, 4, (STEPS * 12,), generator=source)

calls = 0

def loss(outputs, targets):
    global calls
    if torch.is_grad_enabled():
        calls += 1
        first, second = map(float, pathlib.Path("pause").read_text().split())
        if calls == STEPS // 2:
            pathlib.Path("half").touch()
        time.sleep(first if calls <= STEPS // 2 else second)
    return F.cross_entropy(outputs, targets)

job = mh.Job(
    model=lambda: torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4),
    ),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.02),
    loss=loss,
    data=torch.utils.data.TensorDataset(inputs, targets),
    global_batch=12,
    epochs=1,
    metrics=(),
)

if __name__ == "__main__":
    print(mh.train(job, "allreduce()", hosts="slurm").summary())
"""
STEPS = 150


@pytest.fixture
def pause(tmp_path: Path) -> Callable[[float, float], None]:
    """A job in float64, slow.py; the fixture sets how long steps of each half of it take."""

    def write(first: float, second: float) -> None:
        (tmp_path / "pause").write_text(f"{first} {second}")

    (tmp_path / "slow.py").write_text(SLOW.replace("STEPS", str(STEPS)))
    write(0, 0)
    return write


def test_a_job_that_meets_its_time_limit_is_requeued_and_loses_nothing(
    cluster: SlurmCluster, submit, pause, tmp_path: Path
) -> None:
    about = ("slow.py", "--nodes=2", "--workers-per-node=1", "--strategy=allreduce()")
    # The first half of the epoch takes 8 s, the second one would take six minutes.
    pause(0.1, 5)
    job = submit(*about, "--time=30", "--grace=30", "--checkpoint=1h", "--output=runs/cut")
    output, cut = tmp_path / f"slow-{job}.out", tmp_path / "runs" / "cut"
    wait_for((tmp_path / "half").exists, 300, "half of the epoch")
    # The job's limit comes now, whatever the machine took to start. Slurm looks at limits every
    # 30 s, and sends the signal at most 30 s earlier than asked.
    spent = cluster.fields(job)["RunTime"].split(":")
    limit = int(spent[0]) * 60 + int(spent[1]) + 2
    cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    wait_for(lambda: cluster.state(job, "Restarts") == "1", 240, "the requeued job")
    pause(0, 0)
    # By itself Slurm begins a requeued job after two minutes.
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=30")
    said = cluster.finish(job, output, 400)
    assert said["Restarts"] == "1"
    words = output.read_text()
    stored = [int(number) for number in re.findall(r"stored: \S*(\d{12})\b", words)]
    assert len(stored) == words.count("continues from") == 1
    assert 0 < stored[0] < STEPS * 12

    whole = submit(*about, "--checkpoint=1h", "--output=runs/whole", "--file=whole.sbatch")
    cluster.finish(whole, tmp_path / f"slow-{whole}.out", 200)
    first, second = (Run(tmp_path / "runs" / name) for name in ("cut", "whole"))
    apart = [
        (one - second.state_dict()[name]).abs().max().item()
        for name, one in first.state_dict().items()
    ]
    assert max(apart) <= 1e-9
    counted = [accounting(part.trace) for part in (Run(cut / "earlier" / "1"), first)]
    assert [(one.repeated, one.lost) for one in counted] == [(0, 0), (0, 0)]
    assert counted[1].seen == second.samples == STEPS * 12


@pytest.mark.parametrize("steps", [True, False], ids=["command", "Python"])
def test_an_interactive_allocation(
    cluster: SlurmCluster, pause, tmp_path: Path, steps: bool
) -> None:
    """`salloc` leaves the shell outside of the nodes: the command goes to the first of them."""
    allocate = ("salloc", "--nodes=2", "--ntasks-per-node=1")
    command = (*MANYHANDS, "train", "slow.py", "--hosts=slurm", "--strategy=allreduce()")
    if not steps:
        srun = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none")
        command = (*srun, sys.executable, "slow.py")
    said = cluster.run(*allocate, *command, cwd=tmp_path, seconds=150)
    assert "allreduce() on 2 workers, 2 hosts: finished" in said
    assert "1,800 seen, 0 repeated, 0 lost" in said


def test_a_node_that_cannot_take_part_ends_the_run_in_words(
    cluster: SlurmCluster, pause, tmp_path: Path
) -> None:
    text = (tmp_path / "slow.py").read_text()
    here = "import os\nif os.environ.get('SLURMD_NODENAME') == 'n2':\n"
    (tmp_path / "slow.py").write_text(f"{here}    raise RuntimeError('no disk')\n{text}")
    job = cluster.run(*MANYHANDS, "slurm", "slow.py", "--nodes=2", "--submit", cwd=tmp_path)
    job = re.search(r"job (\d+)", job)[1]
    wait_for(lambda: cluster.state(job) == "FAILED", 120, "the failed job")
    words = (tmp_path / f"slow-{job}.out").read_text()
    assert "n2 could not join" in words
    assert "RuntimeError: no disk" in words
    wait_until_quiet(cluster)


def test_lists_of_nodes_are_expanded_as_slurm_does(cluster: SlurmCluster) -> None:
    for text in ("n1", "n[1-2]", "a[08-11,3],b", "r[1-2]n[09-10],login", "n[1-3,5-6,010]"):
        assert (
            "\n".join(expand_nodes(text))
            == cluster.run("scontrol", "show", "hostnames", text).strip()
        )
