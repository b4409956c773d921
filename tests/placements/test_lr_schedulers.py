"""A scheduler of torch under placements: learning rates and momentum of a plain loop."""

import pytest

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import forked
    from torch.optim.lr_scheduler import OneCycleLR
    from manyhands.job import Job
    from manyhands.sampling.permutation import permutation

    workers, strategies = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 3, (24,), generator=source))
    # Rises and falls within the run, and so does the momentum.
    scheduler = lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=12)
    job = Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=F.cross_entropy,
        data=data,
        global_batch=6,
        epochs=3,
        lr_scheduler=scheduler,
    )

    def by_hand():
        torch.manual_seed(0)
        model = job.model()
        optimizer = job.optimizer(model)
        schedule = scheduler(optimizer)
        for epoch in range(3):
            for indices in permutation(24, 0, epoch).split(6):
                optimizer.zero_grad()
                inputs, targets = (tensor[indices] for tensor in data.tensors)
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                schedule.step()
        return model.state_dict()

    def work(store, rank, size):
        found = {}
        for how in strategies:
            state = forked.train(job, how, store, rank, size)[2]
            if rank == 0:
                expected = by_hand()
                found[how] = max((state[k] - expected[k]).abs().max().item() for k in expected)
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.slow
def test_follows_a_plain_loop(fork):
    strategies = ["allreduce()", "zero(stage=1)", "fully_sharded()", "offload()"]
    strategies += ["pipeline(microbatches=2)", "tensor(ways=2)"]
    found = fork(SCRIPT, 2, strategies)[0]
    assert list(found) == strategies
    for how, apart in found.items():
        assert apart < 1e-12, how
