"""What the checks of values cost: a hash of the replica every 100 steps, and NaN in every gradient.

One process with one thread trains as a worker of `allreduce` would; a step, the hash and the check
are timed in turns. The collectives by which workers compare are not: eight bytes each.

    python -m benchmarks.value_checks
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import keep, report
from manyhands.codecs.kernels.finite import not_finite_among
from manyhands.live.member.equal_replicas import fingerprint

BATCH = 32
EVERY = 100
"""Steps between two comparisons: the default of `allreduce`."""
MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "MLP, 85 k": functools.partial(mh.models.MLP, 784, (107,), 10),
    "MLP, 1 M": functools.partial(mh.models.MLP, 784, (700, 640), 10),
    "MLP, 10 M": functools.partial(mh.models.MLP, 784, (2800, 2800), 10),
    "LeNet": mh.models.LeNet,
    "GPT": functools.partial(mh.models.GPT, width=128, layers=4, heads=4, length=64),
}


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measured(
    model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, rounds: int
) -> dict[str, list[float]]:
    """By part, the seconds of each round: a step, the hash, the check."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        outputs = model(inputs)
        F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)).backward()
        optimizer.step()

    def check() -> None:
        not_finite_among([one.grad for one in model.parameters() if one.grad is not None])

    parts = {"step": step, "hash": lambda: fingerprint(model.parameters()), "check": check}
    for work in parts.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        for name, work in parts.items():
            found[name].append(seconds(work))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--keep", action="store_true", help="store the figures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {}
    print("| model | step, ms | hash every 100 steps, % | NaN check, % |")
    print("| --- | --- | --- | --- |")
    for name, make in MODELS.items():
        model = make()
        inputs = torch.randn(BATCH, 1, 28, 28)
        if name == "GPT":
            inputs = torch.randint(0, 65, (BATCH, 64))
        with torch.no_grad():
            outputs = model(inputs)
        targets = torch.randint(0, outputs.shape[-1], outputs.shape[:-1])
        found = measured(model, inputs, targets, given.rounds)
        step = statistics.median(found["step"])
        hashed = 100 * statistics.median(found["hash"]) / EVERY / step
        checked = 100 * statistics.median(found["check"]) / step
        figures[name] = {"step": step, "hash": hashed, "check": checked}
        print(f"| {name} | {1e3 * step:.2f} | {hashed:.3f} | {checked:.2f} |", flush=True)
    (keep if given.keep else report)("value_checks", figures)


if __name__ == "__main__":
    main()
