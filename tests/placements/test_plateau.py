"""`ReduceLROnPlateau` under placements: stepped by the validation metric, as in a plain loop."""

import pytest
import torch
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau

import manyhands as mh
from manyhands.parameters.optional.checks import check_optional
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import forked
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from manyhands.job import Job
    from manyhands.sampling.permutation import permutation

    workers, strategies, metric = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (24,), generator=source))
    mode = "min" if metric == "loss" else "max"
    scheduler = lambda optimizer: ReduceLROnPlateau(optimizer, mode, factor=0.3, patience=0)
    job = Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=6.0),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=6,
        epochs=8,
        lr_scheduler=scheduler,
        plateau_metric=None if metric == "loss" else metric,
    )

    def by_hand():
        torch.manual_seed(0)
        model = job.model()
        optimizer = job.optimizer(model)
        schedule = scheduler(optimizer)
        targets = data.tensors[1]
        for epoch in range(8):
            for indices in permutation(24, 0, epoch).split(6):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[indices]), targets[indices]).backward()
                optimizer.step()
            with torch.no_grad():
                outputs = model(inputs)
                values = {
                    "loss": F.cross_entropy(outputs, targets).item(),
                    "accuracy": (outputs.argmax(1) == targets).double().mean().item(),
                }
                schedule.step(values[metric])
        return model.state_dict(), optimizer.param_groups[0]["lr"]

    def work(store, rank, size):
        expected, rate = by_hand()
        found = {}
        for how in strategies:
            state = forked.train(job, how, store, rank, size)[2]
            if rank == 0:
                apart = max((state[k] - expected[k]).abs().max().item() for k in expected)
                found[how] = [apart, rate]
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.parametrize("metric", [pytest.param("loss", marks=pytest.mark.slow), "accuracy"])
@pytest.mark.parametrize(
    ("workers", "strategies"),
    [(1, ["single()"]), (2, ["allreduce()", "fully_sharded()", "pipeline(microbatches=2)"])],
)
def test_follows_a_plain_loop(fork, workers, strategies, metric):
    found = fork(SCRIPT, workers, strategies, metric)[0]
    assert list(found) == strategies
    for how, (apart, rate) in found.items():
        assert apart < 1e-9, how
        assert rate < 6.0, "the test needs a rate that was reduced"


DATA = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8, 4))


def job(mode="min", validation=DATA, **options):
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=functional.mse_loss,
        data=DATA,
        validation=validation,
        metrics=(),
        global_batch=8,
        epochs=1,
        lr_scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode),
        **options,
    )


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("synchronous()", job(), "ReduceLROnPlateau does not work under synchronous.*CosineAnn"),
        ("averaging()", job(), "ReduceLROnPlateau does not work under averaging"),
        ("allreduce()", job(validation=None), "give validation data"),
        ("allreduce()", job("max"), r"name one, as in Job\(plateau_metric=.accuracy.\)"),
        ("allreduce()", job(plateau_metric="f1"), "'f1' is no metric of this job; it has loss"),
    ],
)
def test_what_cannot_be_followed_is_refused(text, given, words):
    with pytest.raises(ValueError, match=words):
        check_optional(strategy(text), given, ["cpu"])


def test_what_can_is_not():
    check_optional(strategy("allreduce()"), job(), ["cpu"])
    check_optional(strategy("allreduce()"), job("max", plateau_metric="loss"), ["cpu"])
