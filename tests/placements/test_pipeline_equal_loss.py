"""A pipeline is trained as one worker is, by the trainer: a small GPT on tinyshakespeare."""

import pytest
from test_equal_loss import apart

SCHEDULES = {
    name: f"pipeline(microbatches=4, schedule={name})"
    for name in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
}

SCHEDULES["side by side"] = "hybrid(data=2, pipeline=2, microbatches=3, schedule=zero_bubble)"


@pytest.mark.parametrize(
    ("workers", "names", "clip"),
    [
        (2, ("interleaved", "zero_bubble"), None),
        (3, ("one_f_one_b",), 0.3),
        (4, ("side by side",), 0.3),
    ],
)
def test_follows_one_worker_to_the_last_digits(fork, workers, names, clip):
    strategies = [SCHEDULES[name] for name in names]
    for how, found in apart(fork, workers, 4, strategies, "float64", clip).items():
        assert found["losses"] < 1e-12, how
        assert found["values"] < 1e-12, how
        assert found["parameters"] < 1e-10, how


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-9)])
@pytest.mark.parametrize(
    ("workers", "names"),
    [
        (2, ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")),
        (3, ("interleaved",)),
        (4, ("gpipe", "one_f_one_b", "zero_bubble", "side by side")),
    ],
)
def test_follows_one_worker_for_twenty_steps(fork, workers, names, dtype, limit):
    strategies = [SCHEDULES[name] for name in names]
    for how, one in apart(fork, workers, 20, strategies, dtype, seconds=800).items():
        assert one["losses"] < limit, how
        assert one["learnt"] > 0.5, how
