"""Wherever the model lies, it is trained as on one worker: a small GPT on tinyshakespeare."""

import pytest

SCRIPT = """
    import json, sys
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.data import tinyshakespeare
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, steps, strategies, dtype, clip, options = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(getattr(torch, dtype))

    # The last batch is cut, so some workers have fewer samples than others or none.
    job = Job(
        model=lambda: GPT(width=32, layers=2, heads=4, length=32),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        loss=F.cross_entropy,
        data=tinyshakespeare("train", 32),
        validation=torch.utils.data.Subset(tinyshakespeare("test", 32), range(19)),
        global_batch=10,
        samples=steps * 10 - 9,
        clip=clip,
        seed=5,
    )

    def work(store, rank, size):
        whole = replace(job, global_batch=options.get("global_batch", 10))
        alone = forked.train(whole, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        apart = {}
        for how in strategies:
            asked = replace(job, **options)
            losses, values, state = forked.train(asked, how, store, rank, size)
            if rank == 0:
                assert state.keys() == alone[2].keys()
                apart[how] = {
                    "losses": max(abs(a / b - 1) for a, b in zip(losses, alone[0], strict=True)),
                    "values": max(abs(values[k] - alone[1][k]) for k in alone[1]),
                    "parameters": max(
                        (state[name] - alone[2][name]).abs().max().item() for name in state
                    ),
                    "learnt": alone[0][0] - losses[-1],
                }
        return apart

    if __name__ == "__main__":
        forked.run(work, workers)
"""

SHARDED = ["fully_sharded()", "zero(stage=1, bucket_mb=0.01)", "zero(stage=2)"]
DIVIDED = ["tensor(ways=2)", "tensor(ways=2, samples=own)", "context(ways=2)", "offload()"]


def apart(fork, workers, steps, strategies, dtype, clip=None, options=None, seconds=150):
    arguments = (workers, steps, strategies, dtype, clip, options or {})
    found = fork(SCRIPT, *arguments, seconds=seconds)[0]
    assert list(found) == strategies
    return found


@pytest.mark.parametrize(
    ("workers", "clip", "strategies"),
    [
        pytest.param(1, None, ["offload()", "fully_sharded()"], id="1"),
        pytest.param(2, 0.3, [*SHARDED[:2], *DIVIDED], id="2, clipped"),
        pytest.param(3, None, SHARDED, id="3"),
        pytest.param(
            4, 0.3, ["hybrid(shard=2, tensor=2)", "hybrid(data=2, shard=2)"], id="4, clipped"
        ),
    ],
)
def test_follows_one_worker_to_the_last_digits(fork, workers, clip, strategies):
    for how, found in apart(fork, workers, 4, strategies, "float64", clip).items():
        assert found["losses"] < 1e-12, how
        assert found["values"] < 1e-12, how
        assert found["parameters"] < 1e-10, how


@pytest.mark.parametrize("options", [{"at_once": 2}, {"recompute": True}], ids=str)
def test_parts_that_add_up_and_blocks_that_forget_change_nothing(fork, options):
    strategies = ["allreduce()", "fully_sharded()", "tensor()", "context()"]
    for how, found in apart(fork, 2, 3, strategies, "float64", options=options).items():
        assert found["losses"] < 1e-12, how
        assert found["values"] < 1e-12, how
        assert found["parameters"] < 1e-10, how


@pytest.mark.parametrize("at_once", [1, 2])
def test_uneven_shares_are_computed_in_equally_many_parts(fork, at_once):
    # Of 5 samples one worker has 3 and one 2, which alone would be one part or two.
    options = {"at_once": at_once, "global_batch": 5}
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
