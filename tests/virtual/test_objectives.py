"""Several objectives under protocols: every batch gives a step for each of them, in order."""

import re

import pytest
import torch

import gans
import manyhands as mh
from manyhands.strategies import CATALOG, check_job, strategy


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_synchronous_workers_equal_the_loop_of_the_dcgan_example(tmp_path, workers, servers):
    how = f"synchronous(servers={servers})"
    run = mh.simulate(gans.gan_job(), how, workers=workers, output=tmp_path)
    expected = gans.by_hand()
    assert gans.apart(run.state_dict(), expected) <= 1e-9
    assert run.metrics == pytest.approx(gans.losses(expected), abs=1e-9)
    # A sample is counted once, however many steps it gives.
    assert run.samples == gans.EPOCHS * gans.SAMPLES


def test_clipped_per_objective_and_in_micro_batches(tmp_path):
    job = gans.gan_job(clip=0.1, micro_batch=2)
    run = mh.simulate(job, "synchronous()", workers=2, output=tmp_path)
    assert gans.apart(run.state_dict(), gans.by_hand(clip=0.1)) <= 1e-9


def test_one_asynchronous_worker_is_the_loop(tmp_path):
    run = mh.simulate(gans.gan_job(), "asynchronous(servers=2)", workers=1, output=tmp_path)
    assert gans.apart(run.state_dict(), gans.by_hand()) <= 1e-9


def test_asynchronous_workers_step_both(tmp_path):
    run = mh.simulate(gans.gan_job(), "asynchronous()", workers=3, output=tmp_path)
    torch.manual_seed(0)
    before = gans.Gan().state_dict()
    moved = {name for name, now in run.state_dict().items() if not torch.equal(now, before[name])}
    assert moved == before.keys()
    assert run.samples == gans.EPOCHS * gans.SAMPLES


@pytest.mark.parametrize("how", ["synchronous()", "asynchronous()"])
def test_a_worker_that_is_lost_between_two_steps(tmp_path, how):
    faults = "[crash(worker=1, at=0.35, restart=0.2)]"
    run = mh.simulate(
        gans.gan_job(epochs=6),
        how,
        workers=3,
        times="constant(0.1)",
        faults=faults,
        output=tmp_path,
    )
    assert run.samples >= 6 * gans.SAMPLES
    assert all(torch.isfinite(one).all() for one in run.state_dict().values())


ALTERNATE = {"allreduce", "asynchronous", "single", "synchronous"}


def _check(name):
    chosen = strategy('place(["generator on 0"])' if name == "place" else f"{name}()")
    check_job(chosen, gans.gan_job(), 1 if name == "single" else 4)


@pytest.mark.parametrize("name", sorted({*CATALOG.names()} - ALTERNATE))
def test_all_other_strategies_refuse(name):
    words = (
        "takes one step of one optimizer per batch, and the job has the objectives discriminator, "
        "generator, each with a step of its own optimizer: use allreduce(), synchronous() or "
        "asynchronous()"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        _check(name)


@pytest.mark.parametrize("name", sorted(ALTERNATE))
def test_these_do_not_refuse(name):
    _check(name)


def test_codecs_refuse():
    with pytest.raises(ValueError, match="the next update is one of other parameters: leave out"):
        check_job(strategy("synchronous(codec=topk(0.1))"), gans.gan_job(), 2)
