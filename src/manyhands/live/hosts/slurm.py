"""Slurm: the nodes of an allocation as hosts, and job steps that join from the other nodes.

`--hosts slurm` reads the allocation from Slurm's environment variables. The process that is started
in it, once, is the agent of the first host. When the coordinator listens, `srun` starts
`manyhands join` on each of the other nodes, as a step of the same job. The key of the run is a file
in the run's folder that only its owner can read; a command line has its path.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from manyhands.failure import RunFailed
from manyhands.live.hosts.host_list import Hosts
from manyhands.transport.interfaces import address_towards

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SLURM: Final = "slurm"
"""What `--hosts` takes for the nodes of this allocation, and what starts hosts there."""
TASKS: Final = "MANYHANDS_SLURM_TASKS"
"""Environment variable with the tasks of each node, where a step has replaced Slurm's own."""
_WITHOUT_GPU: Final = 4
"""Workers on a node of many CPUs, if neither tasks nor GPUs were asked for."""
_PARTING: Final = 10.0
"""Seconds in which joined nodes must have left when the run is over."""
_ENTRY: Final = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MOST: Final = 100_000
_OF_TASKS: Final = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_\w+|TASKS_PER_NODE|CPUS_PER_TASK|CPUS_PER_GPU|TRES_PER_TASK"
    r"|MEM_PER_\w+|CPU_BIND\w*|DISTRIBUTION|EXACT|STEP_\w+|STEPID|HINT|CORE_SPEC|THREADS\w*"
    r"|GPUS|GPUS_PER_(TASK|SOCKET)|GPU_BIND|GPU_FREQ)"
)
"""Variables from which srun would take options that are those of the whole job."""


def expand_nodes(text: str) -> tuple[str, ...]:
    """The nodes of a list in Slurm's notation, in order.

    Raises:
        ValueError: the text is no such list.

    >>> expand_nodes("n[1-3,08],login")
    ('n1', 'n2', 'n3', 'n08', 'login')
    """
    entries = _ENTRY.findall(text)
    if not entries or ",".join(entries) != text:
        raise ValueError(f"{text!r} is not a list of nodes of Slurm, as in n[1-4],login")
    nodes = [node for entry in entries for node in _expand(entry, text)]
    if len(nodes) > _MOST:
        raise ValueError(f"the list of nodes {text!r} has {len(nodes)}, more than {_MOST}")
    return tuple(nodes)


def _expand(entry: str, text: str) -> list[str]:
    """The nodes of one entry, which may have several ranges."""
    head, bracket, rest = entry.partition("[")
    if not bracket:
        return [head]
    inner, _, tail = rest.partition("]")
    numbers = []
    for part in inner.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < _MOST:
            raise ValueError(f"{part!r} in the list of nodes {text!r} is not a range, as in 1-4")
        numbers += [f"{one:0{len(first)}}" for one in range(int(first), int(last) + 1)]
    tails = _expand(tail, text)
    return [f"{head}{number}{after}" for number in numbers for after in tails]


