"""`allreduce(shares=by_speed)`: uneven parts of a batch, and the result of one worker."""

import pytest

SCRIPT = """
    import json, sys, time
    import torch
    import forked
    from manyhands.job import Job

    workers, loaders = map(json.loads, sys.argv[1:])
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=source, dtype=torch.float64)
    targets = torch.randint(0, 4, (200,), generator=source)
    mine = [0]

    def loss(outputs, targets):
        # The last worker is three times slower, and from the 40th step on the first one.
        if torch.is_grad_enabled():
            slow = mine[0] == (0 if mine[1] > 40 else workers - 1)
            mine[1] += 1
            time.sleep(len(targets) * 0.0005 * (3 if slow else 1))
        return torch.nn.functional.cross_entropy(outputs, targets)

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ).double()

    job = Job(
        model=make,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.02),
        loss=loss,
        data=[(inputs[at], targets[at]) for at in range(200)],
        num_workers=loaders,
        global_batch=24,
        epochs=10,
        metrics=(),
    )

    def work(store, rank, size):
        mine[:] = [rank, 0]
        group = forked.group_of(store, rank, size)
        trainer = forked.trainer_of(job, "allreduce(shares=by_speed)", group)
        counts = []
        for batch in trainer.batches():
            trainer.step(batch)
            counts.append([batch.share.samples, batch.share.total])
        flat = [value for one in trainer.model.parameters() for value in one.flatten().tolist()]
        group.close()
        return [counts, flat]

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "loaders"), [(3, 0), (2, 2)])
def test_shares_follow_the_speed_and_the_result_is_that_of_one(fork, workers, loaders) -> None:
    found = fork(SCRIPT, workers, loaders)
    counts = [one[0] for one in found]
    for step in range(len(counts[0])):
        assert sum(one[step][0] for one in counts) == counts[0][step][1]
    full = [step for step, one in enumerate(counts[0]) if one[1] == 24]
    assert {one[0][0] for one in counts} == {24 // workers}

    def mean(rank: int, first: int, last: int) -> float:
        steps = [step for step in full if first <= step < last]
        return sum(counts[rank][step][0] for step in steps) / len(steps)

    last = workers - 1
    # Speeds of 1, 1 and 1/3, or 1 and 1/3, of which noise may take something.
    fast, slow = 24 * 3 / (3 * workers - 2), 24 / (3 * workers - 2)
    assert mean(last, 20, 40) == pytest.approx(slow, abs=1.5)
    assert mean(0, 20, 40) == pytest.approx(fast, abs=2.5)
    # Within 20 steps after the 40th.
    assert mean(0, 60, 80) == pytest.approx(slow, abs=1.5)
    assert mean(last, 60, 80) == pytest.approx(fast, abs=2.5)
    (alone,) = fork(SCRIPT, 1, loaders)
    apart = max(abs(one - other) for one, other in zip(alone[1], found[0][1], strict=True))
    assert apart < 1e-9
    assert all(one[1] == found[0][1] for one in found)
