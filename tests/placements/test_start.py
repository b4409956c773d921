"""Under every placement, workers that start from existing weights equal one that does."""

import pytest

SCRIPT = """
    import json, sys
    from dataclasses import replace
    from pathlib import Path
    import torch, torch.nn.functional as F
    import forked
    from manyhands.data import tinyshakespeare
    from manyhands.files.checkpoint import save_model
    from manyhands.job import Job
    from manyhands.models import GPT
    from manyhands.seeding import seed_all

    workers, strategies = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)

    job = Job(
        model=lambda: GPT(width=32, layers=2, heads=4, length=32),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        loss=F.cross_entropy,
        data=tinyshakespeare("train", 32),
        global_batch=8,
        samples=24,
        seed=5,
    )

    def stored(seed, name):
        seed_all(seed)
        save_model(job.model(), Path(name))
        return replace(job, start=name)

    def work(store, rank, size):
        if rank == 0:
            stored(5, "own.safetensors")
            stored(6, "other.safetensors")
            store.set("stored", "")
        store.get("stored")
        own = replace(job, start="own.safetensors")
        other = replace(job, start="other.safetensors")
        alone = forked.train(other, "single()", store, 0, 1)[2] if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            without, with_own, with_other = (
                forked.train(one, how, store, rank, size)[2] for one in (job, own, other)
            )
            if rank == 0:
                found[how] = [
                    all(torch.equal(without[name], with_own[name]) for name in without),
                    max((with_other[name] - alone[name]).abs().max().item() for name in alone),
                    max((with_other[name] - without[name]).abs().max().item() for name in alone),
                ]
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""
STRATEGIES = [
    "allreduce()",
    "fully_sharded()",
    "zero(stage=1)",
    "tensor(ways=2)",
    "pipeline()",
    "pipeline(schedule=gpipe)",
    "offload()",
]


@pytest.mark.slow
def test_workers_equal_one_that_starts_from_the_same(fork):
    found = fork(SCRIPT, 2, STRATEGIES)[0]
    assert list(found) == STRATEGIES
    for how, (same, apart, moved) in found.items():
        assert same, f"{how}: the job's own initial weights, from a file, change the run"
        assert apart < 1e-9, how
        assert moved > 0.01, how


@pytest.mark.slow
def test_four_workers_on_a_mesh_equal_one(fork):
    strategies = ["hybrid(shard=2, tensor=2)", "hybrid(data=2, pipeline=2)"]
    found = fork(SCRIPT, 4, strategies)[0]
    for how, (same, apart, moved) in found.items():
        assert same, how
        assert apart < 1e-9, how
        assert moved > 0.01, how
