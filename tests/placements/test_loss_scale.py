"""autocast="float16": the steps of a plain loop with torch's GradScaler, skipped ones included."""

import pytest
import torch
from torch.nn import functional

from manyhands.job import Job
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys, warnings
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.sampling.permutation import permutation

    workers, strategies, times = map(json.loads, sys.argv[1:])
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (24,), generator=source))

    def loss(outputs, targets):
        # Gradients of the outputs, which are float16, overflow until the scale is small enough.
        return F.cross_entropy(outputs * times, targets)

    job = Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=loss,
        data=data,
        global_batch=6,
        epochs=4,
        clip=1.0,
        autocast="float16",
    )

    def by_hand():
        torch.manual_seed(0)
        model = job.model()
        optimizer = job.optimizer(model)
        scaler = torch.amp.GradScaler("cpu")
        skipped = 0
        for epoch in range(4):
            for indices in permutation(24, 0, epoch).split(6):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    value = loss(model(inputs[indices]), data.tensors[1][indices])
                scaler.scale(value).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                skipped += scaler.get_scale() < before
        return model.state_dict(), skipped, scaler.get_scale()

    def trained(how, store, rank, size):
        group = forked.group_of(store, rank, size)
        trainer = forked.trainer_of(job, how, group)
        for batch in trainer.batches():
            trainer.step(batch)
        state = dict(trainer.finish().fetch())
        scale = torch.tensor([trainer._scale.factor, trainer._scale.skipped])
        scales = scale.new_empty(size, 2)
        group.gather(scales, scale)
        group.close()
        return state, scales.tolist()

    def work(store, rank, size):
        expected, skipped, scale = by_hand()
        found = {}
        for how in strategies:
            state, scales = trained(how, store, rank, size)
            if rank == 0:
                found[how] = {
                    "scales": scales,
                    "expected": [scale, skipped],
                    "parameters": max(
                        (state[k] - expected[k]).abs().max().item() for k in expected
                    ),
                }
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.parametrize("times", [pytest.param(1.0, marks=pytest.mark.slow), 64.0])
@pytest.mark.parametrize(
    ("workers", "strategies", "limit"),
    [
        (1, ["single()"], 1e-6),
        # Another number of samples in a matrix product rounds otherwise, in 11 bits.
        (2, ["allreduce()", "zero(stage=1)", "fully_sharded()"], 2e-2),
    ],
)
def test_follows_torchs_scaler(fork, workers, strategies, limit, times):
    found = fork(SCRIPT, workers, strategies, times)[0]
    assert list(found) == strategies
    for how, one in found.items():
        assert one["scales"] == [one["expected"]] * workers, how
        assert one["parameters"] < limit, how
        assert (one["expected"][1] > 0) == (times > 1), "some steps are skipped, or none"


JOB = Job(
    model=lambda: torch.nn.Linear(4, 4),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.mse_loss,
    data=[(torch.zeros(4), torch.zeros(4))] * 8,
    global_batch=8,
    epochs=1,
    autocast="float16",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("synchronous()", r"before it is known whether it overflows: use autocast=.bfloat16"),
        ("easgd()", r"Job\(autocast=.float16.\) does not work under easgd\(\)"),
        ("allreduce(codec=topk(0.1))", "whose gradients have another scale"),
        ("hybrid(data=2, outer=averaging())", "its replicas step by themselves"),
        ("pipeline()", "a pipeline supports neither micro_batch nor autocast"),
    ],
)
def test_strategies_that_cannot_skip_a_step_refuse_it(text, words):
    with pytest.raises(ValueError, match=words):
        strategy(text).check_job(JOB, 2)
    strategy("allreduce(codec=half(feedback=false))").check_job(JOB, 2)
