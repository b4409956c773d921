"""Jobs for Slurm: a batch file that trains on all nodes of a job and survives its time limit.

The file is plain: `#SBATCH` lines, one `manyhands train … --hosts slurm`, and what follows when
Slurm announces the time limit. Slurm sends SIGUSR1 to the batch shell alone (`--signal=B:USR1@60`).
The shell passes it to the run, which stores a checkpoint and ends with code 138 (128 + SIGUSR1). If
there is a new checkpoint, the shell puts the job into the queue again (`scontrol requeue`). The
next attempt executes the same file, and the same command continues the unfinished run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from manyhands.live.hosts.slurm import TASKS, Allocation, step_command, step_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TIME: Final = re.compile(r"\d+(:\d\d?){0,2}|\d+-\d\d?(:\d\d?){0,2}|infinite|unlimited")
_LINE: Final = re.compile(r"-[^\s#][^\n]*")
_BATCH: Final = r"""
run={run}
last() {{ ls -d "$run"/checkpoints/[0-9]* 2>/dev/null | tail -n 1; }}
before=$(last)
if [[ ${{SLURM_RESTART_COUNT:-0}} -gt 0 && -z $before && -d $run ]]; then
  # The attempt before ended without a checkpoint.
  mv "$run" "$run-attempt-$SLURM_RESTART_COUNT"
fi

# Slurm sends SIGUSR1 to this shell {grace} s or more before the time limit.
trap 'kill -USR1 "$train"' USR1
{command} &
train=$!
while kill -0 "$train" 2>/dev/null; do
  wait "$train"
  code=$?
done

# 138: the run was told to end by SIGUSR1, and stored a checkpoint. This file continues it.
if [[ $code == 138 && $(last) != "$before" ]]; then
  scontrol requeue "$SLURM_JOB_ID"
elif [[ $code == 138 ]]; then
  echo "no checkpoint was stored before the time limit: the job is not requeued" >&2
fi
exit "$code"
"""


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A job for Slurm, as its user describes it.

    Args:
        script: the script to train.
        options: options of `manyhands train`, without the script, --hosts, --workers, --output.
        arguments: arguments of the script.
        nodes: number of nodes.
        workers_per_node: workers on each node; each is a task for Slurm.
        time: the time limit, in Slurm's form; None for the partition's.
        partition: the partition; None for the default one.
        grace: seconds before the time limit at which the run is told to end.
        output: the run's folder; None for one in `runs` with the id of the job.
        sbatch: further options of sbatch.
        folder: the folder in which the job runs.
        python: the Python that executes it.

    Raises:
        ValueError: a value cannot be in a batch file; the message states why.
    """

    script: Path
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()
    nodes: int = 1
    workers_per_node: int = 1
    time: str | None = None
    partition: str | None = None
    grace: int = 60
    output: Path | None = None
    sbatch: Sequence[str] = ()
    folder: Path
    python: str = sys.executable

    def __post_init__(self) -> None:
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise ValueError(
                f"the time limit {self.time!r} is not of Slurm's form: 90 (minutes), 1:30:00 or "
                "2-12:00:00 (days)"
            )
        if self.partition is not None and not re.fullmatch(r"[\w.,-]+", self.partition):
            raise ValueError(f"the partition {self.partition!r} is not a name")
        for line in self.sbatch:
            if not _LINE.fullmatch(line):
                raise ValueError(
                    f"{line!r} is not an option of sbatch in one line, as in --account=physics"
                )
        if re.search(r"\s", str(self.folder)):
            raise ValueError(
                f"the folder {str(self.folder)!r} has a space in its name, which lines of sbatch "
                "cannot have: start from another folder"
            )

    @property
    def text(self) -> str:
        """The batch file."""
        name = re.sub(r"[^\w.-]", "-", self.script.stem)
        lines = [
            f"--job-name={name}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.workers_per_node}",
            *([] if self.time is None else [f"--time={self.time}"]),
            *([] if self.partition is None else [f"--partition={self.partition}"]),
            f"--chdir={self.folder}",
            f"--output={name}-%j.out",
            "--open-mode=append",
            "--requeue",
            f"--signal=B:USR1@{self.grace}",
            *self.sbatch,
        ]
        head = "".join(f"#SBATCH {line}\n" for line in lines)
        run = f"runs/{name}-$SLURM_JOB_ID" if self.output is None else shlex.quote(str(self.output))
        command = " \\\n    ".join([self._train, *self._pairs(), '--output "$run"', *self._rest])
        batch = _BATCH.format(run=run, grace=self.grace, command=command)
        return f"#!/bin/bash\n# Written by `manyhands slurm`; submit it with sbatch.\n{head}{batch}"

    @property
    def _train(self) -> str:
        words = [self.python, "-m", "manyhands", "train", str(self.script), "--hosts", "slurm"]
        return shlex.join(words)

    def _pairs(self) -> list[str]:
        return [_pair(*option.partition("=")) for option in self.options]

    @property
    def _rest(self) -> list[str]:
        return [f"-- {shlex.join(self.arguments)}"] if self.arguments else []

    def write(self, path: Path) -> None:
        """Write the batch file.

        Raises:
            ValueError: there is another file of this name, which may have been edited.
        """
        text = self.text
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise ValueError(
                f"{path} exists and differs from what would be written: remove it, or choose "
                "another name with --file"
            )
        path.write_text(text, encoding="utf-8")


def _pair(name: str, equals: str, value: str) -> str:
    """An option for a shell, with a space before its value unless that looks like an option."""
    if value[:1] in {"", "-"}:
        return shlex.quote(name + equals + value)
    return f"{name} {shlex.quote(value)}"


def submit(path: Path) -> str:
    """Submit a batch file; return the id of the job.

    Raises:
        ValueError: Slurm is not installed here, or refuses it.
    """
    if shutil.which("sbatch") is None:
        raise ValueError(
            f"sbatch is not in PATH: submit {path} where Slurm is installed, with sbatch {path}"
        )
    done = subprocess.run(  # noqa: S603 - the user's own file
        ["sbatch", "--parsable", str(path)],  # noqa: S607 - as users find it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"sbatch refused {path}: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]


def enter_first_node(words: Sequence[str]) -> NoReturn:
    """Replace this process by srun, which executes `manyhands` on the first node of the job.

    For a command that is given outside of the nodes, as after `salloc` on a login node.

    Args:
        words: the arguments of `manyhands`.

    Raises:
        ValueError: there is no srun.
    """
    allocation = Allocation.read()
    if shutil.which("srun") is None:
        raise ValueError("srun, which starts the run on the first node, is not in PATH")
    tasks = ",".join(map(str, allocation.workers))
    terminal = ["--pty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    command = [*step_command(allocation.nodes[0]), *terminal]
    command += [sys.executable, "-m", "manyhands", *words]
    os.execvpe("srun", command, {**step_environment(), TASKS: tasks})  # noqa: S606, S607 - no shell


def is_outside() -> bool:
    """Whether this process has an allocation, but is on none of its nodes."""
    return Allocation.read().here is None
