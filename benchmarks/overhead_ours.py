"""The other side of `benchmarks.overhead`: the same training as a Manyhands job."""

import os
from collections.abc import Iterator
from itertools import count

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.turnstile import loop as loop  # noqa: PLC0414 - taken by its name

BATCH = 64
SAMPLES = 8192
LENGTH = 64
HIDDEN = {"mlp85k": (100, 64), "mlp1m": (784, 480), "mlp10m": (2048, 2048, 2048)}


def model() -> torch.nn.Module:
    """LeNet, a small GPT, or a perceptron with 85 k, 1 M or 10 M parameters."""
    if os.environ["OVERHEAD_OF"].startswith("lenet"):
        return mh.models.LeNet()
    if os.environ["OVERHEAD_OF"] == "gpt":
        return mh.models.GPT(vocabulary=65, width=128, layers=4, heads=4, length=LENGTH)
    return mh.models.MLP(784, HIDDEN[os.environ["OVERHEAD_OF"]], 10)


def data() -> torch.utils.data.TensorDataset:
    """Random digits, or tokens: this benchmark is about time."""
    generator = torch.Generator().manual_seed(0)
    if os.environ["OVERHEAD_OF"] == "gpt":
        tokens = torch.randint(0, 65, (512, LENGTH + 1), generator=generator)
        return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    inputs = torch.randn(SAMPLES, 1, 28, 28, generator=generator)
    return torch.utils.data.TensorDataset(
        inputs, torch.randint(0, 10, (SAMPLES,), generator=generator)
    )


def parts(rank: int, size: int) -> Iterator[torch.Tensor]:
    """The indices of one worker's part of each batch, for ever."""
    share, samples = BATCH // size, len(data())
    for epoch in count():
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, samples, BATCH):
            yield order[start + rank * share : start + (rank + 1) * share]


class Dictionaries(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same samples as dictionaries, loaded one by one."""

    def __init__(self) -> None:
        self.inputs, self.targets = data().tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"images": self.inputs[index], "labels": self.targets[index]}


def objective(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of a batch of dictionaries."""
    return F.cross_entropy(module(batch["images"]), batch["labels"])


dictionaries = os.environ["OVERHEAD_OF"].endswith("dict")
job = mh.Job(
    model=model,
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9),
    loss=None if dictionaries else F.cross_entropy,
    objective=objective if dictionaries else None,
    data=Dictionaries() if dictionaries else data(),
    global_batch=BATCH,
    epochs=10_000,
)

if __name__ == "__main__":
    mh.train(
        job,
        os.environ.get("OVERHEAD_STRATEGY", "allreduce()"),
        workers=int(os.environ.get("OVERHEAD_WORKERS", "2")),
        loop=loop,
        output=os.environ["OVERHEAD_OUTPUT"],
    )
