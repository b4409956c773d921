"""Workers that hold parts of one replica train on the same inputs, whatever the data draws."""

import pytest

SCRIPT = """
    import json, random, sys
    from dataclasses import replace
    import numpy as np, torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, strategies, dropout, loaders = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            tokens = torch.arange(index, index + 16) % 20
            # Each source decides about inputs and targets alike, as a random crop does.
            shift = random.randrange(20) + int(np.random.randint(20)) + int(torch.randint(20, ()))
            return (tokens + shift) % 20, (tokens + shift + 1) % 20

    class Dropping(GPT):
        # Every stage draws as often as it has blocks: torch's source moves differently in each.
        def __init__(self):
            super().__init__(vocabulary=20, width=16, layers=4, heads=2, length=16)
            self.block1.register_forward_hook(lambda m, i, o: F.dropout(o, dropout, m.training))

    job = Job(
        model=Dropping,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=Augmented(),
        global_batch=8,
        samples=32,
        metrics=(),
        seed=3,
        num_workers=loaders,
    )

    def work(store, rank, size):
        # As in processes that are started on their own.
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        alone = forked.train(job, "single()", store, 0, 1)[0] if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            group = forked.group_of(store, rank, size)
            trainer = forked.trainer_of(job, how, group)
            seen, losses = [], []
            for batch in trainer.batches():
                seen.append([batch.inputs.tolist(), batch.targets.tolist()])
                losses.append(trainer.step(batch).item())
            found[how] = [trainer._bound.replica, seen, losses]
            group.sum(torch.zeros(1))
            group.close()
        return [alone, found]

    if __name__ == "__main__":
        forked.run(work, workers)
"""

DIVIDED = [
    "tensor(ways=2)",
    "tensor(ways=4)",
    "context(ways=2)",
    "pipeline(microbatches=2)",
    "pipeline(microbatches=2, schedule=pipedream)",
    "hybrid(data=2, tensor=2)",
    "hybrid(tensor=2, pipeline=2, microbatches=2)",
]


def check_alike(given, strategies):
    for how in strategies:
        replicas = {}
        for _, found in given:
            replica, seen, _ = found[how]
            assert replicas.setdefault(replica, seen) == seen, f"{how}: inputs differ in {replica}"
        assert len(replicas) == len({str(seen) for seen in replicas.values()}), how


def test_members_of_a_replica_have_the_same_inputs(fork):
    strategies = ["tensor(ways=2)", "context(ways=2)", "pipeline(microbatches=2)"]
    check_alike(fork(SCRIPT, 4, strategies, 0.1, 0), strategies)


@pytest.mark.slow
@pytest.mark.parametrize("loaders", [1, 2])
def test_loader_processes_of_members_draw_alike(fork, loaders):
    check_alike(fork(SCRIPT, 4, DIVIDED, 0.1, loaders, seconds=300), DIVIDED)


@pytest.mark.slow
def test_augmented_data_is_the_same_for_any_number_of_workers(fork):
    strategies = ["allreduce()", "tensor(ways=2)", "hybrid(data=2, tensor=2)"]
    given = fork(SCRIPT, 4, strategies, 0.0, 0)
    check_alike(given, strategies)
    alone = given[0][0]
    for how in strategies:
        # One per replica: members of a replica report the same loss.
        by_replica = {found[how][0]: found[how][2] for _, found in given}
        means = [sum(step) / len(step) for step in zip(*by_replica.values(), strict=True)]
        assert means == pytest.approx(alone, rel=1e-12), how
