"""Targets that the loss leaves out: the mean is over those that count, wherever they are."""

import pytest

SCRIPT = """
    import json, sys, warnings
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, strategies, options = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)

    class Mean(torch.nn.Module):
        def forward(self, words):
            return words.mean(1)

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
        validation=data,
        global_batch=6,
        samples=21,
        metrics=(),
    )
    if options.pop("single", False):
        labels = targets[:, 0].clone()
        labels[::3] = -100
        job = replace(
            job,
            model=lambda: torch.nn.Sequential(torch.nn.Embedding(10, 10), Mean()),
            data=torch.utils.data.TensorDataset(tokens, labels),
            validation=None,
        )

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                asked = replace(job, **options)
                losses, values, state = forked.train(asked, how, store, rank, size)
            words = [str(one.message) for one in said if "weights means" in str(one.message)]
            apart = value = 0.0
            if rank == 0:
                apart = max((state[k] - alone[2][k]).abs().max().item() for k in state)
                if job.validation is not None:
                    torch.manual_seed(0)
                    model = job.model()
                    model.load_state_dict(state)
                    value = abs(values["loss"] - loss(model(tokens), targets).item())
            found[how] = [apart, value, words]
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


PARTS = ["tensor(ways=2)", "tensor(ways=2, samples=own)", "context(ways=2)", "offload()"]
COPIES = ["allreduce()", "fully_sharded()", "zero(stage=1)", "zero(stage=2)"]
STAGES = ["pipeline(microbatches=3)", 'place(["head on 1"])']


@pytest.mark.parametrize(
    ("workers", "strategies", "options"),
    [
        (2, [*COPIES, *PARTS, *STAGES], {}),
        pytest.param(3, COPIES, {}, marks=pytest.mark.slow),
        pytest.param(
            *(2, [*COPIES[:2], "tensor(ways=2)", "context(ways=2)"], {"micro_batch": 1}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(4, ["hybrid(shard=2, tensor=2)", "hybrid(data=2, pipeline=2, microbatches=3)"], {}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["2", "3", "micro-batches", "4"],
)
def test_the_mean_is_over_all_targets_that_count(fork, workers, strategies, options):
    found = fork(SCRIPT, workers, strategies, options)[0]
    for how in strategies:
        apart, value, words = found[how]
        assert apart < 1e-12, how
        assert value < 1e-12, how
        assert not words


@pytest.mark.parametrize("how", COPIES[:3])
def test_a_mean_over_targets_that_looks_like_one_over_samples_is_exact_too(fork, how):
    apart, _, words = fork(SCRIPT, 2, [how], {"single": True})[0][how]
    assert apart < 1e-12
    assert not words
