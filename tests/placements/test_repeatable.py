"""The same job with the same seed on as many workers gives the same bits."""

import pytest

SCRIPT = """
    import hashlib, json, sys
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, strategies, steps = map(json.loads, sys.argv[1:])
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 20, (32, 17), generator=source)
    job = Job(
        model=lambda: GPT(vocabulary=20, width=32, layers=4, heads=4, length=16, dropout=0.1),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        metrics=(),
        global_batch=8,
        samples=8 * steps,
        seed=7,
    )

    def work(store, rank, size):
        found = {how: [] for how in strategies}
        for how in strategies * 2:
            losses, _, state = forked.train(job, how, store, rank, size)
            bits = hashlib.sha256()
            for name in sorted(state):
                bits.update(state[name].contiguous().numpy().tobytes())
            found[how].append([losses, bits.hexdigest()])
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""

BEGINS = 'split_points=["block1", "block2", "block3"]'


def check_repeats(fork, workers, strategies, steps, seconds=150):
    found = fork(SCRIPT, workers, strategies, steps, seconds=seconds)[0]
    for how in strategies:
        first, second = found[how]
        assert first == second, how


@pytest.mark.slow
def test_two_runs_are_equal_to_the_bit(fork):
    check_repeats(fork, 4, ["allreduce()", "fully_sharded()"], 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "strategies",
    [
        ["zero(stage=1)", "zero(stage=2)", "zero(stage=3)"],
        ["tensor(ways=2)", "tensor(ways=4)", "tensor(ways=4, samples=own)", "context(ways=2)"],
        # Where stages begin is measured unless it is said, and another division sums otherwise.
        [f"pipeline(microbatches=4, {BEGINS}, schedule={one})" for one in ("gpipe", "one_f_one_b")],
        ["hybrid(data=2, tensor=2)", "hybrid(shard=2, tensor=2)"],
    ],
    ids=lambda some: some[0].partition("(")[0],
)
def test_two_longer_runs_are_equal_to_the_bit(fork, strategies):
    check_repeats(fork, 4, strategies, 8, seconds=400)
