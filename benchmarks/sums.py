"""Seconds of one sum over the workers of one host: in shared memory, and by Gloo over loopback.

    python -m benchmarks.sums --workers 2

Both take turns in the same processes, forked from one, with one thread each; figures are medians
over rounds. Copying the vector once within a process is the third figure.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.figures import report
from manyhands.transport.collectives import Group, connect_store, serve_store

SIZES = (1_000, 85_000, 1_000_000, 10_000_000)


def _seconds(once: Callable[[], object], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        once()
    return (time.perf_counter() - begun) / times


def work(port: int, rank: int, workers: int, rounds: int) -> dict[str, dict[str, float]]:
    """One worker's medians, by the number of parameters."""
    torch.set_num_threads(1)
    store = connect_store("127.0.0.1", port)
    group = Group(store, rank, workers, epoch=1, device=torch.device("cpu"))
    shared = group.shared_sum(25 * 2**20 // workers)
    if shared is None:
        raise RuntimeError("memory cannot be shared here")
    found = {}
    for size in SIZES:
        vector, other = torch.randn(size), torch.randn(size)
        ways: dict[str, Callable[[], object]] = {
            "shared": lambda vector=vector: shared.average(vector),  # type: ignore[misc]
            "gloo": lambda vector=vector: group.sum(vector),  # type: ignore[misc]
            "copy": lambda vector=vector, other=other: vector.copy_(other),  # type: ignore[misc]
        }
        times = max(3, 2_000_000 // (size + 20_000))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, once in ways.items():
                group.sum(torch.zeros(1))
                taken[name].append(_seconds(once, times))
        found[str(size)] = {name: statistics.median(all_[1:]) for name, all_ in taken.items()}
    group.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="on the cores of this machine")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each way")
    chosen = parser.parse_args()
    _store, port = serve_store()
    reading, writing = os.pipe()
    ids = []
    for rank in range(chosen.workers):
        pid = os.fork()
        if not pid:
            found = work(port, rank, chosen.workers, chosen.rounds)
            if rank == 0:
                os.write(writing, json.dumps(found).encode("ascii"))
            os._exit(0)
        ids.append(pid)
    for pid in ids:
        os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        figures = json.loads(answer.read())
    print(f"{chosen.workers} workers; milliseconds of a sum, and of copying the vector once")
    for size, each in figures.items():
        words = "   ".join(f"{name} {1e3 * one:8.3f}" for name, one in each.items())
        print(f"{int(size):>12,} numbers   {words}")
    report("sums", {"workers": chosen.workers, **figures})


if __name__ == "__main__":
    main()
