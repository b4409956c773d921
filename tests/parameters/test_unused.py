"""A server's parameters without a gradient: none, not zero, also after it was restarted."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import manyhands as mh
from manyhands.parameters import Holder

SIZES = {"a": (3, 4), "b": (5,), "c": (2, 2), "d": (7,)}
OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.1),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.1, weight_decay=0.1),
}
STEPS = [{}, {"b"}, {"a", "c"}, set(SIZES), {}, {"d"}, {"b", "c"}]
"""By step, the parameters without a gradient."""


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))


def job(kind: str) -> mh.Job:
    return mh.Job(
        model=Named,
        optimizer=lambda model: OPTIMIZERS[kind](model.parameters()),
        loss=functional.mse_loss,
        data=torch.utils.data.TensorDataset(torch.zeros(4, 1), torch.zeros(4, 1)),
        global_batch=2,
        epochs=1,
        metrics=(),
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("restarts_after", [None, 0, 1, 3, 5])
@pytest.mark.parametrize("is_summed", [False, True])
def test_what_is_unused_stays_as_it_is(kind, restarts_after, is_summed) -> None:
    holder = Holder(job(kind), 0, 1)
    places = {one.name: place for place, one in enumerate(holder.shard.parameters)}
    whole = {
        one.name: nn.Parameter(one.view(holder.bytes).clone()) for one in holder.shard.parameters
    }
    plain = OPTIMIZERS[kind]([whole[one.name] for one in holder.shard.parameters])
    for step, absent in enumerate(STEPS):
        update = torch.zeros_like(holder.bytes)
        for one in holder.shard.parameters:
            gradient = torch.randn(one.shape, dtype=torch.float64)
            whole[one.name].grad = None if one.name in absent else gradient
            if one.name not in absent:
                one.view(update).copy_(gradient)
        plain.step()
        unused = frozenset(places[name] for name in absent)
        if is_summed:
            # Another worker has used fewer of them.
            holder.add(update, 1.0)
            holder.note_unused(unused)
            holder.add(update, 1.0)
            holder.note_unused(unused | {0})
            unused = holder.take_unused()
            update = holder.take_sum(2.0)
        holder.step(update, 1.0, unused=unused)
        if step == restarts_after:
            tensors, numbers = holder.state()
            stored = {name: one.clone() for name, one in tensors.items()}
            holder = Holder(job(kind), 0, 1)
            holder.restore(stored, json.loads(msgspec.json.encode(numbers)))
        for one in holder.shard.parameters:
            torch.testing.assert_close(
                one.view(holder.bytes), whole[one.name].detach(), rtol=0, atol=1e-12
            )


def test_a_sum_under_way_is_stored_with_what_is_unused_in_it() -> None:
    holder = Holder(job("adamw"), 0, 1)
    holder.add(torch.zeros_like(holder.bytes), 1.0, pot=2)
    holder.note_unused(frozenset({1, 3}), pot=2)
    tensors, numbers = holder.state()
    again, said = Holder(job("adamw"), 0, 1), json.loads(msgspec.json.encode(numbers))
    again.restore({name: one.clone() for name, one in tensors.items()}, said)
    again.note_unused(frozenset({0, 3}), pot=2)
    assert again.take_unused(2) == {3}
    assert again.take_unused(2) == frozenset()
