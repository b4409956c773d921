"""The yardsticks of `benchmarks.codecs`: DDP, alone or with one of torch's own hooks.

A worker's last line is the seconds of each step after the first epoch, and the bytes that its
network interface sent in a step.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.codecs_job import BATCH, EPOCH, data, model


def hooked(module: DistributedDataParallel, hook: str) -> None:
    """Register one of torch's hooks."""
    if hook == "bf16":
        # By its own name DDP refuses it without CUDA; Gloo sums bfloat16 all the same.
        module.register_comm_hook(
            None, lambda _, bucket: default_hooks.bf16_compress_hook(None, bucket)
        )
    elif hook.startswith("powersgd"):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=int(hook[len("powersgd") :]), start_powerSGD_iter=2
        )
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        raise ValueError(f"expected none, bf16 or powersgd1, powersgd2, …, got {hook}")


def sent() -> int:
    """Bytes that the interface of this network namespace has sent."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            return int(counters.split()[8])
    return 0


def main() -> None:
    hook, epochs = sys.argv[1], int(os.environ["CODECS_EPOCHS"])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # With several buckets the callbacks of torch's PowerSGD hook start collectives in an order that
    # differs between ranks, which Gloo does not allow.
    whole = {"bucket_cap_mb": 1024} if hook.startswith("powersgd") else {}
    module = DistributedDataParallel(model(), **whole)
    hooked(module, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs, targets = data().tensors
    share = BATCH // size
    begun, before = time.monotonic(), 0
    for epoch in range(epochs - 1):
        if epoch == 1:
            dist.barrier()
            begun, before = time.monotonic(), sent()
        for start in range(0, len(inputs), BATCH):
            mine = slice(start + rank * share, start + (rank + 1) * share)
            optimizer.zero_grad()
            F.cross_entropy(module(inputs[mine]), targets[mine]).backward()
            optimizer.step()
    dist.barrier()
    steps = EPOCH * (epochs - 2)
    print(json.dumps([steps / (time.monotonic() - begun), (sent() - before) / steps]), flush=True)


if __name__ == "__main__":
    main()
