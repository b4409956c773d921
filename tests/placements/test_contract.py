"""Every placement does what its forecast says: the same buckets, the same bytes on the wire."""

import json

import pytest

from manyhands.costs import TensorSize
from manyhands.placements import ALL, AllReduce, Single

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    WIDTHS = [100, 700, 700, 700, 300, 10]

    def model():
        layers = []
        for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        model[0].requires_grad_(False)
        return model

    def loop(trainer):
        before = None
        for batch in trainer.batches():
            trainer.step(batch)
            if batch.step == 4:
                before = sum(trainer._group.traffic()[0].values())
        sent = sum(trainer._group.traffic()[0].values()) - before
        buckets = None
        if hasattr(trainer._bound.module, "_get_ddp_logging_data"):
            buckets = trainer._bound.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        sizes = [
            [name, tensor.nbytes, tensor.requires_grad]
            for name, tensor in trainer.model.named_parameters()
        ]
        with open(f"figures-{trainer.rank}.json", "w") as file:
            json.dump([sent / (batch.step - 4), buckets, sizes], file)

    job = mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model[2:].parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(480, 100), torch.randint(0, 10, (480,))),
        global_batch=12,
        epochs=1,
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=int(sys.argv[2]), loop=loop)
"""


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("single()", 1),
        ("allreduce()", 2),
        pytest.param("allreduce(bucket_mb=1.0)", 3, marks=pytest.mark.slow),
    ],
)
def test_forecast_equals_what_happens(run_script, text, workers):
    from manyhands.strategies import strategy

    started = run_script(SCRIPT, text, str(workers))
    assert started.finish() == 0, started.text()
    for rank in range(workers):
        figures = (started.folder / f"figures-{rank}.json").read_text(encoding="utf-8")
        sent, buckets, sizes = json.loads(figures)
        forecast = strategy(text).forecast([TensorSize(*size) for size in sizes], workers)
        if buckets is not None:
            expected = [collective.size for collective in forecast.step]
            assert [int(size) for size in buckets.split(", ")] == expected
        # Gloo adds headers to its chunks, a few hundred bytes per collective.
        assert sent == pytest.approx(forecast.sent_per_step(workers), rel=0.01, abs=1)


def test_every_placement_says_its_support_and_refuses_no_workers():
    for placement in ALL:
        assert placement.support in {"stable", "beta", "experimental"}
        with pytest.raises(ValueError, match="worker"):
            placement().check(0)


def test_single_refuses_company_and_names_the_way_out():
    with pytest.raises(ValueError, match=r"for 4 workers use allreduce\(\)"):
        Single().check(4)


@pytest.mark.parametrize("size", [0, -1, 2000])
def test_allreduce_refuses_impossible_buckets(size):
    with pytest.raises(ValueError, match="bucket_mb"):
        AllReduce(bucket_mb=size)
