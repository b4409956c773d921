"""The yardstick of `benchmarks.overhead`: DDP as its tutorial shows it, and nothing else."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from benchmarks.overhead_ours import Dictionaries, data, dictionaries, model, objective, parts
from benchmarks.turnstile import Turnstile


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    module = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = data().tensors
    samples = Dictionaries() if dictionaries else None
    turnstile = Turnstile(os.environ["TURNSTILE"]) if rank == 0 else None
    for mine in parts(rank, size):
        if samples is None:
            batch, labels = inputs[mine], targets[mine]
        else:
            loaded = default_collate([samples[index] for index in mine.tolist()])
        if turnstile and not turnstile.step():
            return
        optimizer.zero_grad()
        if samples is None:
            F.cross_entropy(module(batch), labels).backward()
        else:
            objective(module, loaded).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
