"""Wherever the model lies, it is trained as on one worker: a small GPT on tinyshakespeare."""

import pytest
from equal_losses import apart

SHARDED = ["fully_sharded()", "zero(stage=1, bucket_mb=0.01)", "zero(stage=2)"]
DIVIDED = ["tensor(ways=2)", "tensor(ways=2, samples=own)", "context(ways=2)", "offload()"]


@pytest.mark.parametrize(
    ("workers", "clip", "strategies"),
    [
        pytest.param(1, None, ["offload()", "fully_sharded()"], id="1"),
        pytest.param(2, 0.3, [*SHARDED[:2], *DIVIDED], id="2, clipped"),
        pytest.param(3, None, SHARDED, id="3", marks=pytest.mark.slow),
        pytest.param(
            *(4, 0.3, ["hybrid(shard=2, tensor=2)", "hybrid(data=2, shard=2)"]),
            id="4, clipped",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_follows_one_worker_to_the_last_digits(fork, workers, clip, strategies):
    for how, found in apart(fork, workers, 4, strategies, "float64", clip).items():
        assert found["losses"] < 1e-12, how
        assert found["values"] < 1e-12, how
        assert found["parameters"] < 1e-10, how


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"micro_batch": 2}, {"activation_checkpointing": True}],
    ids=str,
)
def test_parts_that_add_up_and_blocks_that_forget_change_nothing(fork, options):
    strategies = ["allreduce()", "fully_sharded()", "tensor()", "context()"]
    for how, found in apart(fork, 2, 3, strategies, "float64", options=options).items():
        assert found["losses"] < 1e-12, how
        assert found["values"] < 1e-12, how
        assert found["parameters"] < 1e-10, how


@pytest.mark.parametrize("micro_batch", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_uneven_shares_are_computed_in_equally_many_parts(fork, micro_batch):
    # Of 5 samples one worker has 3 and one 2, which alone would be one part or two.
    options = {"micro_batch": micro_batch, "global_batch": 5}
    strategies = ["fully_sharded()", "hybrid(data=2)"]
    for how, found in apart(fork, 2, 3, strategies, "float64", options=options).items():
        assert found["parameters"] < 1e-10, how


@pytest.mark.slow
def test_autocast_means_the_same_everywhere(fork):
    strategies = ["allreduce()", "fully_sharded()", "tensor()", "context()", "zero()"]
    options = {"autocast": "bfloat16"}
    found = apart(fork, 2, 20, strategies, "float32", options=options)
    for how, one in found.items():
        # Computed in eight bits of mantissa, and close to what was computed in twenty-four.
        assert 1e-7 < one["losses"] < 2e-2, how
        assert one["learnt"] > 0.5, how


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-9)])
def test_follows_one_worker_for_twenty_steps(fork, workers, dtype, limit):
    strategies = {
        2: [*SHARDED, "zero(stage=3)", *DIVIDED],
        4: [
            *(*SHARDED, "zero(stage=3)", "tensor(ways=2)", "context(ways=2)", "offload()"),
            *("tensor(ways=4)", "tensor(ways=4, samples=own)", "context(ways=4)"),
        ],
        8: ["hybrid(data=2, shard=2, tensor=2)"],
    }[workers]
    for how, one in apart(fork, workers, 20, strategies, dtype, seconds=800).items():
        assert one["losses"] < limit, how
        assert one["learnt"] > 0.5, how
