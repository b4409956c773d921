"""Steps per second of `allreduce()` on one host, against DDP, trainers on it, and MPI.

All sides are alive all the time and take turns, one thread per worker; one round gives every side
its turn twice, forwards and backwards. Figures are medians over rounds, with 95 % intervals, of the
rate of each side divided by that of bare DDP. Peers that are not installed are left out and named:
`pip install accelerate lightning-fabric mpi4py`, and `mpirun` of Open MPI.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import median_interval, report
from benchmarks.turnstile import Side

STEPS = {"mlp85k": 150, "mlp1m": 40, "mlp10m": 8, "lenet": 40, "gpt": 12}
MODULES = {
    "sums": "torch",
    "ddp": "torch",
    "accelerate": "accelerate",
    "fabric": "lightning_fabric",
    "mpi": "mpi4py",
}


def peers() -> list[str]:
    """The peers that can be run here."""
    found = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    if shutil.which("mpirun") is None and "mpi" in found:
        found.remove("mpi")
    return found


class StoppedSide(Side):
    """A side whose processes are stopped between its turns: MPI waits by keeping its cores busy."""

    processes: tuple[psutil.Process, ...] = ()

    def rate(self, steps: int) -> float:
        """As a side's, with its processes continued for this turn."""
        if not self.processes:
            own = psutil.Process().children(recursive=True)
            self.processes = tuple(one for one in own if one.environ().get("PEER") == self.name)
        for process in self.processes:
            process.resume()
        rate = super().rate(steps)
        for process in self.processes:
            process.suspend()
        return rate

    def stop(self) -> None:
        """Let it end."""
        for process in self.processes:
            process.resume()
        super().stop()


@contextlib.contextmanager
def started(what: str, workers: int, names: list[str]) -> Iterator[dict[str, Side]]:
    """All sides, ready; their processes are ended at the end, whatever happens."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[str, Side] = {}
        for name in names:
            sides[name] = (StoppedSide if name == "mpi" else Side)(name, folder)
            common = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "OVERHEAD_OF": what,
                "OVERHEAD_WORKERS": str(workers),
                "OVERHEAD_STRATEGY": OURS.get(name, ""),
                "OVERHEAD_OUTPUT": str(folder / f"run-{name}"),
                "TURNSTILE": sides[name].path,
                "PEER": name,
            }
            processes = []
            for command, environment in _commands(name, workers):
                process = subprocess.Popen(
                    command,
                    env=common | environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                stack.callback(process.wait)
                stack.callback(process.terminate)
                stack.callback(process.send_signal, signal.SIGCONT)
                processes.append(process)
            sides[name].wait_ready(processes)
        yield sides


OURS = {"ours": "allreduce()", "ours on Gloo": "allreduce(shared_memory=false)"}


def _commands(name: str, workers: int) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The commands of a side, with their variables."""
    if name in OURS:
        yield [sys.executable, "-m", "benchmarks.overhead_ours"], {}
    elif name == "mpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        several = ["-n", str(workers), "--oversubscribe", *root]
        yield ["mpirun", *several, sys.executable, "-m", "benchmarks.one_host_peers"], {}
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        for rank in map(str, range(workers)):
            group = {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers)}
            own = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0"}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            launcher = {"TORCHELASTIC_RUN_ID": "benchmark"}
            command = [sys.executable, "-m", "benchmarks.one_host_peers"]
            yield command, group | own | place | launcher


def measure(what: str, workers: int, rounds: int, names: list[str]) -> dict[str, object]:
    """All sides on one model."""
    steps = max(2, STEPS[what] * 2 // workers)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    with started(what, workers, names) as sides:
        for side in sides.values():
            side.rate(steps)
        for _ in range(rounds):
            seconds = dict.fromkeys(names, 0.0)
            for name in (*names, *reversed(names)):
                seconds[name] += 1 / sides[name].rate(steps)
            for name in names:
                ratios[name].append(seconds["ddp"] / seconds[name])
                rates[name].append(2 / seconds[name])
        for side in sides.values():
            side.stop()
    print(f"{what} on {workers} workers, steps/s and ratio to bare DDP, {rounds} rounds:")
    result: dict[str, object] = {"rounds": rounds, "steps_per_turn": steps}
    for name in names:
        ratio, low, high = median_interval(ratios[name])
        rate = median_interval(rates[name])[0]
        print(f"  {name:14} {rate:8.1f}   {ratio:.3f}  ({low:.3f} … {high:.3f})", flush=True)
        result[name] = {"steps_per_second": rate, "ratio": ratio, "low": low, "high": high}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STEPS, help="one model")
    parser.add_argument("--rounds", type=int, default=10, help="more of them narrow the interval")
    parser.add_argument("--workers", type=int, default=2, help="on the cores of this machine")
    chosen = parser.parse_args()
    there = peers()
    missing = sorted({*MODULES} - {*there})
    print(f"{chosen.workers} workers on each side, one thread each, taking turns")
    if missing:
        print(f"not installed here: {', '.join(missing)}")
    names = [*OURS, *there]
    models = [chosen.only] if chosen.only else [*STEPS]
    figures = {what: measure(what, chosen.workers, chosen.rounds, names) for what in models}
    report("one_host", {"workers": chosen.workers, **figures})


if __name__ == "__main__":
    main()
