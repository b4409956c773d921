"""Convolutions on all workers and dense layers split; modules where they were placed."""

import pytest

CONVOLUTIONS = """
    import json, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import forked
    from manyhands.job import Job

    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    images = torch.randn(23, 1, 8, 8, generator=source)
    labels = torch.randint(0, 4, (23,), generator=source)
    data = torch.utils.data.TensorDataset(images, labels)

    def model():
        return nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(216, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4),
        )

    job = Job(
        model=model,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=7,
        epochs=2,
        clip=0.5,
    )

    def work(store, rank, size):
        how = f"tensor(ways={size}, samples=own)"
        losses, values, state = forked.train(job, how, store, rank, size)
        if rank:
            return None
        alone = forked.train(job, "single()", store, 0, 1)
        worst = max((state[name] - alone[2][name]).abs().max().item() for name in state)
        return [losses[-1] - alone[0][-1], worst, abs(values["loss"] - alone[1]["loss"])]

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_dense_layers_split_between_data_parallel_convolutions_follow_one_worker(fork, workers):
    # 23 = 3 · 7 + 2: the last batch leaves two of four workers empty.
    for difference in fork(CONVOLUTIONS, workers)[0]:
        assert abs(difference) < 1e-11


PLACED = """
    import json, sys, time
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import SharedLSTM

    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    pairs = torch.randn(31, 2, 5, 8, generator=source)
    related = torch.randint(0, 3, (31,), generator=source)
    data = torch.utils.data.TensorDataset(pairs, related)
    PAUSE = 0.15

    def slowly(forward):
        def compute(*inputs):
            if not inputs[0].is_meta:
                time.sleep(PAUSE)
            return forward(*inputs)
        return compute

    def model():
        made = SharedLSTM(inputs=8, hidden=6, outputs=3)
        made.encoder.forward = slowly(made.encoder.forward)
        return made

    job = Job(
        model=model,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=10,
        epochs=1,
        clip=0.1,
    )
    HOW = 'place(modules=["encoder on 0, 1", "merge on 2"])'

    def pace(how, store, rank, size):
        group = forked.group_of(store, rank, size)
        trainer = forked.trainer_of(job, how, group)
        moments = []
        for batch in trainer.batches():
            moments.append(time.monotonic())
            trainer.step(batch)
        group.sum(torch.zeros(1))
        group.close()
        return min(after - before for before, after in zip(moments, moments[1:]))

    def work(store, rank, size):
        losses, values, state = forked.train(job, HOW, store, rank, size)
        together = pace(HOW, store, rank, size)
        if rank:
            return None
        alone = forked.train(job, "single()", store, 0, 1)
        worst = max((state[name] - alone[2][name]).abs().max().item() for name in state)
        difference = abs(values["loss"] - alone[1]["loss"])
        return [worst, difference, together, pace("single()", store, 0, 1)]

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""


@pytest.mark.slow
def test_branches_on_two_workers_run_side_by_side_and_follow_one_worker(fork):
    worst, difference, together, alone = fork(PLACED, 3)[0]
    assert worst < 1e-12
    assert difference < 1e-12
    # Two calls of 0.15 s in every step, one after the other or at once.
    assert alone >= 0.30
    assert 0.15 <= together < 0.28
