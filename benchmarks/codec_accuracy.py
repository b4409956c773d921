"""What codecs cost in accuracy: LeNet on MNIST and a small GPT on Tiny Shakespeare, three seeds.

Four workers on the virtual cluster: gradients, encoding and decoding are real, and only the clock
is not. Every codec with its error feedback, and some without it. On MNIST, with SGD, workers of
`synchronous` send gradients; the GPT has AdamW, which scales what arrives by its own size, so that
workers of `averaging(every=1)` step first and send changes; with `--task gpt_gradients` they send
gradients. `--task diloco` compares `diloco` with and without a codec in both directions; `--task
long_diloco` does so on a smaller GPT and for more than a hundred outer rounds: a codec that sends
1.6 % of a change needs some sixty to send all of it. Differences are of the same seed with and
without a codec.
"""

import argparse
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Sized
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import keep, kept, report
from manyhands.failure import Diverged

WORKERS = 4
CODECS = (
    *("half()", "bfloat16()", "int8()", "int4()", "qsgd()", "ternary()", "onebit()"),
    *("threshold(density=0.01)", "topk(0.01)", "topk(0.001)", "randomk(0.01, feedback=true)"),
    *("chunked_topk()", "chain(topk(0.01), int8())"),
)
WITHOUT = ("onebit(feedback=false)", "topk(0.01, feedback=false)", "topk(0.001, feedback=false)")
"""Without error feedback, to see what it is for."""
DILOCO = (
    "diloco(every=30)",
    "diloco(every=30, codec=chunked_topk(chunk=4096, fraction=0.0156, bits=2))",
    "diloco(every=30, outer_lr=1, outer_momentum=0)",
    (
        "diloco(every=30, outer_lr=1, outer_momentum=0, "
        "codec=chunked_topk(chunk=4096, fraction=0.0156, bits=2))"
    ),
)
"""Without outer momentum as in SparseLoCo: there the error feedback takes its place."""


@dataclass
class Values:
    """The values of one side, one for each seed."""

    name: str
    values: list[float | None] = field(default_factory=list)
    """None for a run that diverged."""

    def row(self, plain: "Values", percent: bool) -> str:
        """For the table."""
        known = [one for one in self.values if one is not None]
        dense = [one for one in plain.values if one is not None]
        if len(known) < len(dense):
            return f"| `{self.name}` | {len(dense) - len(known)} of {len(dense)} diverged | |"
        apart = [own - other for own, other in zip(known, dense, strict=True)]
        scale, digits = (100.0, 2) if percent else (1.0, 4)
        means = [scale * statistics.mean(each) for each in (known, apart)]
        low, high = scale * min(known), scale * max(known)
        return (
            f"| `{self.name}` | {means[0]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) "
            f"| {means[1]:+.{digits}f} |"
        )


def mnist(samples: int) -> mh.Job:
    """LeNet, two epochs."""
    return mh.Job(
        model=mh.models.LeNet,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        loss=F.cross_entropy,
        data=torch.utils.data.Subset(mh.data.mnist("train"), range(samples)),
        validation=mh.data.mnist("test"),
        evaluate_every=mh.every(epochs=2),
        global_batch=128,
        epochs=2,
    )


def cosine(samples: int, data: Sized) -> mh.LRSchedule:
    """To nothing at the end of the run: what waits in residuals is sent while little is added."""
    epochs = samples / len(data)
    return mh.lr_schedules.cosine(epochs, warmup=0.05 * epochs)


def shakespeare(steps: int) -> mh.Job:
    """A GPT of two blocks."""
    test = mh.data.tinyshakespeare("test", 64)
    return mh.Job(
        model=functools.partial(mh.models.GPT, width=64, layers=2, heads=4, length=64),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
        loss=F.cross_entropy,
        data=mh.data.tinyshakespeare("train", 64),
        validation=torch.utils.data.Subset(test, range(512)),
        metrics=(),
        global_batch=32,
        samples=32 * steps,
        lr_schedule=cosine(32 * steps, mh.data.tinyshakespeare("train", 64)),
    )


