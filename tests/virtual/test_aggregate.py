"""Robust aggregation in whole runs: what equals the mean, and what wrong workers can do."""

import pytest
import torch
from benchmarks.attackers import Attacked, AttackedSoftSync
from torch import nn
from torch.utils.data import TensorDataset
from virtual_jobs import a_job

from manyhands.protocols.aggregation import Clipped, Krum, Median, Trimmed
from manyhands.strategies import strategy


def same(one, other) -> bool:
    mine, its = one.run.state_dict(), other.run.state_dict()
    return all(torch.equal(mine[name], its[name]) for name in its)


def many(**changes):
    """A job in which each of ten workers has ten samples per step."""
    return a_job(size=500, global_batch=100, **({"epochs": 12} | changes))


def loss(done, size: int = 200) -> float:
    """The loss on all samples of the job at the end."""
    state, (inputs, targets) = done.run.state_dict(), a_job(size=size).data.tensors
    return float(((inputs @ state["weight"].T + state["bias"] - targets) ** 2).mean())


def a_normalised_job():
    """With batch norm, whose buffers are sent with the updates."""
    return a_job(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    )


@pytest.mark.parametrize("job", [a_job, a_normalised_job])
@pytest.mark.parametrize("servers", [1, 2])
def test_trimming_nothing_is_the_mean_to_the_bit(virtually, job, servers) -> None:
    mean = virtually(job(), strategy(f"synchronous(servers={servers})"))
    named = virtually(job(), strategy(f"synchronous(servers={servers}, aggregate=mean)"))
    trimmed = virtually(job(), strategy(f"synchronous(servers={servers}, aggregate=trimmed(0))"))
    assert same(mean, named)
    assert same(mean, trimmed)


@pytest.mark.parametrize("text", ["median", "clipped(1000.0)"])
def test_one_worker_alone_is_not_changed(virtually, text) -> None:
    alone = virtually(a_job(), strategy("synchronous"), workers=1).run.state_dict()
    other = virtually(a_job(), strategy(f"synchronous(aggregate={text})"), workers=1)
    for name, value in other.run.state_dict().items():
        assert (value - alone[name]).abs().max() < 1e-6


@pytest.mark.parametrize("factor", [-1.0, -10.0])
def test_two_of_ten_that_flip_signs_do_no_harm(virtually, factor) -> None:
    clean = loss(virtually(many(), strategy("synchronous"), workers=10), 500)
    bare = loss(virtually(many(), Attacked(liars=2, factor=factor), workers=10), 500)
    assert bare > 5 * clean, "what happens without"
    for aggregate in (Median(), Trimmed(2), Krum(2)):
        attacked = Attacked(liars=2, factor=factor, aggregate=aggregate)
        # The loss is about 5 before training.
        assert loss(virtually(many(), attacked, workers=10), 500) < clean + 0.1


def test_clipping_limits_what_large_updates_can_do(virtually) -> None:
    bare = virtually(a_job(), Attacked(liars=1, factor=-30.0), workers=5)
    held = virtually(a_job(), Attacked(liars=1, factor=-30.0, aggregate=Clipped(1.0)), workers=5)
    assert loss(held) < loss(bare) / 10


@pytest.mark.parametrize("aggregate", [Median(), Trimmed(1), Krum(1)], ids=str)
def test_a_round_of_some_workers_is_aggregated_too(virtually, aggregate) -> None:
    attacked = AttackedSoftSync(wait_for=5, liars=1, factor=-10.0, aggregate=aggregate)
    done = virtually(a_job(epochs=6), attacked, workers=6, seconds="lognormal(0.1, cv=0.5)")
    assert loss(done) < 0.5
    assert done.run.status == "finished"


@pytest.mark.parametrize(
    "text", ["central_storage(aggregate=krum(1))", "synchronous(servers=2, aggregate=krum(1))"]
)
def test_parts_of_an_update_are_chosen_by_each_server(virtually, text) -> None:
    assert loss(virtually(a_job(epochs=4), strategy(text), workers=5)) < 0.5


def test_updates_that_are_not_finite_do_not_count(virtually) -> None:
    held = virtually(many(), Attacked(liars=2, nan=True, aggregate=Krum(1)), workers=7)
    assert loss(held, 500) < 0.5
    assert all(value.isfinite().all() for value in held.run.state_dict().values())


def test_a_server_that_crashes_has_the_updates_of_its_round_again(virtually) -> None:
    text = "synchronous(aggregate=trimmed(1))"
    quiet = virtually(a_job(), strategy(text))
    crashed = virtually(a_job(), strategy(text), faults="[crash(server=0, at=0.55, restart=0.5)]")
    assert same(quiet, crashed)


def test_an_epoch_that_ends_with_few_samples_is_trained_to_its_end(virtually) -> None:
    # 201 = 10 · 20 + 1: only one worker has a sample in the last batch.
    done = virtually(a_job(size=201), strategy("synchronous(aggregate=krum(1))"), workers=5)
    assert done.run.samples == 402


def test_several_objectives_and_small_batches_are_refused(tmp_path) -> None:
    krum = strategy("synchronous(aggregate=krum(2))")
    with pytest.raises(ValueError, match="a global batch of 4"):
        krum.check_job(a_job(global_batch=4), 8)
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 2))
    with pytest.raises(ValueError, match="works with one objective"):
        strategy("synchronous(aggregate=median)").check_job(
            a_job(
                data=data,
                loss=None,
                objective={
                    "one": lambda model, batch: model(batch[0]).mean(),
                    "two": lambda model, batch: model(batch[0]).square().mean(),
                },
                optimizer=lambda model: {
                    "one": torch.optim.SGD([model.weight], lr=0.1),
                    "two": torch.optim.SGD([model.bias], lr=0.1),
                },
            ),
            4,
        )
