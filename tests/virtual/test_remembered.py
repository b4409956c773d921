"""What runs of one job find out about its model is found once, and never for another job."""

import gc
import weakref
from dataclasses import replace

import torch

import manyhands as mh
from manyhands.virtual import remembered as module
from manyhands.virtual.remembered import remembered


def job(width: int = 4) -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8, width))
    return mh.Job(
        model=lambda: torch.nn.Linear(4, width),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=8,
        epochs=1,
        metrics=["accuracy"],
    )


class Counted:
    calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


def test_a_run_with_another_seed_and_limit_finds_it_again() -> None:
    find, one = Counted(), job()
    other = replace(one, seed=9, epochs=None, samples=64, validation=None)
    assert [remembered(each, "size", find) for each in (one, other, one)] == [1, 1, 1]


def test_another_key_another_batch_and_another_job_are_looked_at_for_themselves() -> None:
    find, one = Counted(), job()
    assert remembered(one, "size", find) == 1
    assert remembered(one, "order", find) == 2
    assert remembered(replace(one, global_batch=4), "size", find) == 3
    assert remembered(replace(one, loss=torch.nn.functional.l1_loss), "size", find) == 4
    assert remembered(job(), "size", find) == 5
    assert remembered(one, "size", find) == 1


def test_nothing_is_kept_longer_than_the_model_s_function() -> None:
    one = job()
    remembered(one, "size", Counted())
    made = weakref.ref(one.model)
    assert made() in module._FOUND
    del one
    gc.collect()
    assert made() is None


def test_predictions_of_two_models_are_their_own() -> None:
    few, many = (
        mh.simulate(
            job(width),
            "synchronous(servers=2)",
            workers=2,
            cluster="2 hosts of 1 worker, 1mbit",
            times="constant(0.01)",
            time_only=True,
        )
        for width in (4, 4000)
    )
    assert few.trace.workers[0].spans[-1].start < many.trace.workers[0].spans[-1].start