def short_lines(steps: int) -> mh.Job:
    """A smaller GPT on lines of 32 characters, for many cheap steps."""
    test = mh.data.tinyshakespeare("test", 32)
    return mh.Job(
        model=functools.partial(mh.models.GPT, width=48, layers=2, heads=4, length=32),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
        loss=F.cross_entropy,
        data=mh.data.tinyshakespeare("train", 32),
        validation=torch.utils.data.Subset(test, range(1024)),
        evaluate_every=mh.every(samples=16 * steps),
        metrics=(),
        global_batch=16,
        samples=16 * steps,
        lr_schedule=cosine(16 * steps, mh.data.tinyshakespeare("train", 32)),
    )


SIDES = {
    "mnist": ("synchronous()", "synchronous(codec={})"),
    "gpt": ("averaging(every=1)", "averaging(every=1, codec={}, answer_codec=int8())"),
    "gpt_gradients": ("synchronous()", "synchronous(codec={}, answer_codec=int8())"),
}
"""Strategies without and with a codec."""
JOBS = {
    "mnist": mnist,
    "gpt": shakespeare,
    "gpt_gradients": shakespeare,
    "diloco": shakespeare,
    "long_diloco": short_lines,
}
SIZES = {"mnist": 60_000, "gpt": 600, "gpt_gradients": 600, "diloco": 600, "long_diloco": 4000}
"""Samples of MNIST, or steps of the GPT."""


def one(task: str, size: int, strategy: str, seed: int) -> float | None:
    """The accuracy, or the loss, of a run; None if it diverged."""
    torch.set_num_threads(1)
    job = JOBS[task](size)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = mh.simulate(job, strategy, workers=WORKERS, seed=seed, output=f"{folder}/run")
        except Diverged:
            return None
        return run.metrics["accuracy" if task == "mnist" else "loss"]


def stored(name: str, size: int) -> dict[str, dict[str, float | None]]:
    """By side and seed, what was stored of runs of this size."""
    try:
        figures = kept(name)["figures"]
    except FileNotFoundError:
        return {}
    if figures["size"] != size:
        return {}
    return {
        side: dict(values)
        if isinstance(values, dict)
        else {str(n): v for n, v in enumerate(values)}
        for side, values in figures.items()
        if side != "size"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=[*JOBS], default="mnist")
    parser.add_argument("--size", type=int, help="samples of MNIST (60000), or steps of the GPT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="the codecs whose text holds this")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="store every value when it is known, and make only runs whose value is not stored",
    )
    given = parser.parse_args()
    size, name = given.size or SIZES[given.task], f"codec_accuracy_{given.task}"
    plain, coded = SIDES.get(given.task, SIDES["mnist"])
    sides = {"none": plain} | {
        codec: coded.format(codec) for codec in (*CODECS, *WITHOUT) if given.only in codec
    }
    if given.task.endswith("diloco"):
        sides = {text: text for text in DILOCO}
    found = stored(name, size) if given.keep else {}
    figures: dict[str, object] = {"size": size, **found}
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        asked = {
            pool.submit(one, given.task, size, text, seed): (side, str(seed))
            for seed in range(given.seeds)
            for side, text in sides.items()
            if str(seed) not in found.get(side, {})
        }
        try:
            for value in as_completed(asked):
                side, seed = asked[value]
                found.setdefault(side, {})[seed] = value.result()
                figures |= found
                print(f"{side}, seed {seed}: {value.result()}", file=sys.stderr, flush=True)
                if given.keep:
                    keep(name, figures)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    percent = given.task == "mnist"
    what = "accuracy, %" if percent else "validation loss"
    print(f"| codec | {what}, mean (range) of {given.seeds} seeds | to none |\n| --- | --- | --- |")
    rows = {
        side: Values(side, [found[side][str(seed)] for seed in range(given.seeds)])
        for side in sides
    }
    reference = next(iter(rows.values()))
    for values in rows.values():
        print(values.row(reference, percent))
    report(name, figures)


if __name__ == "__main__":
    main()
