"""A virtual comparison in two processes against one: `python -m benchmarks.comparison_processes`.

Eight strategies on LeNet and MNIST, as `manyhands compare --virtual --processes 1` and
`--processes 2` make them, in turn (ABBA). Prints the seconds of both, the ratio of their medians
with its spread, and whether all files of the runs and the results are equal to the bit.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import report

STRATEGIES = (
    "synchronous, asynchronous, ssp(staleness=2), softsync(wait_for=2), averaging(every=2), "
    "easgd, gossip, hierarchical(outer=averaging(every=1), islands=2)"
)
BOUND = 0.6
"""The ratio that is to be kept."""
Spread = tuple[float, float, float]
TIMES = ("created", "started", "ended")
"""Fields of the results that say when they were made."""


def a_job(samples: int) -> mh.Job:
    return mh.Job(
        model=mh.models.LeNet,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02),
        loss=F.cross_entropy,
        data=mh.data.mnist("train"),
        validation=torch.utils.data.Subset(mh.data.mnist("test"), range(1000)),
        metrics=["accuracy"],
        global_batch=64,
        samples=samples,
    )


def compared(job: mh.Job, processes: int, folder: Path) -> tuple[float, str]:
    """Seconds of a comparison, and the SHA-256 of what it left."""
    begun = time.monotonic()
    mh.compare(
        job,
        STRATEGIES,
        workers=4,
        repeats=1,
        virtual=True,
        bandwidth="1gbit",
        processes=processes,
        output=folder,
    )
    return time.monotonic() - begun, digest(folder)


def digest(folder: Path) -> str:
    """The SHA-256 of the results and of all files of the runs, without the times of making them."""
    results = msgspec.json.decode((folder / "results.json").read_bytes())
    for one in (results, *results["runs"]):
        for name in TIMES:
            one.pop(name, None)
    found = hashlib.sha256(msgspec.json.encode(results))
    for path in sorted(folder.glob("runs/**/*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Figures:
    """What was measured; each spread is the median, the least and the greatest."""

    seconds: dict[str, Spread]
    """By number of processes."""
    ratio: Spread
    equal: bool


def measure(job: mh.Job, blocks: int) -> Figures:
    seconds: dict[int, list[float]] = {1: [], 2: []}
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, processes in enumerate((1, 2, 2, 1) * blocks):
            took, left = compared(job, processes, Path(folder) / str(number))
            seconds[processes].append(took)
            digests.add(left)
            print(f"{processes} process{'es' * (processes > 1)}: {took:.1f} s", flush=True)
    # Of each pair of neighbours, one with either number.
    pairs = [two / one for one, two in zip(seconds[1], seconds[2], strict=True)]
    by_count = {str(count): spread(values) for count, values in seconds.items()}
    return Figures(by_count, spread(pairs), equal=len(digests) == 1)


def spread(values: list[float]) -> Spread:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=6_400, help="of each run")
    parser.add_argument("--blocks", type=int, default=3, help="each of four comparisons")
    given = parser.parse_args(arguments)
    figures = measure(a_job(given.samples), given.blocks)
    middle, least, most = figures.ratio
    print(
        f"two processes take {middle:.2f} ({least:.2f}–{most:.2f}) of the time of one (bound: "
        f"{BOUND}); the results are {'equal to the bit' if figures.equal else 'NOT EQUAL'}"
    )
    report("comparison_processes", asdict(figures))
    return 0 if figures.equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
