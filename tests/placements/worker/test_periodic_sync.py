"""Copies that train apart and meet: what they equal, in float64, and what they send."""

import pytest

SCRIPT = """
    import json, sys
    from pathlib import Path
    import torch, torch.nn.functional as F
    import forked
    import manyhands as mh
    from manyhands import lr_schedules

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
    def model():
        return mh.models.GPT(vocabulary=18, width=16, layers=2, heads=2, length=8)

    def normed():
        return torch.nn.Sequential(model(), torch.nn.BatchNorm1d(18))

    def job(kind, size=7, clip=None, validation=True, norm=False, **options):
        if options.pop("rate", False):
            options["lr_schedule"] = lr_schedules.cosine(2, warmup=0.5, floor=0.1)
        return mh.Job(
            model=normed if norm else model,
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
            if workers == 1:
                if rank == 0:
                    _, expected, told = forked.train(asked, other, store, 0, 1)
                    loss = expected.get("loss")
            elif workers > 0:
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

ALL = {"size": {"0": 6, "1": 11, "1.4": 16}, "rate": True, "clip": 0.6, "micro_batch": 3}


def check(fork, workers, cases, seconds=150):
    """Each case: a strategy; what it equals, on so many workers or on −N virtual ones; a job."""
    for how, worst, loss, _ in fork(SCRIPT, workers, cases, seconds=seconds)[0]:
        assert worst < 1e-9, how
        assert loss < 1e-9, how


def test_two_copies_are_two_workers_of_the_protocol(fork):
    protocols = {
        "averaging(every=3)": "adamw",
        "local_sgd(every=4, warmup=3)": "momentum",
        "diloco(every=3)": "momentum",
    }
    cases = [[f"hybrid(data=2, outer={p})", p, -2, kind, {}] for p, kind in protocols.items()]
    check(fork, 2, cases)


@pytest.mark.slow
def test_copies_meet_with_codecs(fork):
    cases = [
        # Without loss it is what it is without a codec, but for the order of sums.
        [
            "hybrid(data=2, outer=diloco(every=3, codec=exact()))",
            "hybrid(data=2, outer=diloco(every=3))",
            2,
            "momentum",
            {},
        ],
        [
            "hybrid(data=2, outer=averaging(every=3, codec=chain(topk(1.0), deflate())))",
            "hybrid(data=2, outer=averaging(every=3))",
            2,
            "adamw",
            {},
        ],
    ]
    check(fork, 2, cases)
    lossy = [
        [
            "hybrid(data=2, outer=averaging(every=3, codec=topk(0.2)))",
            "hybrid(data=2, outer=averaging(every=3))",
            2,
            "plain",
            {},
        ]
    ]
    ((_, worst, loss, expected),) = fork(SCRIPT, 2, lossy)[0]
    assert 1e-6 < worst < 0.5
    assert loss < 0.1 * expected


@pytest.mark.slow
def test_copies_in_parts_meet_place_by_place(fork):
    cases = [
        ["hybrid(data=2, shard=2, outer=diloco(every=3))", "diloco(every=3)", -2, "adamw", ALL],
        [
            "hybrid(data=2, tensor=2, outer=averaging(every=1))",
            "hybrid(data=2, tensor=2)",
            4,
            "plain",
            {},
        ],
    ]
    check(fork, 4, cases)


ONE = "diloco(every=1, outer_lr=1.0, outer_momentum=0.0)"
EQUAL = {
    "averaging in every step with plain SGD is one worker": [
        ["hybrid(data=2, shard=2, outer=averaging(every=1))", "single()", 1, "plain", {}],
        ["hybrid(data=4, outer=averaging(every=1))", "single()", 1, "plain", {"size": 5}],
        [
            "hybrid(data=2, together=2, outer=averaging())",
            "hybrid(data=2, shard=2)",
            4,
            "plain",
            {"rate": True},
        ],
    ],
    "an outer step all the way is averaging": [
        [
            f"hybrid(data=2, {inside}=2, outer={ONE})",
            f"hybrid(data=2, {inside}=2, outer=averaging(every=1))",
            4,
            kind,
            {"clip": 0.6},
        ]
        for inside, kind in (("shard", "adamw"), ("tensor", "momentum"))
    ],
    "four copies are four workers of the protocol": [
        [f"hybrid(data=4, outer={protocol})", protocol, -4, kind, options]
        for protocol, kind, options in (
            ("averaging(every=3)", "momentum", ALL),
            ("averaging(every=3)", "adamw", {"validation": False}),
            ("local_sgd(every=4, warmup=3)", "adamw", ALL),
            ("diloco(every=3)", "momentum", {"validation": False}),
            ("diloco(every=4, outer_momentum=0.5)", "adamw", ALL),
        )
    ],
    "what is inside a copy makes no difference": [
        [f"hybrid(data=2, {inside}, outer={protocol})", protocol, -2, kind, options]
        for inside, protocol, kind, options in (
            ("shard=2", "averaging(every=3)", "momentum", ALL),
            ("shard=2", "local_sgd(every=4, warmup=3)", "adamw", {"validation": False}),
            ("tensor=2", "diloco(every=3)", "momentum", ALL),
            ("tensor=2", "averaging(every=3)", "adamw", {}),
            ("together=2", "diloco(every=3)", "adamw", ALL),
            ("pipeline=2, microbatches=2", "diloco(every=3)", "adamw", {"clip": 0.6}),
            ("pipeline=2, microbatches=2", "averaging(every=2)", "momentum", {"rate": True}),
        )
    ],
    "batch norm's statistics are the mean, too": [
        [
            f"hybrid(data=4, outer={protocol})",
            protocol,
            -4,
            "adamw",
            {"norm": True, "size": 8, "samples": 40, "validation": validation},
        ]
        for protocol, validation in (("averaging(every=2)", True), ("diloco(every=2)", False))
    ],
    "lockstep in a copy is an island, where batches divide alike": [
        [
            f"hybrid(data=2, together=2, outer={protocol})",
            f"hierarchical(outer={protocol})",
            -4,
            kind,
            {"size": 8, "rate": True, "clip": 0.6},
        ]
        for protocol, kind in (("averaging(every=3)", "adamw"), ("diloco(every=3)", "momentum"))
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("law", EQUAL)
def test_four_workers(fork, law):
    check(fork, 4, EQUAL[law], seconds=800)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_copies_may_be_pipelines_whose_stages_are_divided(fork):
    cases = [
        [
            f"hybrid(data=2, {inside}=2, pipeline=2, microbatches=2, outer=diloco(every=3))",
            *("diloco(every=3)", -2, "adamw", {"clip": 0.6}),
        ]
        for inside in ("tensor", "shard")
    ]
    check(fork, 8, cases, seconds=360)


FORECAST = """
    import json, sys
    from collections import Counter
    import forked
    from manyhands.strategies import strategy

    STEPS = 8
    job = forked.gpt_job(2 * STEPS)

    def work(store, rank, size):
        given = {}
        for how in json.loads(sys.argv[2]):
            found, sent = forked.exchanged(job, how, store, rank, size, after=STEPS)
            noted = Counter(found)
            told = strategy(how).forecast_job(job, size)
            expected = Counter()
            for some, often in ((told.step, STEPS), (told.outer, STEPS // told.every)):
                for one in some:
                    expected[one.kind, one.size, one.workers] += often
            asked = sum(noted.values()) / STEPS
            given[how] = [
                sorted(noted.items()), sorted(expected.items()),
                sent, told.sent_per_step(size), asked, told.memory,
            ]
        return given

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("workers", "strategies"),
    [
        (2, ["hybrid(data=2, outer=diloco(every=4))", "hybrid(data=2, outer=averaging())"]),
        pytest.param(
            4,
            [
                "hybrid(data=2, shard=2, outer=diloco(every=4))",
                "hybrid(data=2, tensor=2, outer=averaging(every=2))",
                "hybrid(data=2, together=2, outer=local_sgd(every=4, warmup=2))",
                "hybrid(data=4, outer=diloco(every=8))",
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_meetings_send_what_is_forecast_and_steps_between_them_less(fork, workers, strategies):
    everybody = fork(FORECAST, workers, strategies)
    for how in strategies:
        # Of an odd number of rows the first worker has one more than the others.
        noted, told, _, expected, asked, _ = everybody[0][how]
        assert noted == told, how
        sent = sum(given[how][2] for given in everybody) / workers
        assert 0.98 * expected <= sent <= 1.05 * expected + 300 * workers * asked, how
