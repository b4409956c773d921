"""Which worker is named when losses are not finite."""

from typing import Any

import pytest
import torch
from torch import nn

from manyhands.failure import Diverged, PeerLost, Poisoned
from manyhands.job import Job
from manyhands.live.member.divergence import Divergence
from manyhands.trace import Recorder, live_header

NAN, INFINITE, FINE = (torch.tensor(value) for value in (float("nan"), float("inf"), 1.0))


def watch(parameter: torch.Tensor, **changes: Any) -> Divergence:
    job = Job(
        model=nn.Identity,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda outputs, _: outputs.sum(),
        data=range(8),
        global_batch=4,
        epochs=1,
        **changes,
    )
    head = live_header("worker", 2, clock=lambda: 0.0, wall=lambda: 0.0, host="here")
    recorder = Recorder(head, lambda _: None, lambda: 0.0)
    return Divergence(job, 2, recorder, lambda: [parameter])


@pytest.mark.parametrize(("loss", "word"), [(NAN, "NaN"), (INFINITE, "infinite")])
def test_a_worker_whose_parameters_are_finite_is_the_origin(loss, word) -> None:
    one = watch(torch.ones(3))
    one.training(FINE, 0)
    with pytest.raises(Diverged, match=f"loss became {word} at sample 1,280 on worker 2; lower"):
        one.training(loss, 1280)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_worker_whose_parameters_are_not_finite_follows_another(dtype) -> None:
    with pytest.raises(Poisoned, match="whose parameters were not finite before") as caught:
        watch(torch.full((3,), torch.nan, dtype=dtype)).training(NAN, 64)
    assert isinstance(caught.value, PeerLost), "a consequence"


def test_a_job_that_goes_on_is_told_nothing_twice() -> None:
    one = watch(torch.full((3,), torch.nan), stop_on_nan=False)
    for sample in range(3):
        one.training(NAN, sample)
    one.validation({"loss": float("nan")}, 8)
    one.finally_()


@pytest.mark.parametrize(
    "parameter",
    [
        torch.ones(2, device="meta"),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.ones(2, dtype=torch.int64),
        torch.empty(0),
    ],
    ids=["elsewhere", "float8", "integers", "none"],
)
def test_parameters_of_all_kinds_can_be_checked(parameter) -> None:
    watch(parameter).finally_()


def test_final_parameters_and_validation_losses_are_checked() -> None:
    with pytest.raises(Diverged, match="the final parameters of worker 2 contain NaN"):
        watch(torch.tensor([1.0, float("inf")])).finally_()
    with pytest.raises(Diverged, match="the validation loss became infinite after 8 samples"):
        watch(torch.ones(1)).validation({"loss": float("inf")}, 8)
