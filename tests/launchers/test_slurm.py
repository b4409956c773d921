"""Slurm's notation, the batch file, and what is said where there is no Slurm."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from manyhands.cli.app import app
from manyhands.failure import RunFailed
from manyhands.launchers.slurm import BatchJob, submit
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.invitation import Invitation
from manyhands.live.hosts.slurm import (
    TASKS,
    Allocation,
    expand_counts,
    expand_nodes,
    read_hosts,
    step_environment,
)

JOB = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[008-011,3],login", ["n008", "n009", "n010", "n011", "n3", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu-a[1,3]-ib0.site", ["gpu-a1-ib0.site", "gpu-a3-ib0.site"]),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == tuple(nodes)


@pytest.mark.parametrize("text", ["", "n[1-3", "n[3-1]", "n[a-b]", "n1,,n2", "n[]", "n[1-999999]"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="list of nodes"):
        expand_nodes(text)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), min_size=1, max_size=8))
def test_counts_are_expanded(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
    whole = tuple(count for count, times in parts for _ in range(times))
    assert expand_counts(text, len(whole)) == whole
    with pytest.raises(ValueError, match="but there are"):
        expand_counts(text, len(whole) + 1)


@pytest.mark.parametrize("text", ["", "two", "2(x", "2(x2)3", "-1"])
def test_what_are_no_counts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Slurm's form"):
        expand_counts(text, 1)


@pytest.mark.parametrize(
    ("variables", "workers"),
    [
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,2"}, (3, 2)),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "4(x2)"}, (4, 4)),
        ({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_CPUS_PER_NODE": "2,64"}, (2, 4)),
        ({"SLURM_GPUS_PER_NODE": "a100:8", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, (8, 8)),
        # In a step, srun has replaced the tasks of the job by its own.
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_TASKS_PER_NODE": "1",
                "SLURM_NTASKS_PER_NODE": "2",
            },
            (2, 2),
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", TASKS: "3,2"}, (3, 2)),
    ],
)
def test_workers_are_tasks_or_gpus_or_cpus(
    variables: dict[str, str], workers: tuple[int, ...]
) -> None:
    assert Allocation.read({**JOB, **variables}).workers == workers


def test_this_node_is_the_first_host() -> None:
    about = {"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1,2", "SLURMD_NODENAME": "n2"}
    hosts = Allocation.read({**JOB, **about}).hosts
    assert str(hosts) == "n2:2, n1:1"
    assert hosts.started_by == "slurm"
    assert Hosts.read("n2:2, n1:1").started_by == ""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_JOB_NODELIST": ""}, "this process is in none"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "4 tasks were started by srun, and a run is started once"),
        ({"SLURMD_NODENAME": "n9"}, "none of the nodes"),
    ],
)
def test_a_wrong_place_is_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Allocation.read({**JOB, **variables})


def test_outside_of_the_nodes_the_fix_is_said() -> None:
    outside = {name: value for name, value in JOB.items() if name != "SLURMD_NODENAME"}
    with pytest.raises(ValueError, match="put `srun --nodes=1 --ntasks=1"):
        _ = Allocation.read(outside).hosts


def test_options_of_the_job_do_not_become_options_of_a_step() -> None:
    of_job = {"SLURM_NTASKS": "4", "SLURM_MEM_PER_CPU": "9", "SLURM_CPU_BIND_TYPE": "cores"}
    of_job |= {"SLURM_GPUS": "8", "SLURM_GPUS_PER_TASK": "1", "SLURM_STEP_ID": "0"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_CONF": "slurm.conf", "PATH": "/bin"}
    assert step_environment({**of_job, **kept}) == kept


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


def test_without_an_allocation_nothing_is_started(outside, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("raise SystemExit('it was executed')\n")
    with pytest.raises(ValueError, match="manyhands slurm"):
        read_hosts("slurm")
    refused = CliRunner().invoke(app, ["train", "script.py", "--hosts", "slurm"])
    assert refused.exit_code == 2
    assert "SLURM_JOB_NODELIST is not set" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_without_srun_the_run_fails_in_words(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    hosts = Hosts((("n1", 1), ("n2", 1)), "slurm")
    invitation = Invitation(tmp_path, hosts, tmp_path / "script.py")
    with pytest.raises(RunFailed, match=r"srun, .* is not in PATH"):
        invitation.open("tcp://127.0.0.1:1")
    invitation.close()
    assert not invitation.key.exists()


FILE = """\
#!/bin/bash
# Written by `manyhands slurm`; submit it with sbatch.
#SBATCH --job-name=script
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=1:00:00
#SBATCH --partition=gpu
#SBATCH --chdir=/home/me
#SBATCH --output=script-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --account=physics

