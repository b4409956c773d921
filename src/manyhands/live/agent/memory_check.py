"""Memory: what a run needs on one host at least, held against what is available.

A run that does not fit is ended by the kernel's out-of-memory killer, minutes after its start and
in words that name one process. What plainly cannot fit is refused before anything is started; what
nearly fills the memory is said. The estimate is a lower bound: the optimizer's state, activations
and what a script allocates besides come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.job import Job
    from manyhands.strategies import Strategy

FORKED = 35 * 1024 * 1024
"""Private bytes of a forked process with a small model: 35 to 42 MB were measured for a worker with
LeNet (Python 3.11, torch 2.13), 29 MB for a server. Half of them are pages of the nursery that are
copied because reference counts lie in them."""
AFRESH = 150 * 1024 * 1024
"""The same of a process that loaded torch itself."""
_NEAR = 0.8
"""The share of the available memory from which on a word is said."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What the processes of one host need at least, in bytes."""

    workers: int
    servers: int
    process: int
    """A process without the job."""
    data: int
    """A worker's copy of the data, if each has one."""
    model: int
    """A worker's parameters and gradients."""
    shared: int
    """The servers' shards together, or what all share."""

    @property
    def worker(self) -> int:
        """One worker."""
        return self.process + self.data + self.model

    @property
    def rest(self) -> int:
        """All but the workers."""
        return self.servers * self.process + self.shared

    @property
    def total(self) -> int:
        """All of it."""
        return self.workers * self.worker + self.rest

    def check(self, memory: int, swap: int = 0) -> str:
        """A warning if it nearly fills what is available; empty if there is no need for one.

        Raises:
            ValueError: it does not fit.
        """
        has = f"and {_bytes(memory)} are available"
        if self.total > memory + swap:
            most = max(0, (memory + swap - self.rest) // self.worker)
            copies = (
                ". Each worker has a copy of the data that its script makes: data in a file that "
                "is mapped (numpy.memmap, mh.data) is there once for all of them"
            )
            raise ValueError(
                f"{self._words()}, {has}: use at most {most} workers on this host, or more hosts"
                f"{copies if 2 * self.data > self.worker else ''}"
            )
        if self.total > _NEAR * memory:
            return f"{self._words()}, {has}; the kernel may kill processes of the run"
        return ""

    def _words(self) -> str:
        parts = [f"{_bytes(self.process)} for the process"]
        parts += [f"{_bytes(self.data)} for its data"] if self.data else []
        parts += [f"{_bytes(self.model)} for parameters and gradients"] if self.model else []
        return (
            f"{self.workers} workers need at least {_bytes(self.total)} of memory "
            f"({_bytes(self.worker)} each: {', '.join(parts)})"
        )


def estimate(
    job: Job,
    strategy: Strategy,
    workers: int,
    here: int,
    devices: Sequence[str],
    *,
    forks: bool,
    first: bool = True,
) -> MemoryEstimate:
    """The footprint of a job's processes on one host.

    Args:
        job: what is trained; its model is made once, without memory, on the meta device.
        strategy: how.
        workers: of all hosts.
        here: of this host.
        devices: what the workers compute on.
        forks: whether processes are forked, and so share what they have loaded.
        first: whether it is the first host, which has the servers.
    """
    on_cpu = all(device == "cpu" for device in devices)
    servers = shared = model = 0
    size = _model_bytes(job) if on_cpu else 0
    needs = strategy.needs(workers)
    if needs.leases:
        if first and not needs.peer_servers:
            servers, shared = needs.servers, size
        # Its update; its parameters, unless they are shared; and what it answers others with.
        kept = (not needs.shared_memory) + needs.own_parameters + needs.peer_servers
        model = size * (1 + kept)
    elif on_cpu:
        model = _placed_bytes(job, strategy, workers)
    process = FORKED if forks else AFRESH
    return MemoryEstimate(here, servers, process, _data_bytes(job), model, shared)


def available() -> tuple[int, int]:
    """Bytes of memory that processes may still take, and of swap space."""
    facts: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) * 1024
    return min(facts["MemAvailable"], _left_in_group()), facts.get("SwapFree", 0)


def _left_in_group() -> int:
    """What the control groups of this process leave it: containers have less than the machine."""
    least = 1 << 62
    try:
        path = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("0::/")[2].strip()
        root = Path("/sys/fs/cgroup")
        for folder in (root / path, *(root / path).parents):
            limit = folder / "memory.max"
            if limit.exists() and (most := limit.read_text(encoding="ascii").strip()) != "max":
                used = int((folder / "memory.current").read_text(encoding="ascii"))
                least = min(least, int(most) - used + _evictable(folder))
            if folder == root:
                break
    except (OSError, ValueError):  # another version of control groups, or none
        pass
    return max(0, least)


def _evictable(group: Path) -> int:
    """Bytes of a control group that only cache files."""
    lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _model_bytes(job: Job) -> int:
    """Bytes of the model's parameters; 0 if they cannot be told without making it."""
    import torch  # noqa: PLC0415 - an agent that only joins needs none

    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            parameters = [*job.model().parameters()]
    except Exception:  # noqa: BLE001 - whatever it is, the workers will show it
        return 0
    return sum(one.numel() * one.element_size() for one in parameters)


def _placed_bytes(job: Job, strategy: Strategy, workers: int) -> int:
    from manyhands.strategies import placement_of  # noqa: PLC0415 - see above

    try:
        if placement := placement_of(strategy):
            return placement.forecast_job(job, workers).memory
    except Exception:  # noqa: BLE001, S110 - what it cannot forecast it will refuse in its own words
        pass
    return 0


def _data_bytes(job: Job) -> int:
    """Bytes of the tensors that a script makes for its data, in every process that executes it."""
    from torch.utils.data import ConcatDataset, Subset, TensorDataset  # noqa: PLC0415 - see above

    found: dict[int, int] = {}
    looked: list[object] = [job.data, job.validation]
    while looked:
        data = looked.pop()
        if isinstance(data, Subset):
            looked.append(data.dataset)
        elif isinstance(data, ConcatDataset):
            looked.extend(data.datasets)
        elif type(data) is TensorDataset:
            for tensor in data.tensors:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = 0 if storage.is_shared() else storage.nbytes()
    return sum(found.values())


def _bytes(count: int) -> str:
    if count < 100e6:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
