"""The formulas of `manyhands costs` against Gloo's allreduce behind real links.

2, 4 and 8 processes, each in a network namespace behind a link of its own, with vectors from 4 KB
to 16 MB; needs root, or unprivileged user namespaces. Gloo's allreduce is a ring that divides its
messages, so that one is sent while another is added up: it takes as long as the longer of the two
terms of the formula, 2(n − 1)·α and 2m(n − 1)/n/β. β is the speed of the link less the headers of
Ethernet, IP and TCP, and less what TCP loses with large vectors. Three figures are fitted: α to the
smallest vector, of 2 and of 8 processes (more processes than cores wait for each other), and what
is lost to the largest vector of 2 processes. All else is held out. Beside it the sum of both terms,
as in textbooks, where a round begins when the last one is over.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import keep, report
from benchmarks.server_sides import session
from manyhands.costs.allreduce import ring
from manyhands.costs.compression import PAYLOAD_SHARE
from manyhands.lab.networks.namespaces import NotPermitted, check_permitted, network

SIZES = tuple(4096 * 4**power for power in range(7))
"""4 KB to 16 MB."""
WORKERS = (2, 4, 8)
_WHOLE = 1 << 20
"""Bytes of a vector up to which a link is used whole."""
RATES = {"20 Mbit/s": 2.5e6, "100 Mbit/s": 12.5e6}
_ROOT = Path(__file__).parent.parent


def measure(workers: int, rate: float, repeats: int) -> dict[int, float]:
    """Seconds of an allreduce by its size, the median."""
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(network(workers, rate))
        processes = []
        for rank, place in enumerate(places):
            words = ("-m", "benchmarks.collectives_bare", json.dumps(SIZES), str(repeats))
            search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            process = subprocess.Popen(
                place.inside(sys.executable, *words),
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(search),
                    "OMP_NUM_THREADS": "1",
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
        raise RuntimeError(f"{workers} processes failed")
    found = json.loads(said[0].splitlines()[-1])
    return {int(size): seconds for size, seconds in found.items()}


@dataclass(frozen=True)
class Fitted:
    """The constants of a link."""

    few: float
    """Seconds of a message, if every process has a core: measured with two."""
    many: float
    """If they wait for each other's: measured with eight."""
    bandwidth: float
    lost: float
    """Share of the bandwidth that the largest vector cannot use."""

    @classmethod
    def to(cls, measured: dict[int, dict[int, float]], rate: float) -> "Fitted":
        """Fit to what was measured, by processes and size."""
        least, most, few, many = SIZES[0], SIZES[-1], WORKERS[0], WORKERS[-1]
        speed = ring(most, few).transferred / measured[few][most]
        bandwidth = rate * PAYLOAD_SHARE
        latencies = (measured[n][least] / ring(least, n).rounds for n in (few, many))
        return cls(*latencies, bandwidth, max(0.0, 1 - speed / bandwidth))

    def predict(self, size: int, workers: int) -> tuple[float, float]:
        """Seconds of Gloo's ring, and of one whose rounds do not overlap."""
        cost = ring(size, workers)
        latency = cost.rounds * (self.many if workers > (os.cpu_count() or 1) else self.few)
        large = max(0.0, math.log(size / _WHOLE) / math.log(SIZES[-1] / _WHOLE))
        transfer = cost.transferred / (self.bandwidth * (1 - large * self.lost))
        return max(latency, transfer), latency + transfer


def summary(errors: list[float]) -> dict[str, float]:
    """Median and 90th percentile of what the predictions are off by."""
    ordered = sorted(map(abs, errors))
    return {
        "cases": len(ordered),
        "median error": round(statistics.median(ordered), 4),
        "p90 error": round(ordered[int(0.9 * len(ordered))], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="allreduces of each size")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    try:
        check_permitted()
    except NotPermitted as error:
        parser.exit(1, f"{error}\n")
    figures: dict[str, object] = {}
    errors: list[float] = []
    textbook: list[float] = []
    print("| link | processes | bytes | measured ms | predicted ms | error | sum of both terms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, rate in RATES.items():
        measured = {workers: measure(workers, rate, given.repeats) for workers in WORKERS}
        fitted = Fitted.to(measured, rate)
        figures[f"{name}, fitted"] = asdict(fitted)
        used = {(n, SIZES[0]) for n in (WORKERS[0], WORKERS[-1])} | {(WORKERS[0], SIZES[-1])}
        for workers, size in itertools.product(WORKERS, SIZES):
            seconds = measured[workers][size]
            longer, both = fitted.predict(size, workers)
            if (workers, size) not in used:
                errors.append(longer / seconds - 1)
                textbook.append(both / seconds - 1)
            figures[f"{name}, {workers}, {size}"] = [seconds, longer, both]
            print(
                f"| {name} | {workers} | {size:,} | {1e3 * seconds:.2f} | {1e3 * longer:.2f} "
                f"| {100 * (longer / seconds - 1):+.1f} % | {100 * (both / seconds - 1):+.1f} % |",
                flush=True,
            )
    figures["held out"] = summary(errors)
    figures["sum of both terms"] = summary(textbook)
    print(figures["held out"], figures["sum of both terms"])
    if given.keep:
        keep("collectives", figures)
    report("collectives", figures)


if __name__ == "__main__":
    main()
