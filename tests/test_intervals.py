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
        ("10s in memory", mh.every(seconds=10, memory=True)),
        ("10min, 100 steps in memory", mh.every(seconds=600, memory=mh.every(steps=100))),
        (
            "5000 to s3://bucket/run, 10s in memory",
            mh.every(samples=5000, to="s3://bucket/run", memory=mh.every(seconds=10)),
        ),
    ],
)
def test_a_text_and_its_interval(text: str, interval: mh.Every) -> None:
    assert mh.Every.read(text) == interval
    assert mh.Every.read(str(interval)) == interval
    assert mh.Every.read(interval) is interval


@pytest.mark.parametrize(
    "text",
    [
        "",
        "often",
        "-1",
        "0",
        "0s",
        "1.5",
        "1.5 samples",
        "10 parsecs",
        "in memory",
        "10s, in memory",
    ],
)
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


def test_an_interval_of_checkpoints_in_memory() -> None:
    alone, both = mh.every(seconds=10, memory=True), mh.Every.read("10min, 10s in memory")
    assert alone.on_disk is None
    assert alone.memory == both.memory == mh.every(seconds=10)
    assert both.on_disk == mh.every(seconds=600)
    assert repr(alone) == "every(seconds=10, memory=True)"
    assert repr(both) == "every(seconds=600, memory=every(seconds=10))"
    with pytest.raises(ValueError, match="are not copied to s3://b/run"):
        mh.every(seconds=10, memory=True, to="s3://b/run")
    with pytest.raises(ValueError, match="memory must be an interval"):
        mh.Every.read("10min, 10s to s3://b/run in memory")
