"""The script of `benchmarks.first_step`: a small model as a job, and the same with DDP by hand."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it


def model() -> torch.nn.Module:
    """A perceptron."""
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))


def data() -> torch.utils.data.TensorDataset:
    """Random samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 20, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 3, (512,), generator=generator))


def optimizer(module: torch.nn.Module) -> torch.optim.Optimizer:
    """SGD."""
    return torch.optim.SGD(module.parameters(), lr=0.1)


def by_hand() -> None:
    """DDP as in its tutorial."""
    import torch.distributed as dist  # noqa: PLC0415 - this side alone has it
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    dist.init_process_group("gloo")
    module = DistributedDataParallel(model())
    stepped = optimizer(module)
    samples = torch.utils.data.DataLoader(data(), batch_size=16)
    for number, (inputs, targets) in enumerate(samples):
        stepped.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        stepped.step()
        if number == 0 and dist.get_rank() == 0:
            Path(os.environ["FIRST"]).touch()
    dist.destroy_process_group()


if os.environ.get("SIDE") == "torchrun":
    by_hand()
else:
    import manyhands as mh

    def loop(trainer: mh.Trainer) -> None:
        """Say when the first step is made."""
        for batch in trainer.batches():
            trainer.step(batch)
            if batch.step == 0 and trainer.rank == 0:
                Path(os.environ["FIRST"]).touch()

    job = mh.Job(
        model=model,
        optimizer=optimizer,
        loss=F.cross_entropy,
        data=data(),
        global_batch=32,
        epochs=1,
    )
    if __name__ == "__main__":
        mh.train(job, "allreduce()", workers=2, loop=loop, output=os.environ["OUTPUT"])
