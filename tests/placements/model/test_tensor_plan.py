"""Layers are split where that is right, whatever they are called, and nowhere else."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from manyhands.models import GPT, MLP
from manyhands.placements.model.tensor_plan import Pair, find_plan


class Attention(nn.Module):
    """Query, key and value under other names; `order` is what comes of heads and sizes."""

    def __init__(self, heads: int = 4, fixed: bool = False, order: str = "heads first") -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(32, 32) for _ in range(4))
        self.heads, self.fixed, self.order = heads, fixed, order

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        samples, length, width = inputs.shape
        heads = self.heads if self.fixed else -1
        split = (
            layer(inputs).view(samples, length, heads, width // self.heads).transpose(1, 2)
            for layer in (self.a, self.b, self.c)
        )
        seen = functional.scaled_dot_product_attention(*split)
        if self.order == "heads first":
            return self.d(seen.transpose(1, 2).reshape(samples, length, -1))
        return self.d(seen.permute(0, 2, 3, 1).reshape(samples, length, -1))


class OnTheWrongDim(Attention):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        samples, length, width = inputs.shape
        split = (
            layer(inputs).view(samples, -1, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.a, self.b, self.c)
        )
        seen = functional.scaled_dot_product_attention(*split)
        return self.d(seen.transpose(1, 2).reshape(samples, length, -1))


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(inputs).chunk(3, -1)
        heads = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in (query, key, value))
        seen = functional.scaled_dot_product_attention(*heads)
        return self.out(seen.transpose(1, 2).flatten(2))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(inputs)) if inputs.sum() > 0 else inputs


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(inputs)) * self.up(inputs))


class Peeking(Gated):
    """What lies between is used elsewhere, too."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.silu(self.gate(inputs)) * self.up(inputs)
        return self.down(hidden) + hidden.mean()


def test_a_transformer_is_split_in_megatrons_way():
    plan = find_plan(GPT(layers=2), 2)
    attention = ("query", "key", "value")
    assert plan.pairs == tuple(
        pair
        for block in ("block1", "block2")
        for pair in (
            Pair(
                tuple(f"{block}.attention.{name}" for name in attention), f"{block}.attention.out"
            ),
            Pair((f"{block}.mlp.up",), f"{block}.mlp.down"),
        )
    )
    assert (plan.embeddings, plan.logits, plan.whole) == (
        ("embedding.token",),
        ("head.logits",),
        {},
    )


@pytest.mark.parametrize("ways", [2, 4])
def test_names_do_not_matter(ways):
    assert find_plan(Attention(), ways).pairs == (Pair(("a", "b", "c"), "d"),)
    assert find_plan(Gated(), ways).pairs == (Pair(("gate", "up"), "down"),)
    assert find_plan(MLP(hidden=(32, 16, 8)), ways).pairs == (
        Pair(("layers.1",), "layers.3"),
        Pair(("layers.5",), "layers.7"),
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Attention(fixed=True), "it cannot be computed on a part of its inputs: shape"),
        (Attention(order="sizes first"), "its parts depend on each other"),
        (OnTheWrongDim(), "its parts depend on each other|of another shape|cannot be computed"),
        (Fused(), "its parts depend on each other"),
        (Peeking(), "used elsewhere"),
        (Branching(), "Branching cannot be traced: symbolically traced variables"),
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 4)), "depend on each other"),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)), "depend|computed"),
        (nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 4)), "9 outputs are not divisible"),
        (nn.Linear(8, 8), "no other linear layer"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_what_cannot_be_split_is_left_whole_and_named(module, words):
    plan = find_plan(module, 2)
    assert not plan.pairs
    assert plan.whole
    for reason in plan.whole.values():
        assert any(word in reason for word in words.split("|")), reason


def test_a_model_is_left_as_it_was():
    model = GPT(layers=1)
    before = torch.get_rng_state()
    find_plan(model, 2)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
