"""Speed of `simulate` without numbers: `python -m benchmarks.time_only`.

For each strategy, a virtual cluster of 10,000 workers makes a million updates of an MLP of 100 kB:
each worker on a host of its own, on links of 10 Gbit/s, or all on one host (`--bandwidth none`).
Before that, a smaller run with numbers and one without are compared: both have the same virtual
seconds, and their workers sent the same number of bytes.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

BATCH = 6
STRATEGIES = ("asynchronous()", "ssp(staleness=4)")


def a_job(workers: int, updates: int) -> mh.Job:
    inputs = torch.zeros(60_000, 784)
    return mh.Job(
        model=lambda: mh.models.MLP(784, (32,), 10),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.long)),
        global_batch=workers * BATCH,
        samples=updates * BATCH,
    )


def simulate(
    strategy: str, workers: int, updates: int, *, time_only: bool, bandwidth: str | None = "10gbit"
) -> tuple[float, float, int]:
    """Wall seconds, virtual seconds, and bytes that workers sent."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        run = mh.simulate(
            a_job(workers, updates),
            strategy,
            workers=workers,
            bandwidth=bandwidth,
            times="lognormal(0.1, cv=0.3)",
            time_only=time_only,
            output=Path(folder) / "run",
        )
        took = time.monotonic() - begun
        assert run.samples == updates * BATCH
        sent = sum(sum(worker.totals.sent.values()) for worker in run.trace.workers)
        return took, run.seconds, sent


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--bandwidth", default="10gbit", help="of the links, or none for one host")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    given = parser.parse_args(arguments)
    link = {"bandwidth": None if given.bandwidth == "none" else given.bandwidth}
    for strategy in given.strategies:
        few, some = min(200, given.workers), min(4_000, given.updates)
        slow, seconds, sent = simulate(strategy, few, some, time_only=False, **link)
        fast, same_seconds, same_sent = simulate(strategy, few, some, time_only=True, **link)
        assert (seconds, sent) == (same_seconds, same_sent)
        print(
            f"{strategy}, {few} workers, {some:,} updates: {seconds:.6f} virtual seconds with "
            f"numbers in {slow:.1f} s, the same without in {fast:.1f} s"
        )
        took, seconds, _ = simulate(strategy, given.workers, given.updates, time_only=True, **link)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{strategy}, {given.workers:,} workers, {given.updates:,} updates: {seconds:.3f} "
            f"virtual seconds in {took:.1f} s, {took / given.updates * 1e6:.0f} µs per update, "
            f"at most {memory:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
