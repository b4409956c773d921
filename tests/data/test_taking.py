"""Structures of tensors keep their type when they are taken apart."""

from typing import Any, NamedTuple

import torch

from manyhands.data.taking import rebuilt
from manyhands.live.worker.loading import move
from manyhands.parameters.microbatches import divide


class Inputs(NamedTuple):
    """A batch with names."""

    image: Any
    mask: Any


def test_lists_tuples_and_named_tuples():
    assert rebuilt([1], [2, 3]) == [2, 3]
    assert rebuilt((1,), [2, 3]) == (2, 3)
    assert rebuilt(Inputs(1, 2), [3, 4]) == Inputs(3, 4)


def test_named_tuples_are_divided_and_moved():
    batch = Inputs(torch.arange(4), [torch.arange(4), {"a": torch.arange(4)}])
    first, second = divide(batch, [1, 3])
    assert isinstance(first, Inputs)
    assert first.image.tolist() == [0]
    assert second.mask[1]["a"].tolist() == [1, 2, 3]
    moved = move(batch, torch.device("meta"))
    assert isinstance(moved, Inputs)
    assert moved.mask[0].is_meta
