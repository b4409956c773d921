"""Times of the links between hosts: what a calibration of several hosts measures before training.

One pair of hosts after the other, each direction for itself, while all other workers wait. The
first worker of each host takes part, over the connections of the process group, which are those
that collectives use. A link is filled for some time before anything is counted: a link that was
idle lets a burst through, by which a short transfer seems faster than a long one will be.
"""

from __future__ import annotations

import statistics
import time
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from manyhands.cluster.this_machine import this_host

if TYPE_CHECKING:
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group

HOST, LINK, COLLECTIVE = "calibrated host", "calibrated link", "calibrated allreduce"
"""The events of the trace."""
_ROUND_TRIPS = 41
_PARTS = 8
"""A transfer is sent in so many parts; time is counted from the end of the first on."""
_FIRST, _LARGEST = 1 << 13, 1 << 23
"""Bytes of a part, in the first transfer and at most."""
_LONG_ENOUGH = 0.5
"""Seconds of a transfer that is counted, unless parts have their largest size."""
_SUMS = 5
_LONGEST_SUMS = 5.0
"""Seconds after which no further sum is measured."""


def time_links(group: Group, hosts: Hosts, parameters: int, recorder: Recorder) -> None:
    """Measure, and record as events, what every pair of hosts takes. All workers must call this.

    Args:
        group: the group of all workers.
        hosts: their hosts.
        parameters: bytes of the gradient that is summed.
        recorder: this worker's trace.
    """
    first = {name: hosts.ranks(name).start for name in hosts.names if len(hosts.ranks(name))}
    if group.rank in first.values():
        host = this_host()
        recorder.event(HOST, {"cores": str(host.cores), "memory": str(host.memory)})
    for (sender, source), (receiver, target) in permutations(first.items(), 2):
        meet(group)
        if group.rank == source:
            _answer(group, target)
        elif group.rank == target:
            latency, bandwidth = _latency(group, source), _bandwidth(group, source)
            found = {"latency": f"{latency:.9g}", "bandwidth": f"{bandwidth:.9g}"}
            recorder.event(LINK, {"from": sender, "to": receiver} | found)
    for size in sorted({1024, max(1, parameters // 4)}):
        seconds = _sum(group, size)
        if group.rank == 0:
            recorder.event(COLLECTIVE, {"bytes": str(4 * size), "seconds": f"{seconds:.9g}"})


def meet(group: Group) -> None:
    """Wait until all workers are here."""
    group.sum(torch.zeros(1, device=group.device))


def _latency(group: Group, source: int) -> float:
    """Half the seconds of a round trip, the median."""
    signal, took = torch.zeros(1, device=group.device), list[float]()
    for _ in range(_ROUND_TRIPS):
        begun = time.perf_counter()
        _send(group, signal, source)
        _receive(group, signal, source)
        took.append(time.perf_counter() - begun)
    return statistics.median(took) / 2


def _bandwidth(group: Group, source: int) -> float:
    """Bytes per second from the source, in a transfer that takes long enough."""
    size = _FIRST
    while True:
        part = torch.zeros(size // 4, device=group.device)
        ends = []
        for _ in range(_PARTS):
            _receive(group, part, source)
            ends.append(time.perf_counter())
        seconds = ends[-1] - ends[0]
        enough = seconds >= _LONG_ENOUGH or size >= _LARGEST
        following = 0 if enough else min(_LARGEST, size * (2 if seconds > _LONG_ENOUGH / 4 else 4))
        _send(group, torch.tensor([float(following)], device=group.device), source)
        if enough:
            return (_PARTS - 1) * size / max(seconds, 1e-9)
        size = following


def _answer(group: Group, target: int) -> None:
    """The other side of `_latency` and `_bandwidth`."""
    signal = torch.zeros(1, device=group.device)
    for _ in range(_ROUND_TRIPS):
        _receive(group, signal, target)
        _send(group, signal, target)
    size = _FIRST
    while size:
        part = torch.zeros(size // 4, device=group.device)
        for work in [group.send(part, target) for _ in range(_PARTS)]:
            work.wait()
        _receive(group, signal, target)
        size = int(signal.item())


def _sum(group: Group, numbers: int) -> float:
    """Seconds of a sum over all workers, the median."""
    vector, took = torch.zeros(numbers, device=group.device), list[float]()
    begun = time.perf_counter()
    for _ in range(_SUMS):
        meet(group)
        before = time.perf_counter()
        group.sum(vector)
        vector[:1].cpu()  # it is complete on a GPU, too
        took.append(time.perf_counter() - before)
        # All workers must stop after the same sum.
        spent = torch.tensor([time.perf_counter() - begun], device=group.device)
        group.broadcast(spent)
        if spent.item() > _LONGEST_SUMS:
            break
    return statistics.median(took)


def _send(group: Group, tensor: torch.Tensor, to: int) -> None:
    group.send(tensor, to).wait()


def _receive(group: Group, tensor: torch.Tensor, source: int) -> None:
    group.receive(tensor, source).wait()
    tensor[:1].cpu()