def expand_counts(text: str, nodes: int) -> tuple[int, ...]:
    """The numbers of all nodes in Slurm's notation, such as `SLURM_TASKS_PER_NODE`.

    Raises:
        ValueError: the text does not have a number for each node.

    >>> expand_counts("4(x2),1", 3)
    (4, 4, 1)
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if match is None or times > _MOST:
            raise ValueError(f"{text!r} is not of Slurm's form for numbers of nodes, as in 4(x2),1")
        counts += [int(match[1])] * times
    if len(counts) != nodes:
        raise ValueError(f"{text!r} has numbers for {len(counts)} nodes, but there are {nodes}")
    return tuple(counts)


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of Slurm, each with its number of workers."""

    nodes: tuple[str, ...]
    workers: tuple[int, ...]
    here: str | None
    """The node of this process; None if it is outside, as after `salloc` on a login node."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Allocation:
        """Read the allocation of this process from its environment.

        A node has a worker for each of its tasks; if the job asked for no tasks, for each GPU; else
        for each of its CPUs, at most four.

        Raises:
            ValueError: there is no allocation, or this process is one of several tasks.
        """
        listed = environment.get("SLURM_JOB_NODELIST")
        if not listed:
            raise ValueError(
                "hosts 'slurm' are the nodes of an allocation, and this process is in none "
                "(SLURM_JOB_NODELIST is not set): submit a job that `manyhands slurm script.py "
                "--nodes 2` writes, or run this command within sbatch or salloc"
            )
        tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
        if tasks != "1":
            raise ValueError(
                f"{tasks} tasks were started by srun, and a run is started once: leave out srun, "
                "or use srun --ntasks=1; workers on all nodes are started by the run"
            )
        nodes = expand_nodes(listed)
        here = environment.get("SLURMD_NODENAME")
        if here is not None and here not in nodes:
            raise ValueError(f"SLURMD_NODENAME is {here}, which is none of the nodes {listed}")
        return cls(nodes, _workers(environment, len(nodes)), here)

    @property
    def hosts(self) -> Hosts:
        """The nodes as hosts of a run, this one first.

        Raises:
            ValueError: this process is on no node of the allocation.
        """
        if self.here is None:
            raise ValueError(
                f"this host is no node of the allocation ({', '.join(self.nodes)}), as after "
                "salloc on a login node: put `srun --nodes=1 --ntasks=1 --overlap "
                "--cpu-bind=none` before the command"
            )
        counts = dict(zip(self.nodes, self.workers, strict=True))
        order = [self.here, *(node for node in self.nodes if node != self.here)]
        return Hosts(tuple((node, counts[node]) for node in order), SLURM)


def _workers(environment: Mapping[str, str], nodes: int) -> tuple[int, ...]:
    """The number of workers of each node."""
    is_step = environment.get("SLURM_STEP_ID", "").isdecimal()
    if TASKS in environment:
        return expand_counts(environment[TASKS], nodes)
    if not is_step and {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"} & environment.keys():
        return expand_counts(environment["SLURM_TASKS_PER_NODE"], nodes)
    if "SLURM_NTASKS_PER_NODE" in environment:
        return (int(environment["SLURM_NTASKS_PER_NODE"]),) * nodes
    gpus = re.search(r"\d+$", environment.get("SLURM_GPUS_PER_NODE", ""))
    if gpus:
        return (int(gpus[0]),) * nodes
    cpus = expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", f"1(x{nodes})"), nodes)
    return tuple(min(count, _WITHOUT_GPU) for count in cpus)


def read_hosts(text: str) -> Hosts:
    """The hosts of a text such as `a:4, b:4`, or of the allocation if it is `slurm`.

    Raises:
        ValueError: the text is of neither form, or there is no allocation.
    """
    return Allocation.read().hosts if text.strip() == SLURM else Hosts.read(text)


def listening_address(hosts: Hosts) -> str:
    """This node's address on the route to the second one, at the address that Slurm has for it.

    Raises:
        ValueError: there is no route.
    """
    other = _node_address(hosts.names[1])
    try:
        return address_towards(other, 9)
    except OSError as error:
        raise ValueError(
            f"this node has no route to {hosts.names[1]} at {other} ({error.strerror}): choose an "
            "address that it can reach with --listen ADDRESS"
        ) from None


def _node_address(node: str) -> str:
    """The address at which Slurm reaches a node; its name if Slurm does not say."""
    with contextlib.suppress(OSError):
        shown = subprocess.run(  # noqa: S603 - a node of this allocation
            ["scontrol", "--oneliner", "show", "node", node],  # noqa: S607 - as users find it
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.search(r"\bNodeAddr=(\S+)", shown.stdout)
        if found:
            return found[1]
    return node


def step_command(node: str) -> list[str]:
    """The srun command that executes another one once on a node, with all that the job has there.

    Other steps may be on the node (`--overlap`), workers share its CPUs among themselves
    (`--cpu-bind=none`), and a job with `--export=NONE` passes its environment on (`--export=ALL`).
    """
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap"),
        *("--cpu-bind=none", "--mem=0", "--export=ALL"),
    ]


def step_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what srun would take for options of the step."""
    return {name: one for name, one in environment.items() if not _OF_TASKS.fullmatch(name)}


class JoinSteps:
    """The steps of a job by which the other nodes join a run; they write to the run's folder.

    Args:
        folder: the run's folder, which all nodes share.
        hosts: the nodes, this one first.
        place: address and port at which the first host listens.
        key: the file with the key of the run.
        script: the script that is executed.

    Raises:
        RunFailed: there is no srun.
    """

    def __init__(self, folder: Path, hosts: Hosts, place: str, key: Path, script: Path) -> None:
        if shutil.which("srun") is None:
            raise RunFailed("srun, which starts workers on the other nodes, is not in PATH")
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder / "hosts"
        for node in hosts.names[1:]:
            own = self._folder / node
            own.mkdir(parents=True, exist_ok=True)
            join = ("join", place, "--key-file", str(key), "--as", node, "--output", str(own))
            here = len(hosts.ranks(node))
            count = ("--workers", str(here)) if here else ()
            with self._log(node).open("wb") as log:
                self._steps[node] = subprocess.Popen(  # noqa: S603 - our own command
                    [
                        *step_command(node),
                        *(sys.executable, "-m", "manyhands", *join, str(script), *count),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=step_environment(),
                    # Ctrl-C is for the agent alone, which ends the steps.
                    start_new_session=True,
                )

    @property
    def words(self) -> str:
        """What was started, for the user."""
        shown = os.path.relpath(self._folder)
        return f"srun starts the workers on {', '.join(self._steps)}; their output is in {shown}"

    def _log(self, node: str) -> Path:
        return self._folder / node / "join.txt"

    def check(self) -> None:
        """Raise RunFailed if a step has ended: before it began, a run would wait for it forever."""
        for node, step in self._steps.items():
            code = step.poll()
            if code is not None:
                words = self._log(node).read_text(encoding="utf-8", errors="replace").strip()
                raise RunFailed(f"{node} could not join (srun ended with code {code}): {words}")

    def close(self) -> None:
        """Wait until all nodes have left, and end the steps of those that have not."""
        for step in self._steps.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(_PARTING)
        left = [step for step in self._steps.values() if step.poll() is None]
        for step in left:
            step.terminate()
        for step in left:
            try:
                step.wait(_PARTING)
            except subprocess.TimeoutExpired:
                step.kill()
                step.wait()
