"""A CNN on MNIST with Adam: on one worker, on two, and with the parameters on the host.

    python examples/cases/mnist_cnn.py

trains three times for five epochs with batches of 100 and prints a table; `--keep` also stores its
figures in `results/mnist_cnn.json`, and `--epochs 0.1` is a short version.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from case_results import keep, table

import manyhands as mh

job = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    metrics=["accuracy", "f1"],
    global_batch=100,
    epochs=5,
)

WAYS = [("single()", 1), ("allreduce()", 2), ("central_storage()", 2)]
"""By strategy, the number of workers."""


def figures(run: mh.Run) -> dict[str, object]:
    """What the table and `results` have of a run."""
    (told,) = run.results.runs
    steps = told.samples / job.global_batch
    training = told.traffic.get("training")  # one worker alone sends nothing
    return {
        "strategy": told.strategy,
        "workers": told.workers,
        "threads": told.threads,
        "samples": told.samples,
        "seconds": round(told.seconds, 1),
        "epoch_seconds": [round(one.seconds, 1) for one in mh.reports.epochs(run.trace)],
        "accuracy": told.validation["accuracy"].value,
        "f1": told.validation["f1"].value,
        "sent_per_step": round(training.workers_sent / steps) if training else 0,
        "parameters_sha256": told.parameters_sha256,
    }


def printed(runs: list[dict]) -> str:
    """The table: a row for each way."""
    header = [
        *("strategy", "workers", "accuracy", "F1", "accuracy after each epoch"),
        *("first epoch", "later epochs", "workers send per step"),
    ]
    return table(header, [_row(run) for run in runs])


def _row(run: dict) -> list[str]:
    first, *later = run["epoch_seconds"] or [run["seconds"]]
    return [
        f"`{run['strategy']}`",
        f"{run['workers']}",
        f"{run['accuracy'][-1]:.4f}",
        f"{run['f1'][-1]:.4f}",
        ", ".join(f"{value:.4f}" for value in run["accuracy"]),
        f"{first:.0f} s",
        f"{sum(later) / len(later):.0f} s each" if later else "–",
        f"{run['sent_per_step'] / 1e6:.1f} MB",
    ]


def main() -> None:
    """Train in each way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=5, help="passes over the data")
    parser.add_argument("--keep", action="store_true", help="store the figures in results")
    asked = parser.parse_args()
    runs = []
    for strategy, workers in WAYS:
        run = mh.train(job, strategy, workers=workers, epochs=asked.epochs)
        runs.append(figures(run))
    print(printed(runs))
    if asked.keep:
        print(f"figures: {keep('mnist_cnn', {'runs': runs}).name}")


if __name__ == "__main__":
    main()
