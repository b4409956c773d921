"""Targets that the loss leaves out: the mean is over those that count, or a warning is given."""

SCRIPT = """
    import json, sys, warnings
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, strategies, validate = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, ignore_index=-100)

    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 10, (24, 16), generator=source)
    targets = torch.randint(0, 10, (24, 16), generator=source)
    # Sequences of different lengths, padded.
    lengths = torch.randint(1, 17, (24, 1), generator=source)
    targets[torch.arange(16) >= lengths] = -100
    data = torch.utils.data.TensorDataset(tokens, targets)
    job = Job(
        model=lambda: GPT(vocabulary=10, length=16, width=16, layers=2, heads=2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=data if validate else None,
        global_batch=6,
        samples=24,
        metrics=(),
    )

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                losses, values, state = forked.train(job, how, store, rank, size)
            words = [str(one.message) for one in said if "weights means" in str(one.message)]
            apart = value = 0.0
            if rank == 0:
                apart = max((state[k] - alone[2][k]).abs().max().item() for k in state)
                if validate:
                    torch.manual_seed(0)
                    model = job.model()
                    model.load_state_dict(state)
                    value = abs(values["loss"] - loss(model(tokens), targets).item())
            found[how] = [apart, value, words]
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


def test_stretches_are_weighed_by_the_targets_that_count(fork):
    found = fork(SCRIPT, 2, ["context(ways=2)"], False)
    apart, _, words = found[0]["context(ways=2)"]
    assert apart < 1e-12
    assert not words


def test_data_parallelism_warns_and_evaluates_exactly(fork):
    found = fork(SCRIPT, 2, ["allreduce()"], True)
    apart, value, words = found[0]["allreduce()"]
    assert value < 1e-12
    # Not what one worker makes of it, and every worker that sees it says so.
    assert apart > 1e-6
    assert "allreduce() weights means by samples" in words[0]