run=runs/script-$SLURM_JOB_ID
"""
COMMAND = """\
/venv/python -m manyhands train script.py --hosts slurm \\
    --strategy 'ssp(staleness=4)' \\
    --seed=-1 \\
    --checkpoint 10min \\
    --output "$run" \\
    -- --lr '0.1; ls' &
"""


def test_the_text_of_the_batch_file() -> None:
    job = BatchJob(
        script=Path("script.py"),
        options=["--strategy=ssp(staleness=4)", "--seed=-1", "--checkpoint=10min"],
        arguments=["--lr", "0.1; ls"],
        nodes=2,
        workers_per_node=4,
        time="1:00:00",
        partition="gpu",
        grace=90,
        sbatch=["--account=physics"],
        folder=Path("/home/me"),
        python="/venv/python",
    )
    assert job.text.startswith(FILE)
    assert COMMAND in job.text
    subprocess.run(["bash", "-n"], input=job.text, text=True, check=True)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"time": "an hour"}, "'an hour' is not of Slurm's form"),
        ({"time": "1:00\n#"}, "is not of Slurm's form"),
        ({"sbatch": ["--account=a\nrm"]}, "not an option of sbatch in one line"),
        ({"sbatch": ["account"]}, "not an option of sbatch"),
        ({"partition": "a b"}, "partition 'a b'"),
        ({"folder": Path("/home/my files")}, "has a space in its name"),
    ],
)
def test_what_cannot_be_in_a_batch_file_is_refused(about: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchJob(**{"script": Path("script.py"), "folder": Path("/"), **about})


def test_the_command_writes_a_file_once(outside, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("")
    given_ = ["slurm", "script.py", "--nodes", "2", "--set", "a=1", "--set", "b=2", "--epochs", "3"]
    for _ in range(2):
        done = CliRunner().invoke(app, [*given_, "--", "--mine"])
        assert done.exit_code == 0, done.output
        assert "sbatch script.sbatch" in done.stdout
    text = Path("script.sbatch").read_text()
    train = next(line for line in text.replace("\\\n", " ").splitlines() if " train " in line)
    words = shlex.split(train.removesuffix("&").replace('"$run"', "RUN"))
    assert words[:3] == [sys.executable, "-m", "manyhands"]
    options = [*("--epochs", "3.0"), *("--set", "a=1", "--set", "b=2"), *("--checkpoint", "10min")]
    expected = ["train", "script.py", "--hosts", "slurm", *options, "--output", "RUN", "--"]
    assert words[3:] == [*expected, "--mine"]
    other = CliRunner().invoke(app, ["slurm", "script.py", "--nodes", "3"])
    assert other.exit_code == 2
    assert "script.sbatch exists and differs" in other.stderr
    assert Path("script.sbatch").read_text() == text


def test_what_cannot_be_submitted_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="sbatch is not in PATH: submit job"):
        submit(Path("job"))


SHELL = """
import os, pathlib, signal, sys, time
checkpoints = pathlib.Path(sys.argv[1], "checkpoints")
checkpoints.mkdir(parents=True, exist_ok=True)
def leave(*_):
    if {stores}:
        (checkpoints / "000000000012").mkdir()
    sys.exit(138)
signal.signal(signal.SIGUSR1, leave)
if {told}:
    os.kill(os.getppid(), signal.SIGUSR1)
    time.sleep(60)
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("told", "stores", "code", "requeued"),
    [(True, True, 138, True), (True, False, 138, False), (False, False, 0, False)],
)
def test_the_shell_passes_the_signal_on_and_requeues_what_was_stored(
    tmp_path: Path, told, stores, code, requeued
) -> None:
    """The batch file, executed by bash, with programs in place of the run and of scontrol."""
    (tmp_path / "train.py").write_text(SHELL.format(told=told, stores=stores, code=code))
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > requeued\n')
    (tmp_path / "scontrol").chmod(0o700)
    job = BatchJob(script=Path("script.py"), output=Path("runs/a b"), folder=tmp_path)
    text = job.text.replace(job._train, f"{sys.executable} train.py 'runs/a b'")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "12"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == code, done.stderr
    asked = tmp_path / "requeued"
    assert asked.exists() == requeued
    assert not requeued or asked.read_text() == "requeue 12\n"
    assert ("no checkpoint was stored" in done.stderr) == (told and not stores)
