"""Other ways to train on one host, each as its documentation shows, for `benchmarks.one_host`.

`PEER` says which: `ddp` is DDP as in its tutorial, `accelerate` and `fabric` are trainers on top of
it, `mpi` sums all gradients as one vector with mpi4py, and `sums` is a loop by hand with our sums.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from benchmarks.overhead_ours import data, model, parts
from benchmarks.turnstile import Turnstile

Step = Callable[[torch.Tensor, torch.Tensor], None]


def _optimizer(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


def ddp() -> tuple[int, int, Step]:
    """https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html."""
    import torch.distributed as dist  # noqa: PLC0415 - each peer has modules of its own
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    dist.init_process_group("gloo")
    module = DistributedDataParallel(model())
    optimizer = _optimizer(module)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        optimizer.step()

    return dist.get_rank(), dist.get_world_size(), step


def accelerate() -> tuple[int, int, Step]:
    """https://huggingface.co/docs/accelerate/basic_tutorials/migration."""
    from accelerate import Accelerator  # noqa: PLC0415

    accelerator: Any = Accelerator(cpu=True)
    module = model()
    module, optimizer = accelerator.prepare(module, _optimizer(module))

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(module(inputs), targets))
        optimizer.step()

    return accelerator.process_index, accelerator.num_processes, step


def fabric() -> tuple[int, int, Step]:
    """https://lightning.ai/docs/fabric/stable/fundamentals/convert.html."""
    from lightning_fabric import Fabric  # noqa: PLC0415

    runner: Any = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    runner.launch()
    module = model()
    module, optimizer = runner.setup(module, _optimizer(module))

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        runner.backward(F.cross_entropy(module(inputs), targets))
        optimizer.step()

    return runner.global_rank, runner.world_size, step


def mpi() -> tuple[int, int, Step]:
    """https://mpi4py.readthedocs.io/en/stable/tutorial.html: an Allreduce of buffers."""
    from mpi4py import MPI  # noqa: PLC0415

    everyone: Any = MPI.COMM_WORLD
    module = model()
    optimizer = _optimizer(module)
    parameters = list(module.parameters())
    flat = torch.zeros(sum(one.numel() for one in parameters))
    sizes = [one.numel() for one in parameters]
    views = [part.view_as(one) for part, one in zip(flat.split(sizes), parameters, strict=True)]
    size = everyone.Get_size()

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        torch._foreach_copy_(views, [one.grad for one in parameters])
        everyone.Allreduce(MPI.IN_PLACE, flat.numpy())
        flat.div_(size)
        for one, view in zip(parameters, views, strict=True):
            one.grad = view
        optimizer.step()

    return everyone.Get_rank(), size, step


def sums() -> tuple[int, int, Step]:
    """Our sums in shared memory, and nothing else of ours: what is left is our trainer."""
    from manyhands.engine import TCPStore  # noqa: PLC0415
    from manyhands.placements.worker.averaged_replica import AveragedReplica  # noqa: PLC0415
    from manyhands.transport.collectives import Group  # noqa: PLC0415
    from manyhands.transport.waits import Waits  # noqa: PLC0415

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*place, is_master=rank == 0, wait_for_workers=False)
    group = Group(store, rank, size, epoch=1, device=torch.device("cpu"))
    shared = group.shared_sum(25 * 2**20 // size)
    if shared is None:
        raise RuntimeError("memory cannot be shared here")
    waits = Waits(time.monotonic, lambda _: None)
    module = AveragedReplica(model(), shared, group, waits, equal=False, spare=2**23)
    optimizer = _optimizer(module)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        with module.reducing():
            F.cross_entropy(module(inputs), targets).backward()
        optimizer.step()

    return rank, size, step


PEERS = {"sums": sums, "ddp": ddp, "accelerate": accelerate, "fabric": fabric, "mpi": mpi}


def main() -> None:
    torch.manual_seed(0)
    rank, size, step = PEERS[os.environ["PEER"]]()
    inputs, targets = data().tensors
    turnstile = Turnstile(os.environ["TURNSTILE"]) if rank == 0 else None
    for mine in parts(rank, size):
        batch, labels = inputs[mine], targets[mine]
        if turnstile and not turnstile.step():
            return
        step(batch, labels)


if __name__ == "__main__":
    main()
