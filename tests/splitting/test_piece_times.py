"""Measured times of pieces, for chains of the same model with more or fewer of them."""

import pytest
import torch
from torch import nn

from manyhands.costs import PieceTime
from manyhands.models import GPT
from manyhands.splitting import chain, estimate, measure, partition, with_times


def gpt() -> GPT:
    return GPT(vocabulary=11, length=8, width=16, layers=3, heads=2)


TOKENS = torch.zeros(2, 8, dtype=torch.long)


def known(wanted: int, seconds: float = 1.0) -> tuple[PieceTime, ...]:
    """A chain whose pieces take as many seconds each."""
    pieces = chain(gpt(), TOKENS, wanted)
    return tuple(PieceTime(first, seconds, 2 * seconds) for first in pieces.first_layers)


@pytest.mark.parametrize("measured", [4, 32])
@pytest.mark.parametrize("wanted", [2, 4, 8, 32])
def test_all_of_the_time_is_divided_among_the_pieces(wanted, measured) -> None:
    with torch.device("meta"):
        model = gpt()
    pieces = chain(model, TOKENS.to("meta"), wanted)
    times = known(measured)
    costs = estimate(pieces, TOKENS.to("meta"))
    found = with_times(costs, pieces.first_layers, times)
    assert sum(one.forward for one in found) == pytest.approx(len(times))
    assert sum(one.backward for one in found) == pytest.approx(2 * len(times))
    assert [one.parameters for one in found] == [one.parameters for one in costs]
    if len(times) == len(found):
        assert all(one.forward == 1.0 for one in found)


def test_times_of_another_model_change_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    pieces = chain(model, torch.zeros(2, 4), 4)
    costs = estimate(pieces, torch.zeros(2, 4))
    for times in (known(4), known(32), ()):
        assert with_times(costs, pieces.first_layers, times) == costs


def test_stages_are_those_of_the_measured_times() -> None:
    """One layer has no multiplications, and takes as long as all others."""

    class Slow(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for _ in range(400):
                inputs = inputs + 1e-6
            return inputs

    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = nn.Sequential(*layers[:2], Slow(), *layers[2:])
    inputs = torch.zeros(256, 64)
    pieces = chain(model, inputs, 7)
    times = [
        PieceTime(first, one.forward, one.backward)
        for first, one in zip(pieces.first_layers, measure(pieces, inputs), strict=True)
    ]
    costs = estimate(pieces, inputs)
    assert max(times, key=lambda one: one.forward).first == "2"
    assert costs[2].seconds == 0
    assert partition(costs, [2, 1]) != (0, 2)
    assert partition(with_times(costs, pieces.first_layers, times), [2, 1]) in ((0, 2), (0, 3))
