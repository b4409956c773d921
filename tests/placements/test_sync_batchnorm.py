"""Synchronised batch norm: N workers equal one, also where some have fewer samples or none."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from manyhands.failure import Refused
from manyhands.job import Job
from manyhands.live.agent.trial_batch import try_out
from manyhands.parameters.optional.checks import check_optional
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys, warnings
    from dataclasses import replace
    import torch, torch.nn.functional as F
    from torch import nn
    import forked
    from manyhands.job import Job

    workers, strategies, options = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    # 23 samples in batches of 7: the last has 2, so one of 3 workers has none.
    inputs = torch.randn(23, 2, 6, 6, generator=source) * 3 + 1
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 3, (23,), generator=source))

    def plain():
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 8), nn.BatchNorm1d(8, affine=False, momentum=None), nn.Linear(8, 3),
        )

    job = Job(
        model=plain,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=7,
        epochs=2,
    )
    converted = replace(job, model=lambda: nn.SyncBatchNorm.convert_sync_batchnorm(plain()))
    asked = replace(job, sync_batchnorm=True, **options)

    def work(store, rank, size):
        warnings.simplefilter("default")
        # Without synchronisation a worker cannot normalise a single sample.
        short = replace(job, epochs=None, samples=14)
        alone = {}
        if rank == 0:
            alone = {one: forked.train(one, "single()", store, 0, 1) for one in (job, short)}
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            for kind, given in (("converted", converted), ("asked", asked), ("plain", short)):
                _, values, state = forked.train(given, how, store, rank, size)
                if rank == 0:
                    _, expected_values, expected = alone[short if given is short else job]
                    assert list(state) == list(expected)
                    found[f"{how} {kind}"] = max(
                        *((state[k] - expected[k]).abs().max().item() for k in state),
                        *(abs(values[k] - expected_values[k]) for k in values),
                    )
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.parametrize(
    ("workers", "strategies", "options"),
    [
        (1, ["single()", "allreduce()"], {}),
        (2, ["allreduce()", "zero(stage=1)"], {}),
        (3, ["allreduce()"], {"activation_checkpointing": False}),
        pytest.param(
            2,
            ["allreduce()"],
            {"compile": True},
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],
        ),
    ],
)
def test_n_workers_equal_one(fork, monkeypatch, tmp_path, workers, strategies, options):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    found = fork(SCRIPT, workers, strategies, options, seconds=850)[0]
    assert len(found) == 3 * len(strategies)
    for how, apart in found.items():
        if how.endswith("plain") and workers > 1:
            assert apart > 1e-3, f"{how}: the test would not see a difference"
        else:
            assert apart < 1e-9, how


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.SyncBatchNorm(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(inputs))


JOB = Job(
    model=Normalised,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.mse_loss,
    data=[(torch.zeros(4), torch.zeros(4))] * 8,
    global_batch=8,
    epochs=1,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("synchronous()", "its workers do not compute at the same time"),
        ("gossip()", "use allreduce"),
        ("fully_sharded()", "whose statistics could be summed"),
        ("tensor()", "whose statistics could be summed"),
    ],
)
def test_other_strategies_refuse_it(text, words):
    asked = replace(JOB, model=lambda: nn.Linear(4, 4), sync_batchnorm=True)
    with pytest.raises(
        ValueError, match=rf"Job\(sync_batchnorm=True\) does not work under.*{words}"
    ):
        strategy(text).check_job(asked, 2)
    with pytest.raises(ValueError, match=rf"the layer 'norm', SyncBatchNorm, does not.*{words}"):
        check_optional(strategy(text), JOB, ["cpu"])


def test_parts_of_a_batch_have_no_statistics_of_the_whole():
    with pytest.raises(ValueError, match="micro_batch=2 computes a part of them at a time"):
        replace(JOB, sync_batchnorm=True, micro_batch=2)
    with pytest.raises(ValueError, match=r"'norm', SyncBatchNorm, .*leave out micro_batch"):
        check_optional(strategy("allreduce()"), replace(JOB, micro_batch=2), ["cpu"])


def test_a_sound_job_is_not_refused():
    try_out(JOB, 2, ["cpu", "cpu"])
    check_optional(strategy("allreduce()"), JOB, ["cpu"])
    assert issubclass(Refused, ValueError)
