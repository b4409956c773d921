"""`Job(ema=…)` under placements: the average that torch's AveragedModel keeps in a plain loop."""

import pytest
import torch
from torch.nn import functional

from manyhands.job import Job
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import forked
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from manyhands.files.checkpoint import load_state
    from manyhands.job import Job
    from manyhands.live.worker.process import _store
    from manyhands.sampling.permutation import permutation
    from pathlib import Path

    workers, strategies = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (24,), generator=source))
    job = Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=6,
        epochs=3,
        ema=0.75,
    )

    def by_hand():
        torch.manual_seed(0)
        model = job.model()
        optimizer = job.optimizer(model)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75))
        for epoch in range(3):
            for indices in permutation(24, 0, epoch).split(6):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[indices]), data.tensors[1][indices]).backward()
                optimizer.step()
                average.update_parameters(model)
        loss = F.cross_entropy(average(inputs), data.tensors[1]).item()
        return model.state_dict(), average.module.state_dict(), loss

    def trained(how, store, rank, size):
        group = forked.group_of(store, rank, size)
        trainer = forked.trainer_of(job, how, group)
        for batch in trainer.batches():
            trainer.step(batch)
        state, paths = trainer.finish(), (Path(f"{how}-average"), Path(f"{how}-model"))
        with trainer.averaged() as averaged:
            _store(averaged, paths[0], rank)
        _store(state, paths[1], rank)
        group.sum(torch.zeros(1))
        group.close()
        return *(load_state(path) for path in paths if rank == 0), trainer.values

    def work(store, rank, size):
        model, average, loss = by_hand()
        found = {}
        for how in strategies:
            made = trained(how, store, rank, size)
            if rank == 0:
                found[how] = {
                    "average": max((made[0][k] - average[k]).abs().max().item() for k in average),
                    "model": max((made[1][k] - model[k]).abs().max().item() for k in model),
                    "loss": abs(made[2]["ema_loss"] - loss),
                    "between": abs(made[2]["ema_loss"] - made[2]["loss"]),
                }
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""

WHOLE = ["allreduce()", "zero(stage=1)", "zero(stage=2)", "fully_sharded()", "offload()"]
DIVIDED = ["fully_sharded(reshard_after_forward=false)", "tensor(ways=2)"]
DIVIDED += ["pipeline(microbatches=2)", 'place(["0 on 0", "2 on 1"])']


@pytest.mark.parametrize(
    ("workers", "strategies"),
    [
        (1, ["single()"]),
        (2, [*WHOLE, *DIVIDED]),
        pytest.param(3, WHOLE[:1], marks=pytest.mark.slow),
    ],
)
def test_follows_the_average_of_a_plain_loop(fork, workers, strategies):
    found = fork(SCRIPT, workers, strategies)[0]
    assert list(found) == strategies
    for how, one in found.items():
        assert one["average"] < 1e-9, how
        assert one["model"] < 1e-9, how
        assert one["loss"] < 1e-9, how
        assert one["between"] > 1e-3, f"{how}: the average was not evaluated"


JOB = Job(
    model=lambda: torch.nn.Linear(4, 4),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.mse_loss,
    data=[(torch.zeros(4), torch.zeros(4))] * 8,
    global_batch=8,
    epochs=1,
    ema=0.9,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("synchronous()", "no process has all parameters after every global batch"),
        ("gossip()", r"Job\(ema=0.9\) does not work under gossip\(\)"),
        ("pipeline(schedule=pipedream)", "pipedream updates after every microbatch"),
        ("hybrid(data=2, outer=averaging())", "its replicas step by themselves until averaging"),
    ],
)
def test_strategies_without_one_model_refuse_it(text, words):
    with pytest.raises(ValueError, match=words):
        strategy(text).check_job(JOB, 2)


def test_a_target_may_name_a_metric_of_the_average():
    data = torch.utils.data.TensorDataset(torch.zeros(4, 4), torch.zeros(4, 4))
    options = {"validation": data, "metrics": (), "target": "ema_loss <= 0.1"}
    assert Job(**{**vars_of(JOB), **options}).goal.metric == "ema_loss"
    with pytest.raises(ValueError, match=r"names no metric of this job; it has loss$"):
        Job(**{**vars_of(JOB), **options, "ema": None})
    with pytest.raises(ValueError, match="ema must be a decay of at least 0 and below 1"):
        Job(**{**vars_of(JOB), "ema": 1.0})


def vars_of(job):
    names = ("model", "optimizer", "loss", "data", "global_batch", "epochs", "ema")
    return {name: getattr(job, name) for name in names}
