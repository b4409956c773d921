"""What wrong workers do to the accuracy on MNIST, and what aggregators hold against them.

Ten virtual workers under `synchronous`, of which two send the negative of their updates, times 1
and times 10; with the mean and with `median`, `trimmed(2)`, `krum(2)` and Multi-Krum; or NaN, with
the mean; from three seeds.

The setting was chosen before the first whole run and not changed: the small network of the other
studies (64 hidden units, four epochs; a trial with LeNet took too long), 64 samples per worker, and
the learning rate 0.05 with momentum 0.9 of the examples. The factors are −1, which is a flipped
sign; and −10, because the mean of 8 gradients and 2 negative ones is still 0.6 of the gradient, and
a mean points the wrong way only if the factor is below −4.

Virtual runs are repeatable: the load of the machine changes nothing. Runs that were made are
stored, and not made again.
"""

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.attackers import register_attackers
from benchmarks.figures import RESULTS, keep, kept, report

WORKERS, LIARS, BATCH, RATE, MOMENTUM, EPOCHS = 10, 2, 640, 0.05, 0.9, 4
SEEDS = (0, 1, 2)
ATTACKS = {
    "none": "liars=0",
    "sign flipped": f"liars={LIARS}, factor=-1.0",
    "sign flipped, times 10": f"liars={LIARS}, factor=-10.0",
    "NaN": f"liars={LIARS}, nan=true",
}
AGGREGATES = (
    *("mean", "median", f"trimmed({LIARS})", f"krum({LIARS})"),
    f"krum({LIARS}, average={WORKERS - LIARS})",
)
CASES = [
    (attack, aggregate)
    for attack, aggregate in itertools.product(ATTACKS, AGGREGATES)
    # A refused update does not reach an aggregator.
    if attack != "NaN" or aggregate == "mean"
]
PAGE = Path(__file__).parent.parent / "docs" / "robust.md"
HEADING = (
    "| two of ten workers send | aggregate | accuracy, mean | seeds | lowest to highest "
    "| points below clean |\n| --- | --- | --- | --- | --- | --- |"
)


def a_job(samples: int | None = None) -> mh.Job:
    """The job; with `samples`, of the first samples alone, so that the benchmark can be tried."""
    data = mh.data.mnist("train")
    some = data if samples is None else torch.utils.data.Subset(data, range(samples))
    return mh.Job(
        model=lambda: mh.models.MLP(hidden=(64,)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM),
        loss=F.cross_entropy,
        data=some,
        validation=mh.data.mnist("test"),
        global_batch=BATCH,
        epochs=EPOCHS if samples is None else 1,
        stop_on_nan=False,
    )


def measure(job: mh.Job, attack: str, aggregate: str, seed: int) -> float:
    """The accuracy at the end of one run."""
    strategy = f"attacked({ATTACKS[attack]}, aggregate={aggregate})"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        run = mh.simulate(job, strategy, workers=WORKERS, seed=seed, output=output)
        return round(run.metrics["accuracy"], 4)


def table(figures: dict[str, Any]) -> str:
    """The accuracies as the documentation shows them."""
    clean = statistics.mean(_of(figures, "none", "mean"))
    rows = [HEADING]
    for attack, aggregate in CASES:
        found = _of(figures, attack, aggregate)
        if not found:
            continue
        mean = statistics.mean(found)
        rows.append(
            f"| {attack} | `{aggregate}` | {100 * mean:.2f} % | {len(found)} "
            f"| {100 * min(found):.2f} % to {100 * max(found):.2f} % "
            f"| {100 * (clean - mean):.2f} |"
        )
    return "\n".join(rows)


def _of(figures: dict[str, Any], attack: str, aggregate: str) -> list[float]:
    return [
        figures[f"{attack}; {aggregate}; {seed}"]
        for seed in SEEDS
        if f"{attack}; {aggregate}; {seed}" in figures
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="of so many samples; nothing is stored")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="so many seeds")
    given = parser.parse_args()
    register_attackers()
    figures: dict[str, Any] = {}
    stores = given.samples is None
    if (RESULTS / "robust.json").exists() and stores:
        figures = kept("robust")["figures"]
    job = a_job(given.samples)
    for seed, (attack, aggregate) in itertools.product(SEEDS[: given.seeds], CASES):
        name = f"{attack}; {aggregate}; {seed}"
        if name in figures:
            continue
        figures[name] = measure(job, attack, aggregate, seed)
        print(name, figures[name], flush=True)
        if stores:
            keep("robust", figures)
    if stores:
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- robust -->\n")
        _, end, after = rest.partition("<!-- end of robust -->\n")
        PAGE.write_text(f"{before}{begin}{table(figures)}\n{end}{after}", encoding="utf-8")
    report("robust", figures)


if __name__ == "__main__":
    main()
