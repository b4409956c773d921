"""Fragments: every trained element once, wherever the cuts fall."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from manyhands.parameters import Fragment, Layout

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Odd(nn.Module):
    """Parameters and buffers of any shape and type; some tied, some frozen, some in no group."""

    def __init__(
        self,
        shapes: list[tuple[int, ...]],
        dtypes: list[torch.dtype],
        buffers: list[tuple[int, torch.dtype]] = [],  # noqa: B006 - it is only read
    ) -> None:
        super().__init__()
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            values = torch.arange(1, math.prod(shape) + 1).view(shape).to(dtype)
            self.register_parameter(f"p{number}", nn.Parameter(values))
        self.tied = self.p0
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.ungrouped = nn.Parameter(torch.ones(3))
        for number, (size, dtype) in enumerate(buffers):
            self.register_buffer(f"b{number}", torch.arange(size).to(dtype))
        self.register_buffer("counter", torch.tensor(7))

    def grouped(self) -> list[list[nn.Parameter]]:
        """The trained ones, in two groups by turns."""
        named = [value for name, value in self.named_parameters() if name[0] == "p"]
        return [named[::2], named[1::2]]


def optimizer(model: Odd, cls: type[optim.Optimizer] = optim.SGD) -> optim.Optimizer:
    return cls([{"params": group} for group in model.grouped() if group], lr=0.1)


shapes = st.lists(st.lists(st.integers(1, 12), max_size=3).map(tuple), min_size=1, max_size=6)
odd_models = shapes.flatmap(
    lambda all_of: st.builds(
        Odd,
        st.just(all_of),
        st.lists(st.sampled_from(DTYPES), min_size=len(all_of), max_size=len(all_of)),
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from(DTYPES)), max_size=3),
    )
)


def fragments(layout: Layout) -> Iterator[Fragment]:
    for shard in layout.shards:
        yield from shard.parameters


def layouts(model: Odd, servers: int, cls: type[optim.Optimizer] = optim.SGD) -> Layout:
    """Its layout, over as many servers as it can be dealt to."""
    while True:
        try:
            return Layout.of(model, optimizer(model, cls), servers)
        except ValueError:
            servers -= 1
            assert servers, "one server can hold everything"


@settings(deadline=None)
@given(
    model=odd_models, servers=st.integers(1, 6), cls=st.sampled_from([optim.SGD, optim.Adafactor])
)
def test_every_trained_element_is_in_one_fragment(
    model: Odd, servers: int, cls: type[optim.Optimizer]
) -> None:
    layout = layouts(model, servers, cls)
    covered: dict[str, list[int]] = {}
    for fragment in fragments(layout):
        covered.setdefault(fragment.name, []).extend(range(fragment.start, fragment.stop))
        assert math.prod(fragment.shape) == fragment.stop - fragment.start > 0
    trained = {name: p for name, p in model.named_parameters() if name[0] == "p"}
    assert covered == {name: list(range(p.numel())) for name, p in trained.items()}
    assert "tied" not in covered, "a tied parameter appears once, under its first name"
    assert not {"frozen", "ungrouped"} & set(covered)


@settings(deadline=None)
@given(
    model=odd_models, servers=st.integers(1, 6), cls=st.sampled_from([optim.SGD, optim.Adafactor])
)
def test_fragments_fill_their_shards_and_are_aligned_in_them(
    model: Odd, servers: int, cls: type[optim.Optimizer]
) -> None:
    layout = layouts(model, servers, cls)
    flat = torch.zeros(layout.nbytes, dtype=torch.uint8)
    for shard, part in zip(layout.shards, layout.split(flat), strict=True):
        assert len(part) == shard.nbytes
        end = 0
        for fragment in shard.parameters:
            assert fragment.offset == end, "parameters lie end to end"
            end += fragment.nbytes
        for fragment in shard.buffers:
            assert end <= fragment.offset < end + 8, "buffers only leave room for alignment"
            end = fragment.offset + fragment.nbytes
        own = torch.zeros(shard.nbytes, dtype=torch.uint8)
        for fragment in (*shard.parameters, *shard.buffers):
            fragment.view(own).fill_(1)
        for fragment in shard.parameters:
            fragment.view(part).fill_(1)


@settings(deadline=None)
@given(model=odd_models, servers=st.integers(1, 6))
def test_flat_fragments_are_the_parameters_in_fewer_pieces(model: Odd, servers: int) -> None:
    layout = layouts(model, servers)
    flat = torch.arange(layout.nbytes).to(torch.uint8)
    for shard, part in zip(layout.shards, layout.split(flat), strict=True):
        lines = [flat.bytes(part) for flat in shard.flat_by_dtype]
        pieces = [fragment.bytes(part) for fragment in shard.parameters]
        assert torch.equal(torch.cat(lines), torch.cat(pieces))
        types = [flat.dtype for flat in shard.flat_by_dtype]
        # Those of one size may be of two types by turns.
        assert len(types) <= len(pieces)
        assert all(one != other for one, other in pairwise(types))
        for flat in shard.flat_by_dtype:
            assert flat.view(part).dtype == flat.dtype


@settings(deadline=None)
@given(model=odd_models, servers=st.integers(1, 6))
def test_floating_buffers_are_with_the_last_shard_once(model: Odd, servers: int) -> None:
    layout = layouts(model, servers)
    assert not any(shard.buffers for shard in layout.shards[:-1])
    expected = {
        name: buffer.numel()
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and buffer.numel()
    }
    assert {piece.name: piece.stop for piece in layout.shards[-1].buffers} == expected


@pytest.mark.parametrize(
    "cls", [optim.SGD, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Rprop, optim.ASGD]
)
@pytest.mark.parametrize("servers", [2, 3, 5, 8])
def test_elementwise_optimizers_cut_within_64_bytes_of_equal_parts(
    cls: type[optim.Optimizer], servers: int
) -> None:
    model = Odd([(100, 37), (3,), (1000,)], [torch.float32] * 3)
    layout = Layout.of(model, optimizer(model, cls), servers)
    total, border = layout.nbytes, 0
    for number, shard in enumerate(layout.shards[:-1], start=1):
        border += shard.nbytes
        assert abs(border - total * number / servers) <= 64


@settings(deadline=None)
@given(model=odd_models, servers=st.integers(1, 6))
def test_other_optimizers_never_cut_a_tensor(model: Odd, servers: int) -> None:
    named = dict(model.named_parameters())
    for fragment in fragments(layouts(model, servers, optim.Adafactor)):
        assert fragment.start == 0
        assert fragment.stop == named[fragment.name].numel()
        assert fragment.shape == named[fragment.name].shape


def test_a_subclass_is_taken_for_what_it_does() -> None:
    class Renamed(optim.SGD):
        pass

    class Normalized(optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad /= parameter.grad.norm()
            return super().step(closure)

    model = Odd([(64, 64), (2,)], [torch.float32] * 2)
    cut = Layout.of(model, optimizer(model, Renamed), 2)
    whole = Layout.of(model, optimizer(model, Normalized), 2)
    assert [piece.name for piece in fragments(cut)] == ["p0", "p0", "p1"]
    assert [piece.name for piece in fragments(whole)] == ["p0", "p1"]


def test_a_step_that_needs_all_parameters_has_one_server() -> None:
    model = Odd([(64, 64), (2,)], [torch.float32] * 2)
    made = optim.SGD(model.parameters(), lr=0.1)
    made.register_step_pre_hook(clip_all)
    assert len(Layout.of(model, made, 1).shards) == 1
    words = r"SGD with step hooks needs all parameters together.*use one server, or allreduce\(\)"
    with pytest.raises(ValueError, match=words):
        Layout.of(model, made, 2)


def clip_all(optimizer: optim.Optimizer, _arguments: object, _options: object) -> None:
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)


def test_parameter_groups_are_remembered() -> None:
    model = Odd([(4,), (5,), (6,)], [torch.float32] * 3)
    layout = Layout.of(model, optimizer(model), 1)
    assert {piece.name: piece.group for piece in fragments(layout)} == {"p0": 0, "p1": 1, "p2": 0}


def test_lbfgs_is_refused_with_what_to_use() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"LBFGS evaluates the loss .* such as SGD or AdamW"):
        Layout.of(model, optim.LBFGS(model.parameters()), 2)


def test_more_servers_than_there_is_to_hold_are_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"cannot be divided among 8 servers.*use fewer"):
        Layout.of(model, optim.SGD(model.parameters()), 8)


def test_a_model_without_anything_to_train_is_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter with requires_grad=True"):
        Layout.of(model, optim.SGD(model.parameters()), 1)
