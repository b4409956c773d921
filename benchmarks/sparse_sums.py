"""How full sums of sparse gradients become: SparCML's question, with real gradients of MNIST.

LeNet is trained in this process as N workers of `allreduce(codec=sparse_sum(f))` would train it:
each has its own samples and residual, selects the largest entries of all of its gradient, and the
sparse vectors are added by the reducer's own code. What is printed is the fraction of entries that
a sum of 2, 4, 8, … workers has, beside what it would be if workers selected at random:
1 − (1 − f)ⁿ.

    python -m benchmarks.sparse_sums
"""

import argparse
import statistics

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh
from benchmarks.figures import keep, report
from manyhands.codecs.kernels.arrays import numbers
from manyhands.codecs.kernels.largest import largest
from manyhands.codecs.reducers import SparseSum
from manyhands.placements.compression.sparse import SparseVector

FRACTIONS = (0.1, 0.01, 0.001)
BATCH = 32
"""Of each worker."""


def densities(fraction: float, workers: int, steps: int) -> dict[int, float]:
    """By number of workers, the mean fraction of entries in their sum, after the first steps."""
    torch.manual_seed(0)
    model, data = mh.models.LeNet(), mh.data.mnist("train")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    size = sum(one.numel() for one in model.parameters())
    entries = SparseSum(fraction).selected(size)
    residuals = [torch.zeros(size) for _ in range(workers)]
    found: dict[int, list[float]] = {}
    for step in range(steps):
        vectors = []
        for worker, residual in enumerate(residuals):
            first = (step * workers + worker) * BATCH
            inputs, targets = zip(*(data[first + at] for at in range(BATCH)), strict=True)
            model.zero_grad()
            loss = cross_entropy(model(torch.stack(inputs)), torch.as_tensor(targets))
            loss.backward()  # type: ignore[no-untyped-call]
            residual.add_(torch.cat([one.grad.reshape(-1) for one in model.parameters()]))
            indices = torch.from_numpy(largest(numbers(residual), entries))
            vectors.append(SparseVector(size, indices.int(), residual[indices]))
            residual[indices] = 0
        among = 1
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors, among = [one.added(other) for one, other in pairs], 2 * among
            if step >= steps // 2:  # by then residuals have grown to their usual size
                filled = statistics.mean(len(one.values) for one in vectors) / size
                found.setdefault(among, []).append(filled)
        mean = vectors[0].densified().values / workers
        parts = mean.split([one.numel() for one in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    return {among: statistics.mean(values) for among, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16, help="a power of two")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts = [2**power for power in range(1, given.workers.bit_length())]
    print(f"| selected | {' | '.join(f'{count} workers' for count in counts)} | sent whole from |")
    print("| --- " * (len(counts) + 2) + "|")
    figures: dict[str, object] = {}
    for fraction in FRACTIONS:
        measured = densities(fraction, given.workers, given.steps)
        cells = [
            f"{100 * measured[count]:.2f} % ({100 * (1 - (1 - fraction) ** count):.2f} %)"
            for count in counts
        ]
        whole = [n for n in counts if SparseSum.is_dense(int(measured[n] * 10**6), 10**6, 4)]
        said = f"{whole[0]} workers" if whole else "–"
        print(f"| {100 * fraction:g} % | {' | '.join(cells)} | {said} |", flush=True)
        figures[str(fraction)] = {str(count): measured[count] for count in counts}
    if given.keep:
        keep("sparse_sums", figures)
    report("sparse_sums", figures)


if __name__ == "__main__":
    main()
