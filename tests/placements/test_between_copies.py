"""Copies that train apart and meet: what they equal, in float64, with epochs that end in between."""

import pytest

SCRIPT = """
    import json, sys
    from pathlib import Path
    import torch, torch.nn.functional as F
    import forked
    import manyhands as mh
    from manyhands import rates

    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 18, (43, 9), generator=source)
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    OPTIMIZERS = {
        "plain": lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
        "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    }

    # 43 samples: epochs end with a short batch, of one sample for some sizes, and between meetings.
    def job(kind, size=7, clip=None, validation=True, **options):
        if options.pop("rate", False):
            options["rate"] = rates.cosine(2, warmup=0.5, floor=0.1)
        return mh.Job(
            model=lambda: mh.models.GPT(vocabulary=18, width=16, layers=2, heads=2, length=8),
            optimizer=OPTIMIZERS[kind],
            loss=F.cross_entropy,
            data=data,
            validation=data if validation else None,
            metrics=(),
            global_batch={float(at): of for at, of in size.items()} if type(size) is dict else size,
            epochs=2,
            clip=clip,
            seed=5,
            **options,
        )

    def virtually(asked, how, workers, number):
        run = mh.simulate(asked, how, workers=workers, output=f"virtual-{number}")
        return run.metrics.get("loss"), run.state_dict()

    def work(store, rank, size):
        apart = []
        for number, (how, other, workers, kind, options) in enumerate(json.loads(sys.argv[2])):
            asked = job(kind, **options)
            _, values, state = forked.train(asked, how, store, rank, size)
            if workers > 0:
                _, expected, told = forked.train(asked, other, store, rank, size)
                loss = expected.get("loss")
            elif rank == 0:
                loss, told = virtually(asked, other, -workers, number)
            if rank == 0:
                assert state.keys() == told.keys()
                worst = max((state[name] - told[name]).abs().max().item() for name in told)
                apart.append([how, worst, abs(values.get("loss", 0) - (loss or 0)), loss])
            store.set(f"done {number}", "") if rank == 0 else store.get(f"done {number}")
        return apart

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""

ALL = {"size": {"0": 6, "1": 11, "1.4": 16}, "rate": True, "clip": 0.6, "at_once": 3}


def check(fork, workers, cases, seconds=150):
    """Each case: a strategy, what it equals, on the same workers or on −N virtual ones, a job."""
    for how, worst, loss, _ in fork(SCRIPT, workers, cases, seconds=seconds)[0]:
        assert worst < 1e-9, how
        assert loss < 1e-9, how


def test_two_copies_are_two_workers_of_the_protocol(fork):
    protocols = {
        "averaging(every=3)": "adamw",
        "local_sgd(every=4, warmup=3)": "momentum",
        "diloco(every=3)": "momentum",
    }
    cases = [[f"hybrid(data=2, between={p})", p, -2, kind, {}] for p, kind in protocols.items()]
    check(fork, 2, cases)


def test_copies_in_parts_meet_place_by_place(fork):
    cases = [
        ["hybrid(data=2, shard=2, between=diloco(every=3))", "diloco(every=3)", -2, "adamw", ALL],
        [
            "hybrid(data=2, tensor=2, between=averaging(every=1))",
            "hybrid(data=2, tensor=2)",
            4,
            "plain",
            {},
        ],
    ]
    check(fork, 4, cases)
