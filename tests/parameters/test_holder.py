"""Servers that hold a part each do together what one optimizer does to the whole model."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn, optim
from torch.utils.data import TensorDataset

from manyhands.job import Job
from manyhands.parameters import Copy, Holder
from manyhands.parameters.scheduled_step import weighted_step


class Net(nn.Module):
    """Two parameter groups, a tied and a frozen parameter, two types, batch norm."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before batch norm has a gradient of mere rounding, which Adafactor would blow up.
        self.inner = nn.Linear(5, 5, bias=False).double()
        self.norm = nn.BatchNorm1d(5).double()
        self.outer = nn.Linear(5, 5).double()
        self.outer.weight = self.inner.weight
        self.frozen = nn.Linear(5, 5).double().requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.inner(inputs))
        return self.frozen(self.outer(hidden.tanh())) * self.scale.sum().double()


def groups(model: nn.Module) -> list[dict[str, object]]:
    weights = [p for name, p in model.named_parameters() if "weight" in name]
    others = [p for name, p in model.named_parameters() if "weight" not in name]
    return [{"params": weights, "lr": 0.02}, {"params": others, "lr": 0.05}]


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "sgd": lambda m: optim.SGD(groups(m), momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda m: optim.SGD(groups(m), momentum=0.9, nesterov=True),
    "adam": lambda m: optim.Adam(groups(m), amsgrad=True),
    "adamw": lambda m: optim.AdamW(groups(m), weight_decay=0.1),
    "adagrad": lambda m: optim.Adagrad(groups(m)),
    "rmsprop": lambda m: optim.RMSprop(groups(m), momentum=0.5),
    "adafactor": lambda m: optim.Adafactor(groups(m)),
}


def make_job(kind: str) -> Job:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(48, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 5, (48,), generator=generator)
    return Job(
        model=Net,
        optimizer=OPTIMIZERS[kind],
        loss=F.cross_entropy,
        data=TensorDataset(inputs, targets),
        global_batch=16,
        epochs=1,
        seed=2,
    )


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_shards_step_as_the_optimizer_steps_on_the_whole_model(kind: str, servers: int) -> None:
    job = make_job(kind)
    copy = Copy(job, servers, torch.device("cpu"))
    holders = [Holder(job, number, servers) for number in range(servers)]
    torch.manual_seed(job.seed)
    model = job.model()
    whole = job.optimizer(model)
    for start, weight in ((0, 1.0), (16, 1.0), (32, 0.25), (0, 0.25)):
        inputs, targets = (tensor[start : start + 16] for tensor in job.data.tensors)  # type: ignore[attr-defined]
        for place, holder in zip(copy.parameters, holders, strict=True):
            place.copy_(holder.bytes)
        copy.gradient(inputs, targets, len(inputs))
        for holder, update in zip(holders, copy.updates, strict=True):
            holder.step(update.clone(), weight)
        whole.zero_grad()
        job.loss(model(inputs), targets).backward()
        weighted_step(whole, weight)
    for place, holder in zip(copy.parameters, holders, strict=True):
        place.copy_(holder.bytes)
    found = dict(copy.model.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter, rtol=1e-6, atol=1e-9, msg=name)


def test_buffers_move_towards_the_sender_s() -> None:
    holder = Holder(make_job("sgd"), 0, 1)
    mean, var = (
        next(piece for piece in holder.shard.buffers if piece.name == f"norm.running_{name}")
        for name in ("mean", "var")
    )
    update = torch.zeros_like(holder.bytes)
    for piece in (mean, var):
        piece.view(update).fill_(5.0)
    holder.step(update, weight=1.0, blend=0.25)
    assert torch.equal(mean.view(holder.bytes), torch.full((5,), 1.25).double())
    assert torch.equal(var.view(holder.bytes), torch.full((5,), 2.0).double())
    holder.step(update, weight=0.5)
    assert torch.equal(var.view(holder.bytes), torch.full((5,), 5.0).double())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_successor_continues_where_the_state_was_taken(kind: str) -> None:
    job = make_job(kind)
    generator = torch.Generator().manual_seed(1)
    first, second = Holder(job, 0, 2), Holder(job, 0, 2)
    updates = []
    for _ in range(6):
        updates.append(torch.zeros_like(first.bytes))
        for piece in first.shard.parameters:
            drawn = torch.randn(piece.shape, generator=generator, dtype=torch.float64)
            piece.view(updates[-1]).copy_(drawn)
    for update in updates[:3]:
        first.step(update, 0.5)
    tensors, numbers = first.state()
    second.restore({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    for update in updates[3:]:
        first.step(update, 0.5)
        second.step(update, 0.5)
    assert torch.equal(first.bytes, second.bytes)


def test_a_step_leaves_the_learning_rates_and_the_update_as_they_were() -> None:
    holder = Holder(make_job("sgd"), 0, 2)
    update = torch.ones_like(holder.bytes)
    kept = update.clone()
    holder.step(update, 0.5)
    assert [group["lr"] for group in holder.optimizer.param_groups] == [0.02, 0.05]
    assert torch.equal(update, kept)


def test_all_holders_begin_with_the_job_s_seed() -> None:
    job = make_job("adamw")
    copy = Copy(job, 3, torch.device("cpu"))
    for number in range(3):
        holder = Holder(job, number, 3)
        for piece in holder.shard.parameters:
            assert torch.equal(piece.view(holder.bytes), piece.view(copy.parameters[number]))
