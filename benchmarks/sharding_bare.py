"""The yardstick of `benchmarks.sharding`: the same training, written by hand on torch."""

import os
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.sharding_ours import BATCH, data, model
from benchmarks.turnstile import Turnstile

Made = tuple[nn.Module, torch.optim.Optimizer]


def sharded(*, reshard_after_forward: bool, offload: bool = False) -> Made:
    """FSDP2, block by block."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = model()
    policy = CPUOffloadPolicy(pin_memory=False) if offload else OffloadPolicy()
    layers = list(module.children())
    for layer in layers:
        back = reshard_after_forward and layer is not layers[-1]
        fully_shard(layer, mesh=mesh, reshard_after_forward=back, offload_policy=policy)
    fully_shard(module, mesh=mesh, reshard_after_forward=False, offload_policy=policy)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-3)


def zero_1() -> Made:
    """DDP and torch's optimizer for it."""
    module = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        module.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3
    )
    return module, optimizer


def tensor() -> Made:
    """DTensor, with the input of attention told once."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = model()
    plan = {
        "embedding.token": RowwiseParallel(input_layouts=Replicate()),
        "*.attention": PrepareModuleInput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Replicate(),),
            use_local_output=False,
        ),
        "*.attention.query": ColwiseParallel(),
        "*.attention.key": ColwiseParallel(),
        "*.attention.value": ColwiseParallel(),
        "*.attention.out": RowwiseParallel(),
        "*.mlp.up": ColwiseParallel(),
        "*.mlp.down": RowwiseParallel(),
        "head.logits": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(module, mesh, plan)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-3)


class Exchange(torch.autograd.Function):
    """Heads for positions, by an all-to-all."""

    @staticmethod
    def forward(ctx, given, away, back):  # type: ignore[no-untyped-def]  # noqa: D102
        ctx.dims = back, away
        parts = torch.stack(given.chunk(dist.get_world_size(), dim=away))
        arrived = torch.empty_like(parts)
        dist.all_to_all_single(arrived, parts)
        return torch.cat(list(arrived), dim=back)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: D102
        return Exchange.apply(gradient, *ctx.dims), None, None


def attend(self: nn.Module, stream: torch.Tensor) -> torch.Tensor:
    """The GPT's attention, with an exchange before it and one after."""
    heads = torch.stack(
        [
            layer(stream).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
    )
    query, key, value = Exchange.apply(heads, 2, 3)
    seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return self.out(Exchange.apply(seen, 2, 1).transpose(1, 2).flatten(2))


def embed(self: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The GPT's embedding of this worker's stretch."""
    stretch = tokens.shape[1]
    positions = torch.arange(stretch) + stretch * dist.get_rank()
    return self.token(tokens) + self.position(positions)


def context() -> Made:
    """DDP, with every sequence divided."""
    module = model()
    type(module.embedding).forward = embed
    type(module.block1.attention).forward = attend
    wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3)


MAKERS: dict[str, Callable[[], Made]] = {
    "fully_sharded()": lambda: sharded(reshard_after_forward=True),
    "zero(stage=1)": zero_1,
    "zero(stage=2)": lambda: sharded(reshard_after_forward=False),
    "tensor(ways=2)": tensor,
    "context(ways=2)": context,
    "offload()": lambda: sharded(reshard_after_forward=True, offload=True),
}


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    how, rank, size = os.environ["OVERHEAD_OF"], dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    module, optimizer = MAKERS[how]()
    inputs, targets = data().tensors
    turnstile = Turnstile(os.environ["TURNSTILE"]) if rank == 0 else None
    same_samples = how.startswith(("tensor", "context"))
    share = BATCH if same_samples else BATCH // size
    epoch = 0
    while True:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(inputs), BATCH):
            begin = start if same_samples else start + rank * share
            mine = order[begin : begin + share]
            batch, labels = inputs[mine], targets[mine]
            if how.startswith("context"):
                batch, labels = (one.chunk(size, dim=1)[rank] for one in (batch, labels))
            if turnstile and not turnstile.step():
                return
            optimizer.zero_grad()
            F.cross_entropy(module(batch), labels).backward()
            optimizer.step()
        epoch += 1


if __name__ == "__main__":
    main()
