"""Intervals, as values and as texts."""

import pytest

import manyhands as mh


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("5000", mh.every(samples=5000)),
        (" 5000 samples ", mh.every(samples=5000)),
        ("10s", mh.every(seconds=10)),
        ("1.5 min", mh.every(seconds=90)),
        ("0.25 epochs", mh.every(epochs=0.25)),
        ("1 epoch", mh.every(epochs=1)),
    ],
)
def test_a_text_and_its_interval(text: str, interval: mh.Every) -> None:
    assert mh.Every.read(text) == interval
    assert mh.Every.read(str(interval)) == interval
    assert mh.Every.read(interval) is interval


@pytest.mark.parametrize("text", ["", "often", "-1", "0", "0s", "1.5", "1.5 samples", "10 parsecs"])
def test_a_text_that_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"interval|above 0|whole number"):
        mh.Every.read(text)


def test_exactly_one_kind_is_given() -> None:
    with pytest.raises(ValueError, match="takes one of samples, steps, seconds and epochs"):
        mh.every()
    with pytest.raises(ValueError, match="got samples, epochs"):
        mh.every(samples=1, epochs=1)
    with pytest.raises(TypeError, match="whole number"):
        mh.every(samples=0.5)
