"""Structures of tensors keep their type when they are taken apart."""

from typing import Any, NamedTuple

import torch

from manyhands.data.taking import preview, rebuilt, taker
from manyhands.live.worker.loading import move
from manyhands.parameters.weights.microbatches import divide


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


class Counted(torch.utils.data.Dataset):
    """Data whose `take` is of Hugging Face's kind: it returns the first n samples."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.numbers[index]

    def take(self, n: int) -> "Counted":
        return Counted(self.numbers[:n])


class Batched(Counted):
    """Data that loads a batch at once."""

    def take(self, indices: torch.Tensor) -> torch.Tensor:
        return self.numbers[indices]


def test_a_method_take_of_another_meaning_is_not_called():
    numbers = torch.arange(8)
    assert taker(Counted(numbers)) is None
    assert preview(Counted(numbers), None, 3).tolist() == [0, 1, 2]
    load = taker(Batched(numbers))
    assert load is not None
    assert load(torch.tensor([5, 2])).tolist() == [5, 2]
