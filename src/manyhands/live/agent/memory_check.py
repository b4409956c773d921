"""Memory check: compares the memory that a run needs on one host with what is available.

A run that does not fit is ended by the kernel's out-of-memory killer, minutes after its start and
with a message about a single process. A run that cannot fit is refused before any process is
started; one that nearly fills the memory gives a warning. The estimate is a lower bound: what an
optimizer's step allocates, activations and other allocations of the script are not included.

On this machine what is available is known, and torch is loaded already. Of a declared host only its
whole memory is known, and the processes that load torch there count, too: its agent and its fork
server.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from manyhands.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.strategies import Strategy

FORKED = 35 * 1024 * 1024
"""Private bytes of a forked process with a small model: 35 to 42 MB were measured for a worker with
LeNet (Python 3.11, torch 2.13), 29 MB for a server. Half of them are pages of the fork server that
are copied because reference counts in them change."""
AFRESH = 150 * 1024 * 1024
"""Private bytes of a process that loaded torch itself."""
_WHOLE = frozenset(("single", "allreduce", "context"))
"""Placements whose workers have all of the optimizer's state; of others each has a part."""
_NEAR = 0.8
"""Fraction of the available memory above which a warning is given."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The least memory that the processes of one host need, in bytes."""

    workers: int
    servers: int
    process: int
    """Bytes of a process without the job."""
    data: int
    """Bytes of a worker's copy of the data, if each has one."""
    model: int
    """Bytes of a worker's parameters and gradients."""
    shared: int
    """Bytes of all servers' shards and optimizer state, or of parameters in shared memory."""
    state: int = 0
    """Bytes of a worker's optimizer state."""
    loaded: int = 0
    """Bytes of the processes that load torch, which are there once."""

    @property
    def worker(self) -> int:
        """Bytes of one worker."""
        return self.process + self.data + self.model + self.state

    @property
    def rest(self) -> int:
        """Bytes of everything except the workers."""
        return self.loaded + self.servers * self.process + self.shared

    @property
    def total(self) -> int:
        """Bytes of all processes."""
        return self.workers * self.worker + self.rest

    def most(self, memory: int) -> int:
        """The most workers for which there is room."""
        return max(0, (memory - self.rest) // self.worker)

    def check(self, memory: int, swap: int = 0) -> str:
        """A warning if the run nearly fills the available memory; otherwise an empty string.

        Raises:
            ValueError: the run does not fit.
        """
        has = f"and {_bytes(memory)} are available"
        if self.total > memory + swap:
            most = self.most(memory + swap)
            copies = (
                ". Each worker has its own copy of the data that the script creates; workers share "
                "data in a memory-mapped file (numpy.memmap, mh.data)"
            )
            remedy = f"use at most {counted(most, 'worker')} on this host, or more hosts"
            if not most:
                remedy = (
                    "one worker does not fit: use a host with more memory, or a strategy that "
                    "divides the model, such as fully_sharded()"
                )
            raise ValueError(
                f"{self._words()}, {has}: {remedy}{copies if 2 * self.data > self.worker else ''}"
            )
        if self.total > _NEAR * memory:
            return f"{self._words()}, {has}; the kernel may kill processes of the run"
        return ""

    def _words(self) -> str:
        parts = [f"{_bytes(self.process)} for the process"]
        parts += [f"{_bytes(self.data)} for its data"] if self.data else []
        parts += [f"{_bytes(self.model)} for parameters and gradients"] if self.model else []
        parts += [f"{_bytes(self.state)} for the optimizer's state"] if self.state else []
        beside = [f"{_bytes(self.loaded)} for the agent and the fork server"] if self.loaded else []
        if self.servers or self.shared:
            serving = counted(self.servers, "server")
            beside.append(f"{_bytes(self.rest - self.loaded)} for {serving}")
        also = f"; {' and '.join(beside)} beside them" if beside else ""
        workers = counted(self.workers, "worker")
        return (
            f"{workers} need{'s' if self.workers == 1 else ''} at least {_bytes(self.total)} of "
            f"memory ({_bytes(self.worker)} each: {', '.join(parts)}{also})"
        )


def estimate(
    job: Job,
    strategy: Strategy,
    workers: int,
    here: int,
    devices: Sequence[str],
    *,
    forks: bool,
    serving: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a job's processes on one host.

    Args:
        job: the job; its model is created once on the meta device, without memory.
        strategy: the strategy.
        workers: number of workers on all hosts.
        here: number of workers on this host.
        devices: devices of the workers.
        forks: whether processes are forked, and so share the memory of loaded modules.
        serving: number of servers on this host; None for all of them.
    """
    on_cpu = all(device == "cpu" for device in devices)
    servers = shared = model = state = 0
    size = model_bytes(job) if on_cpu else 0
    needs = strategy.needs(workers)
    if needs.leases:
        every = needs.server_processes
        held = size + (0 if needs.local_optimizer else state_bytes(job) if on_cpu else 0)
        if every:
            servers = every if serving is None else serving
            shared = held * servers // every
        elif needs.shared_memory:
            shared = held
        if needs.local_optimizer and on_cpu:
            state = state_bytes(job)
        # Its update; its parameters, unless they are shared; and the copy that it serves to peers.
        kept = (not needs.shared_memory) + needs.own_parameters + needs.peer_servers
        model = size * (1 + kept)
    elif on_cpu:
        model = _placed_bytes(job, strategy, workers)
        state = state_bytes(job) // (1 if strategy.name in _WHOLE else workers)
    process = FORKED if forks else AFRESH
    return MemoryEstimate(here, servers, process, _data_bytes(job), model, shared, state)


def check_hosts(strategy: Strategy, job: Job, workers: int, cluster: Cluster) -> None:
    """Raise ValueError if a declared host has less memory than its processes need at least.

    Args:
        strategy: the strategy.
        job: the job.
        workers: number of workers on all hosts.
        cluster: the declared cluster.
    """
    if not any(host.memory for host in cluster.hosts):
        return
    among = cluster.first(workers)
    for name, memory, need in _needs(strategy, job, workers, among):
        try:
            need.check(memory)
        except ValueError as error:
            words = str(error) if len(among.hosts) == 1 else f"{name}: {error}"
            raise ValueError(words) from None


def workers_that_fit(strategy: Strategy, job: Job, cluster: Cluster) -> dict[str, int]:
    """The workers for which each host has room; empty if there is no room for any.

    Args:
        strategy: the strategy.
        job: the job.
        cluster: the declared cluster.
    """
    counts = Counter(cluster.worker_hosts(cluster.default_workers()))
    while total := sum(counts.values()):
        needs = _needs(strategy, job, total, cluster.with_workers(counts))
        full = [(name, need.most(memory)) for name, memory, need in needs if need.total > memory]
        if not full:
            return {name: count for name, count in counts.items() if count}
        for name, most in full:
            if not counts[name]:
                return {}
            # Under some strategies fewer workers have larger parts each, so this is not the end.
            counts[name] = min(counts[name] - 1, most)
    return {}


def _needs(
    strategy: Strategy, job: Job, workers: int, among: Cluster
) -> Iterator[tuple[str, int, MemoryEstimate]]:
    """Of every host with a known memory its name, its memory, and what its processes need."""
    on = Counter(among.worker_hosts(workers))
    serving = Counter(serving_hosts(strategy, workers, among))
    # The estimate of hosts that are alike is the same.
    found: dict[tuple[int, int], MemoryEstimate] = {}
    for host in among.hosts:
        if not host.memory:
            continue
        here, servers = kind = (on[host.name], serving[host.name])
        if kind not in found:
            need = estimate(job, strategy, workers, here, ["cpu"], forks=True, serving=servers)
            found[kind] = replace(need, loaded=2 * AFRESH)
        yield host.name, host.memory, found[kind]


def serving_hosts(strategy: Strategy, workers: int, among: Cluster) -> tuple[str, ...]:
    """The host of each server that is a process of its own.

    Args:
        strategy: the strategy.
        workers: number of workers.
        among: a cluster with so many workers.
    """
    from manyhands.strategies import protocol_of  # noqa: PLC0415 - see model_bytes

    protocol = protocol_of(strategy)
    servers = strategy.needs(workers).server_processes
    if protocol is None or not servers:
        return ()
    return among.server_hosts(workers, servers, protocol.groups(workers))


def state_bytes(job: Job) -> int:
    """Bytes of the optimizer's state after a step on the whole model; 0 if it cannot be tried.

    The model is made on the meta device, without memory, and the optimizer steps small tensors in
    place of its parameters: a step on the meta device imports `torch._dynamo`, for over a second.
    """
    import torch  # noqa: PLC0415 - see model_bytes

    try:
        with torch.random.fork_rng(devices=[]):
            with torch.device("meta"):
                optimizer = job.make_optimizer(job.model())
            sizes = [_stand_in(group) for group in optimizer.param_groups]
            optimizer.step()
    except Exception:  # noqa: BLE001 - not every optimizer steps other parameters than its own
        return 0
    return sum(
        # What is not shaped like its parameter is small, such as a number of steps.
        value.element_size() * (full if value.shape == one.shape else value.numel())
        for one, full in (pair for group in sizes for pair in group)
        for value in optimizer.state[one].values()
        if isinstance(value, torch.Tensor)
    )


def _stand_in(group: dict[str, Any]) -> list[tuple[torch.Tensor, int]]:
    """Replace a group's parameters with small ones, each returned with the size of the former."""
    import torch  # noqa: PLC0415 - see model_bytes

    chosen = [one for one in group["params"] if one.requires_grad]
    small = [torch.zeros([min(2, size) for size in one.shape], dtype=one.dtype) for one in chosen]
    for one in small:
        one.requires_grad_().grad = torch.ones_like(one)
    group["params"] = small
    return [(one, like.numel()) for one, like in zip(small, chosen, strict=True)]


def model_bytes(job: Job) -> int:
    """Bytes of the model's parameters; 0 if the model cannot be created on the meta device."""
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
    """Bytes of the data tensors that the script creates in every process that executes it."""
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
