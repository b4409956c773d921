"""Codecs that say so are unbiased, by a test that states what bias it would find."""

from collections.abc import Callable, Iterator

import pytest
import torch

from manyhands.codecs import Codec

SIZE = 20_000
ALARM = 5.0
"""Standard errors from which on a mean counts as biased: one false alarm in 1.7 million."""
POWER = 8.0
"""Standard errors of the bias that is found: a mean that is 8 off is beyond 5 in 99.87 of 100."""


def directions(vector: torch.Tensor) -> torch.Tensor:
    """Sums in which a bias shows: towards 0, upwards, of large numbers, of every other number."""
    alternating = torch.ones_like(vector)
    alternating[1::2] = -1
    large = torch.where(vector.abs() > 1.5, vector.sign(), 0.0)
    return torch.stack([vector.sign(), torch.ones_like(vector), large, alternating]).double()


def errors(
    codec: Codec, vector: torch.Tensor, changed: Callable[[torch.Tensor], object]
) -> Iterator[torch.Tensor]:
    """The error of one seed after another, in each direction, relative to the magnitudes."""
    into, along = torch.empty_like(vector), directions(vector)
    total = (along.abs() @ vector.abs().double()).clamp(min=1)
    for seed in range(40_000):
        codec.decode(codec.encode(vector, seed), into)
        changed(into)
        yield along @ (into.double() - vector.double()) / total


def biased(
    codec: Codec,
    least: float,
    dtype: torch.dtype = torch.float32,
    changed: Callable[[torch.Tensor], object] = id,
) -> bool:
    """Whether the mean of decoded vectors differs from the vector.

    Seeds are drawn until the bias `least`, a fraction of the numbers' magnitudes, is `POWER`
    standard errors: such a bias, or a larger one, is found.
    """
    made = torch.randn(SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    drawn = []
    for number, error in enumerate(errors(codec, made, changed), 1):
        drawn.append(error)
        if number % 20 == 0:
            found = torch.stack(drawn)
            deviation = found.std(0) / number**0.5
            if (POWER * deviation <= least).all():
                return bool((found.mean(0).abs() > ALARM * deviation + 1e-6).any())
    pytest.fail(f"{codec} is too noisy for this test: draw more seeds")


def test_a_bias_of_five_per_cent_would_be_found_and_there_is_none(unbiased: Codec) -> None:
    assert not biased(unbiased, 0.05)
    if not unbiased.lossless:
        assert biased(unbiased, 0.05, changed=lambda into: into.mul_(0.95))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bias_of_one_per_cent_would_be_found_and_there_is_none(
    unbiased: Codec, dtype: torch.dtype
) -> None:
    assert not biased(unbiased, 0.01, dtype)
