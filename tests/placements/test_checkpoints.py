"""Checkpoints under placements: a run that was stopped and continued equals one that was not."""

import pytest

SCRIPT = """
    import json, sys
    from dataclasses import replace
    from pathlib import Path
    import torch, torch.nn.functional as F
    import forked
    from manyhands.files.checkpoints import latest
    from manyhands.intervals import every
    from manyhands.job import Job
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan

    size, cases = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (50,), generator=source))
    optimizers = {
        "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.02),
    }

    def job_of(kind):
        options = {}
        if kind == "scheduler":
            options["lr_scheduler"] = lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.2, total_steps=18
            )
        if kind == "ema":
            options |= {"ema": 0.75}
        drops = [torch.nn.Dropout(0.2)] if kind == "dropout" else []
        return Job(
            model=lambda: torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.Tanh(), *drops, torch.nn.Linear(8, 8),
                torch.nn.Tanh(), torch.nn.Linear(8, 4),
            ),
            optimizer=optimizers["adamw" if kind in ("adamw", "ema", "dropout") else "sgd"],
            loss=F.cross_entropy,
            data=data,
            global_batch=9,
            samples=104,
            metrics=(),
            # Batches end after 18, 36, 45, 50, 59, 68, 77, 86, 95, 100 and 104 samples.
            checkpoint=every(steps=2),
            **options,
        )

    def plan(name, how, resume):
        stored = None if resume is None else latest(Path(resume)).folder
        return StoringPlan(Path(name), how, name, stored)

    def apart(case, kind, legs, expected, store, rank, size):
        job, last, state = job_of(kind), None, {}
        for number, (how, workers, until) in enumerate(legs):
            name = f"case-{case}-{number}"
            if rank < workers:
                about = (replace(job, samples=until), how, store, rank, workers)
                state = forked.train(*about, plan(name, how, last))[2]
            last = name
            # The next leg may need workers that this one did not.
            forked.group_of(store, rank, size).close()
        how, workers = expected
        if rank < workers:
            whole = plan(f"whole-{case}", how, None)
            whole = forked.train(job, how, store, rank, workers, whole)[2]
        if rank == 0:
            return max((state[name] - whole[name]).abs().max().item() for name in whole)

    def work(store, rank, size):
        return [apart(at, *case, store, rank, size) for at, case in enumerate(cases)]

    if __name__ == "__main__":
        forked.run(work, size)
"""

SAME = [
    ("sgd", "single()", 1),
    ("dropout", "allreduce()", 2),
    ("ema", "allreduce()", 2),
    ("scheduler", "allreduce()", 3),
    ("adamw", "zero(stage=1)", 2),
    ("ema", "fully_sharded()", 2),
    ("adamw", "fully_sharded()", 3),
    ("adamw", "zero(stage=2)", 2),
    ("adamw", "offload()", 2),
    ("adamw", "pipeline(microbatches=3)", 2),
    ("sgd", 'pipeline(microbatches=3, schedule=pipedream, split_points=["2"])', 2),
    ("adamw", "tensor(ways=2)", 2),
    ("adamw", "tensor(ways=2, samples=own)", 2),
    ("adamw", "hybrid(data=2, shard=2)", 4),
    ("adamw", "hybrid(data=2, outer=diloco(every=3))", 2),
]


@pytest.mark.slow
def test_continues_to_the_bit(fork):
    # The last checkpoint of the first leg is after 36 samples, and two steps are made again.
    cases = [(kind, [[how, n, 52], [how, n, 104]], [how, n]) for kind, how, n in SAME]
    found = fork(SCRIPT, 4, cases)[0]
    assert dict(zip(map(str, SAME), found, strict=True)) == dict.fromkeys(map(str, SAME), 0.0)


def test_a_codec_loses_nothing(fork):
    how, low_rank = "allreduce(codec=topk(0.2))", "allreduce(codec=powersgd(rank=1))"
    cases = [("sgd", [[one, 2, 52], [one, 2, 104]], [one, 2]) for one in (how, low_rank)]
    # What was not sent of the mean is sent by one worker, and then chosen in another order.
    sparse, thin = fork(SCRIPT, 2, cases)[0]
    assert sparse < 0.05
    assert thin == 0.0


@pytest.mark.slow
def test_other_workers_and_other_strategies(fork):
    number = [["allreduce()", 4, 40], ["allreduce()", 2, 80], ["allreduce()", 3, 104]]
    strategies = [
        ["allreduce()", 3, 40],
        ["zero(stage=2)", 2, 62],
        ["pipeline(microbatches=3)", 2, 80],
        ["tensor(ways=2)", 2, 97],
    ]
    last = {"sgd": ["offload()", 2, 104], "adamw": ["zero(stage=1)", 3, 104]}
    alone = ["single()", 1]
    cases = [(kind, number, alone) for kind in ("sgd", "adamw", "scheduler")]
    cases += [(kind, [*strategies, last[kind]], alone) for kind in ("sgd", "adamw")]
    assert max(fork(SCRIPT, 4, cases)[0]) < 1e-12
