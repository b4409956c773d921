import doctest
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands import lr_schedules
from manyhands.lr_schedules import LRSchedule, cosine, linear, step_decay


def by_torch(make: Any, steps: int) -> list[float]:
    """The rates that a scheduler of torch gives, one step after the other."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = make(optimizer)
    given = []
    for _ in range(steps):
        given.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return given


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (cosine(10), lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, 10)),
        (
            cosine(10, floor=0.1),
            lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, 10, eta_min=0.1),
        ),
        (linear(10), lambda it: torch.optim.lr_scheduler.LinearLR(it, 1.0, 0.0, 10)),
        (linear(8, floor=0.25), lambda it: torch.optim.lr_scheduler.LinearLR(it, 1.0, 0.25, 8)),
        (step_decay(3), lambda it: torch.optim.lr_scheduler.StepLR(it, 3)),
        (step_decay(1, factor=0.9), lambda it: torch.optim.lr_scheduler.ExponentialLR(it, 0.9)),
        (
            lambda epochs: 0.9**epochs,
            lambda it: torch.optim.lr_scheduler.LambdaLR(it, lambda epoch: 0.9**epoch),
        ),
    ],
    ids=[
        "cosine",
        "cosine to 0.1",
        "linear",
        "linear to 0.25",
        "step_decay",
        "powers",
        "a function",
    ],
)
def test_stepped_after_every_epoch_they_are_torchs(ours: LRSchedule, theirs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = by_torch(theirs, 11)
    assert [ours(float(epoch)) for epoch in range(11)] == pytest.approx(expected, abs=1e-12)


@given(
    epochs=st.floats(0.5, 100),
    warmup=st.floats(0, 0.9),
    floor=st.floats(0, 1),
    at=st.floats(0, 200),
)
def test_a_falling_rate_rises_to_one_and_falls_to_its_floor(
    epochs: float, warmup: float, floor: float, at: float
) -> None:
    warmup *= epochs
    for one in (cosine(epochs, floor, warmup=warmup), linear(epochs, floor, warmup=warmup)):
        assert 0 <= one(at) <= 1 + 1e-12
        assert one(warmup) == pytest.approx(1.0)
        assert one(epochs) == one(epochs + at) == pytest.approx(floor)
        if at >= warmup:
            assert one(at) >= one(at + 1) - 1e-12
        elif at > 0:
            assert one(at) == pytest.approx(at / warmup)


@given(every=st.integers(1, 40).map(lambda tenths: tenths / 10), number=st.integers(0, 60))
def test_a_step_decays_when_its_epochs_are_done(every: float, number: int) -> None:
    assert step_decay(every, factor=0.5)(every * number) == 0.5**number


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cosine(0), "epochs must be more than the warm-up of 0, not 0"),
        (lambda: cosine(2, warmup=2), "epochs must be more than the warm-up of 2, not 2"),
        (lambda: linear(math.inf), "epochs must be more than the warm-up of 0, not inf"),
        (lambda: cosine(2, floor=1.5), "floor must be from 0 to 1, not 1.5"),
        (lambda: linear(2, warmup=-1), "warmup must be 0 or more epochs, not -1"),
        (lambda: step_decay(0), "every and factor must be above 0, not every=0, factor=0.1"),
        (
            lambda: step_decay(1, factor=0),
            "every and factor must be above 0, not every=1, factor=0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_they_say_what_they_are() -> None:
    assert str(cosine(10, warmup=0.5)) == "cosine(epochs=10.0, warmup=0.5)"
    assert str(linear(3, floor=0.1)) == "linear(epochs=3.0, floor=0.1)"
    assert str(step_decay(30)) == "step_decay(every=30.0)"
    assert doctest.testmod(lr_schedules).failed == 0
