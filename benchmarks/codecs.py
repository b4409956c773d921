# ruff: noqa: A005 - it is started as `python -m benchmarks.codecs`
"""Steps per second behind slow links: allreduce with codecs and reducers, against bare DDP.

A perceptron with 10 M parameters on 4 workers, each in a network namespace behind its own link of
100 Mbit/s; needs root, or unprivileged user namespaces. Compute is real. The sides run one after
the other, in rounds, so that what else the machine does meets all of them: DDP alone, with torch's
bf16 hook and with torch's PowerSGD hook, and strategies of Manyhands. A figure is the median over
rounds, with the lowest and the highest. Bytes are what a worker sends in a step: of DDP, as its
network interface counts them; of strategies, as its sockets do, without the headers of TCP.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.codecs_job import BATCH, EPOCH
from benchmarks.figures import keep, report
from benchmarks.paced import steady_rate
from benchmarks.server_sides import session
from manyhands.cluster import Cluster
from manyhands.lab.network_run import train_on_cluster, train_spread
from manyhands.lab.networks.namespaces import NetworkShape, NotPermitted, check_permitted, network
from manyhands.reports import Run
from manyhands.reports.figures.trace_figures import traffic

BARE = {"DDP": "none", "DDP, bf16 hook": "bf16", "DDP, PowerSGD hook": "powersgd1"}
STRATEGIES = (
    "allreduce()",
    "allreduce(codec=bfloat16())",
    "allreduce(codec=int8())",
    "allreduce(codec=onebit())",
    "allreduce(codec=topk(0.001))",
    "allreduce(codec=chunked_topk())",
    "allreduce(codec=powersgd())",
    "allreduce(codec=sparse_sum(0.001))",
    "allreduce(codec=factors())",
)
SECONDS = 20.0
"""About as long as a side is measured in a round."""
_FEWEST, _MOST = 3, 60
"""Epochs; of three, one is measured."""
_ROOT = Path(__file__).parent.parent
_JOB = Path(__file__).parent / "codecs_job.py"


@dataclass(frozen=True)
class Spread:
    """Where workers are: hosts behind links, with the same number of workers each."""

    network: str
    """Of each host: 100mbit, or 100mbit, 20ms."""
    workers: int
    per_host: int = 1

    @property
    def shape(self) -> NetworkShape:
        """The network."""
        return NetworkShape.read(self.network)

    @property
    def words(self) -> str:
        """For the reader."""
        here = f", {self.per_host} on each host" if self.per_host > 1 else ""
        return f"{self.workers} workers{here}, {self.shape.words}"

    def train(self, strategy: str, output: Path) -> int:
        """Train under a strategy of Manyhands; return the exit code."""
        arguments = [str(_JOB), "--strategy", strategy]
        if self.per_host == 1:
            return train_spread(arguments, self.shape, self.workers, output)
        hosts = self.workers // self.per_host
        text = f"{hosts} hosts of {self.per_host} workers, {self.network}"
        return train_on_cluster(arguments, Cluster.parse(text), output)


@dataclass
class Figures:
    """The figures of one side, a number for each round."""

    steps_per_second: list[float] = field(default_factory=list)
    bytes_per_step: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """The median of the steps per second."""
        return statistics.median(self.steps_per_second)

    def row(self, name: str, bare: float) -> str:
        """For the table."""
        low, high = min(self.steps_per_second), max(self.steps_per_second)
        sent = statistics.median(self.bytes_per_step)
        return (
            f"| {name} | {self.speed:.2f} ({low:.2f} to {high:.2f}) | {self.speed / bare:.1f} | "
            f"{sent / 1e6:.3f} |"
        )


HEADING = (
    "| side | steps/s | times bare DDP | MB sent per worker and step |\n| --- | --- | --- | --- |"
)


def environment(epochs: int) -> dict[str, str]:
    """The environment of all processes."""
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(search),
        "OMP_NUM_THREADS": "1",
        "CODECS_EPOCHS": str(epochs),
    }


def bare(hook: str, spread: Spread, epochs: int) -> tuple[float, float]:
    """Steps per second of DDP, and the bytes that a worker sends in a step."""
    workers, here, shape = spread.workers, spread.per_host, spread.shape
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(network(workers // here, shape.rate, shape.latency))
        processes = []
        for rank in range(workers):
            place = places[rank // here]
            process = subprocess.Popen(
                place.inside(sys.executable, "-m", "benchmarks.codecs_bare", hook),
                env={
                    **os.environ,
                    **environment(epochs),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(workers),
                    "MASTER_ADDR": places[0].address,
                    "MASTER_PORT": "40001",
                    "GLOO_SOCKET_IFNAME": "eth0",
                },
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(session(process))
            processes.append(process)
        said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"DDP with hook {hook} failed")
    figures = [json.loads(text.splitlines()[-1]) for text in said]
    # Workers of a host have one interface, and only what goes to other hosts passes it.
    return figures[0][0], statistics.mean(sent for _, sent in figures) / here


def ours(strategy: str, spread: Spread, epochs: int) -> tuple[float, float]:
    """Steps per second of a strategy, and the bytes that a worker sends in a step."""
    os.environ.update(environment(epochs))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        code = spread.train(strategy, output)
        if code:
            raise RuntimeError(f"{strategy} failed with exit code {code}")
        run = Run(output)
        wire = traffic(run.trace).flow("training", "between").wire_sent
        return steady_rate(run) / BATCH, wire / (spread.workers * EPOCH * epochs)


def measure(sides: dict[str, tuple[bool, str]], spread: Spread, rounds: int) -> dict[str, Figures]:
    """All sides in each round; the first round only tells how many steps to measure later."""
    found = {name: Figures() for name in sides}
    epochs = dict.fromkeys(sides, _FEWEST)
    for number in range(rounds + 1):
        for name, (is_bare, text) in sides.items():
            run = bare if is_bare else ours
            speed, sent = run(text, spread, epochs[name])
            print(f"{number} of {rounds}: {name}: {speed:.2f} steps/s", file=sys.stderr, flush=True)
            epochs[name] = min(_MOST, max(_FEWEST, 2 + round(SECONDS * speed / EPOCH)))
            if number or not rounds:
                found[name].steps_per_second.append(speed)
                found[name].bytes_per_step.append(sent)
    return found


def show(name: str, found: dict[str, Figures], *, stores: bool) -> None:
    """Print the table of all sides, and store the figures if it is asked for."""
    print(HEADING)
    for side, figures in found.items():
        print(figures.row(side if side in BARE else f"`{side}`", found["DDP"].speed))
    kept: dict[str, object] = {side: asdict(figures) for side, figures in found.items()}
    if stores:
        keep(name, kept)
    report(name, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--network", default="100mbit", help="of each worker: 100mbit, 20ms")
    parser.add_argument("--rounds", type=int, default=3, help="0 for the short first one alone")
    parser.add_argument("--only", help="DDP and the strategies whose text holds this")
    parser.add_argument("--also", action="append", default=[], help="a further strategy")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    try:
        check_permitted()
    except NotPermitted as error:
        parser.exit(1, f"{error}\n")
    sides = {name: (True, hook) for name, hook in BARE.items()}
    sides |= {text: (False, text) for text in (*STRATEGIES, *given.also)}
    if given.only:
        sides = {name: how for name, how in sides.items() if name == "DDP" or given.only in name}
    spread = Spread(given.network, given.workers)
    print(spread.words)
    found = measure(sides, spread, given.rounds)
    show("codecs", found, stores=given.keep)


if __name__ == "__main__":
    main()
