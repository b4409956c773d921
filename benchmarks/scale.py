"""What a message costs the coordinator and the servers with 10, 100 and 1,000 workers.

A real coordinator process and 16 real servers under `asynchronous`, which hold a model of 10⁵
parameters. The workers are light (`benchmarks.scale_driver`): conversations, calls, heartbeats
and traces are real, and they compute nothing. There are more of them than cores, so latency means
nothing here. What is measured is the processor time, of the system's own count for each process,
divided by the messages in the same seconds: it is the same on a busy machine.

A worker beats once a second however rarely it gets its turn, so with many workers on few cores the
heartbeats are a larger part of the coordinator's messages. The cost per lease counts all of them as
the leases' cost.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.figures import keep, report
from benchmarks.scale_driver import BEATS, CHUNKS, LEASES, STOP, counts_of
from manyhands.live.assignment import Assignment, Leasing
from manyhands.live.processes.descriptors import check_descriptors, raise_descriptors
from manyhands.live.processes.fork_server import environment, fork_server
from manyhands.live.processes.host_processes import HostProcesses
from manyhands.live.processes.private_folder import private_folder
from manyhands.live.processes.supervision import Process, end
from manyhands.parameters import Layout
from manyhands.parameters.initial.shard_values import make
from manyhands.script.loading import load
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.wire import Goodbye

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.live.processes.fork_server import ForkServer

_JOB = Path(__file__).with_name("scale_job.py")
_SAMPLES = 32
"""In one lease."""
_WARM = 3.0
"""Seconds before the measurement."""
_WITHIN = 300.0
"""Seconds in which all workers must have begun."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What one number of workers costs; times are processor time in microseconds."""

    workers: int
    servers: int
    seconds: float
    leases: int
    leases_per_second: float
    beats: int
    coordinator_per_lease: float
    coordinator_per_message: float
    server_per_push: float
    """Mean of all servers."""
    coordinator_memory: int
    """Bytes resident in the coordinator."""
    server_memory: int
    """Bytes that the largest server shares with no other process."""


def _processor(pid: int) -> float:
    """Seconds that a process has computed so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _assign(private: Path, folder: Path, workers: int, servers: int) -> Assignment:
    batch = _SAMPLES * workers
    return Assignment(
        origin=Origin(str(_JOB), "benchmarks", "", (str(_JOB),), "job", None),
        overrides=Overrides(),
        strategy=f"asynchronous(servers={servers})",
        workers=workers,
        host="localhost",
        folder=str(folder),
        coordinator=f"ipc://{private}/coordinator",
        private=str(private),
        store_address="",
        store_port=0,
        servers=tuple(f"ipc://{private}/server-{number}" for number in range(servers)),
        leasing=Leasing(batch * 10_000, batch, None, None, evaluates=False),
        agent=os.getpid(),
        devices=("cpu",),
    )


@dataclass
class _Run:
    """The processes of one measurement."""

    line: Line
    coordinator: Process
    servers: list[Process]
    drivers: list[subprocess.Popen[bytes]]
    counts: np.memmap[tuple[int, int], np.dtype[np.int64]]

    def until(self, seconds: float, began: int = 0) -> None:
        """Let time pass, or wait until so many workers have begun; end if a process has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.line.receive(0.1)
            for process in (self.coordinator, *self.servers):
                gone = process.poll()
                if gone is not None:
                    raise RuntimeError(str(gone))
            if any(driver.poll() is not None for driver in self.drivers):
                raise RuntimeError("a process of light workers ended; its words are above")
            if began and int((self.counts[:, LEASES] > 0).sum()) >= began:
                return
        if began:
            raise RuntimeError(f"not all of {began} workers had begun after {seconds:.0f} s")

    def finish(self) -> None:
        """Have the workers told that it is enough, and let all processes end."""
        self.counts[0, STOP] = 1
        for driver in self.drivers:
            driver.wait(60)
        self.line.send(Goodbye(0, 0))
        for process in (*self.servers, self.coordinator):
            process.wait(10)


