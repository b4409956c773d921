"""One worker of torchft for `benchmarks.elastic`: the same model, batch and pace as ours.

With one argument it is the lighthouse, whose address it prints. Otherwise it trains, and prints a
line for each committed step: the time, the step, and how many workers took part.
"""

import sys
import time
from datetime import timedelta

import torch
import torchft
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer

from benchmarks.elastic_job import job

TIMEOUT = timedelta(seconds=30)


def serve() -> None:
    # Other settings are torchft's defaults: a worker is left out after 5 s without a heartbeat.
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    print(lighthouse.address(), flush=True)
    time.sleep(3600)


def train(rank: int, address: str) -> None:
    torch.manual_seed(0)
    model = job.model()
    optimizer = job.make_optimizer(model)

    def give() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def take(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=take,
        state_dict=give,
        min_replica_size=1,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"worker_{rank}_",
        hostname="127.0.0.1",
    )
    # Its DistributedDataParallel raises AssertionError in its hook when a peer dies (0.2.0), so the
    # manager averages the gradient as one vector.
    parameters = [*model.parameters()]
    stepping = torchft.Optimizer(manager, optimizer)
    inputs, targets = (tensor[:: len(job.data) // 20][:20] for tensor in job.data.tensors)
    while True:
        before = manager.current_step()
        stepping.zero_grad()
        job.loss(model(inputs), targets).backward()
        flat = torch.cat([one.grad.view(-1) for one in parameters])
        manager.allreduce(flat).wait()
        parts = flat.split_with_sizes([one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.grad.copy_(part.view_as(one))
        stepping.step()
        if manager.current_step() > before:
            line = f"{time.monotonic()} {manager.current_step()} {manager.num_participants()}"
            print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve()
    else:
        train(int(sys.argv[1]), sys.argv[2])
