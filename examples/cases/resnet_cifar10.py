"""ResNet50V2 and ResNet152V2 on CIFAR-10, enlarged: epoch times, and speedup on 1, 2, 4 workers.

    python examples/cases/resnet_cifar10.py

The full case is 50,000 photographs of 128×128, batches of 256, SGD with a rate of 0.01, five
epochs: two days of a core. This command trains on the first 160 photographs of 64×64 in batches of
32, which takes two quiet cores less than ten minutes by the processor time of a step. Then it
simulates the full case on 1, 2 and 4 machines with the time that a sample takes here. The options
take the cut back step by step; `--keep resnet_cifar10` stores the figures in `results`.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from case_results import keep, table
from torch import nn
from torch.utils.data import Subset

import manyhands as mh

MODELS = ("ResNet50V2", "ResNet152V2")
FULL = {"side": 128, "images": 50_000, "batch": 256}
"""The case as it is; of it one epoch is simulated."""
FASTER = 100
"""A machine that computes so many times as fast as a core of this one, to see the network."""


def job(
    model=mh.free.choice(*MODELS),
    side=mh.free.choice(64, 32, 128),
    images=mh.free.integer(1, 50_000, start=160),
    batch=mh.free.integer(1, 2048, start=32),
) -> mh.Job:
    """A network on the first photographs, which are enlarged where the model is."""
    return mh.Job(
        model=lambda: nn.Sequential(
            nn.Upsample(scale_factor=side // 32), getattr(mh.models, model)(classes=10)
        ),
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=Subset(mh.data.cifar10("train"), range(images)),
        validation=Subset(mh.data.cifar10("test"), range(max(1, images // 5))),
        metrics=["accuracy"],
        global_batch=batch,
        epochs=5,
    )


def figures(model: str, run: mh.Run) -> dict[str, object]:
    """What the table and `results` have of a live run."""
    (told,) = run.results.runs
    epochs = mh.reports.epochs(run.trace)
    each = told.samples / max(1, len(epochs))
    losses = [
        [value for at, value in zip(told.loss.samples, told.loss.value, strict=True)
         if number * each < at <= (number + 1) * each]
        for number in range(len(epochs))
    ]  # fmt: skip
    return {
        "model": model,
        "workers": told.workers,
        "threads": told.threads,
        "samples": told.samples,
        "epoch_seconds": [round(epoch.seconds, 1) for epoch in epochs],
        "loss": [round(statistics.mean(some), 3) if some else None for some in losses],
        "accuracy": told.validation["accuracy"].value,
    }


def seconds_per_sample(model: str, side: int, batch: int = 8) -> float:
    """Processor time of one core for a sample's forward and backward: the median of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = getattr(mh.models, model)(classes=10)
    images, classes = torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
    taken = []
    for _ in range(4):
        begun = time.process_time()
        F.cross_entropy(module(images), classes).backward()
        taken.append(time.process_time() - begun)
    torch.set_num_threads(threads)
    return statistics.median(taken[1:]) / batch


def predict(model: str, seconds: float, link: str) -> list[dict[str, object]]:
    """An epoch of the full case on 1, 2 and 4 machines, on the virtual clock: times only."""
    found = []
    for machines in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            run = mh.simulate(
                job,
                "single()" if machines == 1 else "allreduce()",
                workers=machines,
                times=f"constant({seconds * FULL['batch'] / machines:.6g})",
                bandwidth=None if machines == 1 else link,
                time_only=True,
                epochs=1,
                values={"model": model, **FULL},
                output=Path(folder) / "run",
            )
            found.append({"machines": machines, "epoch_seconds": round(run.seconds, 2)})
    return found


def printed(runs: list[dict]) -> str:
    """The table of live runs; the first epoch stands apart."""
    rows = []
    for run in runs:
        first, *later = run["epoch_seconds"]
        mean = sum(later) / len(later) if later else first
        alone = [one for one in runs if (one["model"], one["workers"]) == (run["model"], 1)]
        base = statistics.mean(alone[0]["epoch_seconds"][1:]) if alone and later else None
        rows.append(
            [
                run["model"],
                f"{run['workers']}",
                f"{first:.1f} s",
                ", ".join(f"{one:.1f}" for one in later) or "–",
                f"{mean:.1f} s",
                f"{base / mean:.2f}" if base else "–",
                ", ".join(f"{one:.2f}" for one in run["loss"] if one is not None),
                f"{run['accuracy'][-1]:.3f}",
            ]
        )
    header = [
        *("model", "workers", "first epoch", "later epochs, s", "their mean", "speedup"),
        *("training loss of each epoch", "accuracy in the end"),
    ]
    return table(header, rows)


def printed_predictions(predictions: list[dict]) -> str:
    """The table of the full case on the virtual clock."""
    rows = []
    for one in predictions:
        alone = one["epochs"][0]["epoch_seconds"]
        cells = [
            f"{_length(epoch['epoch_seconds'])} ({alone / epoch['epoch_seconds']:.2f})"
            for epoch in one["epochs"]
        ]
        machine = "a core of this one" if one["faster"] == 1 else f"{one['faster']} times as fast"
        took = f"{1e3 * one['seconds']:.3g} ms"
        rows.append([one["model"], machine, took, one["link"], *cells])
    header = ["model", "machine", "a sample takes", "link"]
    header += [f"epoch on {machines} (speedup)" for machines in (1, 2, 4)]
    return table(header, rows)


def _length(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds > 3600 else f"{seconds:.0f} s"


def main() -> None:
    """Train on 1, 2 and 4 workers, simulate the full case, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--side", type=int, default=64, choices=[32, 64, 128])
    parser.add_argument("--images", type=int, default=160, help="photographs of an epoch")
    parser.add_argument("--batch", type=int, default=32, help="global batch")
    parser.add_argument("--epochs", type=float, default=5, help="passes over the photographs")
    parser.add_argument("--no-prediction", action="store_true", help="train only")
    parser.add_argument("--keep", metavar="NAME", help="store the figures in results/NAME.json")
    asked = parser.parse_args()
    settings = {"side": asked.side, "images": asked.images, "batch": asked.batch}
    runs, predictions = [], []
    for model in asked.models:
        for workers in asked.workers:
            strategy = "single()" if workers == 1 else "allreduce()"
            values = {"model": model, **settings}
            run = mh.train(job, strategy, workers=workers, epochs=asked.epochs, values=values)
            runs.append(figures(model, run))
    print(printed(runs))
    for model in [] if asked.no_prediction else asked.models:
        seconds = seconds_per_sample(model, FULL["side"])
        for faster, link in ((1, "1gbit"), (FASTER, "1gbit"), (FASTER, "10gbit")):
            told = {"model": model, "faster": faster, "link": link, "seconds": seconds / faster}
            predictions.append(told | {"epochs": predict(model, seconds / faster, link)})
    if predictions:
        print(f"\n{printed_predictions(predictions)}")
    if asked.keep:
        told = {"settings": settings, "runs": runs, "predictions": predictions}
        print(f"figures: {keep(asked.keep, told).name}")


if __name__ == "__main__":
    main()
