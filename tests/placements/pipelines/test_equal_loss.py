"""A pipeline is trained as one worker is, by the trainer: a small GPT on tinyshakespeare."""

import pytest
from equal_losses import apart

SCHEDULES = {
    name: f"pipeline(microbatches=4, schedule={name})"
    for name in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
}

SCHEDULES["side by side"] = "hybrid(data=2, pipeline=2, microbatches=3, schedule=zero_bubble)"
SCHEDULES |= {
    f"split, {name}": f"hybrid(tensor=2, pipeline=2, microbatches=4, schedule={name})"
    for name in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
}
SCHEDULES |= {
    f"sharded, {name}": f"hybrid(shard=2, pipeline=2, microbatches=4, schedule={name})"
    for name in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
}
MESHES = {
    "data and tensor": "hybrid(data=2, tensor=2, pipeline=2, microbatches=4)",
    "shard and tensor": "hybrid(shard=2, tensor=2, pipeline=2, schedule=zero_bubble)",
    "data and shard": "hybrid(data=2, shard=2, pipeline=2, microbatches=3, schedule=gpipe)",
}
SCHEDULES |= MESHES


@pytest.mark.parametrize(
    ("workers", "names", "clip"),
    [
        (2, ("interleaved", "zero_bubble"), None),
        pytest.param(3, ("one_f_one_b",), 0.3, marks=pytest.mark.slow),
        pytest.param(4, ("sharded, one_f_one_b",), 0.3, marks=pytest.mark.slow),
        pytest.param(4, ("side by side", "split, zero_bubble"), 0.3, marks=pytest.mark.slow),
        pytest.param(8, (*MESHES,), 0.3, marks=pytest.mark.slow),
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
        (4, tuple(name for name in SCHEDULES if name.startswith("split"))),
        (4, tuple(name for name in SCHEDULES if name.startswith("sharded"))),
        (8, (*MESHES,)),
    ],
)
def test_follows_one_worker_for_twenty_steps(fork, workers, names, dtype, limit):
    strategies = [SCHEDULES[name] for name in names]
    for how, one in apart(fork, workers, 20, strategies, dtype, seconds=800).items():
        assert one["losses"] < limit, how
        assert one["learnt"] > 0.5, how