@contextlib.contextmanager
def _running(
    folder: Path,
    private: Path,
    workers: int,
    servers: int,
    drivers: int,
    loaded: ForkServer | None,
) -> Iterator[_Run]:
    for name in ("trace", "logs"):
        (folder / name).mkdir()
    assignment = _assign(private, folder, workers, servers)
    told = private / "assignment.json"
    assignment.write(told)
    job, _ = load(assignment.origin)
    sizes = [str(shard.nbytes) for shard in Layout.of(*make(job), servers).shards]
    (private / "counts").write_bytes(bytes(workers * 4 * 8))
    host_processes = HostProcesses("localhost", told, folder, environment(1, 1), loaded)
    host_processes.await_fork_server(lambda: None)
    processes: list[Process] = []
    started: list[subprocess.Popen[bytes]] = []
    with Line(assignment.coordinator, "agent-0") as line:
        try:
            processes.append(
                host_processes.start("coordinator", "manyhands.live.coordinator.process")
            )
            for number in range(servers):
                name = f"server-{number}"
                processes.append(
                    host_processes.fork(name, "manyhands.live.server.process", str(number))
                )
            bounds = np.linspace(0, workers, min(drivers, workers) + 1).astype(int).tolist()
            for first, stop in itertools.pairwise(bounds):
                command = [sys.executable, "-m", "benchmarks.scale_driver", str(told)]
                command += [str(first), str(stop - first), *sizes]
                started.append(subprocess.Popen(command))
            counts = counts_of(private / "counts", workers)
            yield _Run(line, processes[0], processes[1:], started, counts)
        finally:
            for driver in started:
                driver.kill()
                driver.wait()
            end(processes, 1.0)
            for process in processes:
                process.close()


def measure(workers: int, servers: int, seconds: float, drivers: int = 4) -> Load:
    """The cost of messages with so many workers."""
    check_descriptors(workers, servers)
    with (
        tempfile.TemporaryDirectory(prefix="mh-scale-") as folder,
        private_folder() as private,
        fork_server(environment(1, 1)) as loaded,
        _running(Path(folder), private, workers, servers, drivers, loaded) as run,
    ):
        run.until(_WITHIN, began=workers)
        run.until(min(_WARM, seconds))
        pids = [process.pid for process in (run.coordinator, *run.servers)]
        before, counted, begun = [_processor(pid) for pid in pids], np.array(run.counts), _now()
        run.until(seconds)
        after, now, spent = [_processor(pid) for pid in pids], np.array(run.counts), _now() - begun
        coordinator, *each = (b - a for a, b in zip(before, after, strict=True))
        done = (now - counted).sum(axis=0)
        leases, beats, chunks = (int(done[column]) for column in (LEASES, BEATS, CHUNKS))
        if not leases:
            raise RuntimeError(f"{workers} workers made no step in {spent:.0f} s")
        # Each lease is asked for and committed; servers beat, and send their traces, too.
        messages = 2 * leases + beats + chunks + int(2 * servers * spent)
        figures = Load(
            workers=workers,
            servers=servers,
            seconds=spent,
            leases=leases,
            leases_per_second=leases / spent,
            beats=beats,
            coordinator_per_lease=1e6 * coordinator / leases,
            coordinator_per_message=1e6 * coordinator / messages,
            server_per_push=1e6 * sum(each) / servers / leases,
            coordinator_memory=psutil.Process(pids[0]).memory_info().rss,
            server_memory=max(psutil.Process(pid).memory_full_info().uss for pid in pids[1:]),
        )
        run.finish()
    return figures


def _now() -> float:
    return time.monotonic()


def _row(load: Load) -> str:
    return (
        f"{load.workers:>8,}{load.leases_per_second:>12.0f}{load.coordinator_per_lease:>14.0f}"
        f"{load.coordinator_per_message:>14.0f}{load.server_per_push:>12.0f}"
        f"{load.coordinator_memory / 2**20:>14.0f}{load.server_memory / 2**20:>12.0f}"
    )


def main() -> None:
    """Measure every size, and compare the largest with the smallest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="measured at each size")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--drivers", type=int, default=4, help="processes of light workers")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    options = parser.parse_args()
    raise_descriptors()
    print(f"{options.servers} servers; processor time in µs, memory in MiB")
    print(
        f"{'workers':>8}{'leases/s':>12}{'coord/lease':>14}{'coord/message':>14}"
        f"{'server/push':>12}{'coord memory':>14}{'server':>12}"
    )
    loads = []
    for workers in options.workers:
        loads.append(measure(workers, options.servers, options.seconds, options.drivers))
        print(_row(loads[-1]), flush=True)
    first, last = loads[0], loads[-1]
    message = last.coordinator_per_message / first.coordinator_per_message
    push = last.server_per_push / first.server_per_push
    print(
        f"\n{last.workers:,} workers against {first.workers}: a message costs the coordinator "
        f"{message:.2f} times as much, a push a server {push:.2f} times (at most 1.5 wanted)"
    )
    figures: dict[str, object] = {
        "loads": [asdict(load) for load in loads],
        "message_ratio": message,
        "push_ratio": push,
    }
    if options.keep:
        keep("scale", figures)
    report("scale", figures)


if __name__ == "__main__":
    main()
