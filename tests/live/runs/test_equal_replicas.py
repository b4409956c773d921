"""Replicas that must be equal are compared, and a flipped bit is named with its worker."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.live.member.equal_replicas import difference, fingerprint

JOB = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    inputs = torch.randn(600, 8, generator=torch.Generator().manual_seed(3))
    flipped = [int(one) for one in sys.argv[2:]]

    job = mh.Job(
        model=lambda: torch.nn.Linear(8, 3),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long()),
        global_batch=6,
        epochs=2,
        metrics=(),
    )

    def loop(trainer):
        for batch in trainer.batches():
            trainer.step(batch)
            if batch.step == 30 and trainer.rank in flipped:
                bits = trainer.model.weight.data.view(torch.int32)
                bits[1, 4] ^= 1 << 12

    if __name__ == "__main__":
        workers = 2 if len(flipped) == 1 and flipped[0] == 1 else 3
        print(mh.train(job, sys.argv[1], workers=workers, loop=loop, output="out").summary())
"""


def test_a_flipped_bit_in_one_of_three_replicas_is_named_within_100_steps(run_script) -> None:
    started = run_script(JOB, "allreduce()", "2")
    assert started.finish(150) == 1, started.text()
    assert (
        "after step 100 the parameters of worker 2 differ from those of the other 2 workers, which "
        "are equal"
    ) in started.text()


@pytest.mark.slow
def test_with_two_workers_both_are_named(run_script) -> None:
    started = run_script(JOB, "allreduce(compare_every=7)", "1")
    assert started.finish(150) == 1, started.text()
    words = "after step 35 the parameters of worker 0 and worker 1 differ, and it cannot be told"
    assert words in started.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["allreduce(compare_every=5)", "allreduce(codec=topk(0.1), compare_every=5)"]
)
def test_replicas_without_a_flipped_bit_are_equal(run_script, text) -> None:
    started = run_script(JOB, text)
    assert started.finish(150) == 0, started.text()


@pytest.mark.slow
def test_who_does_not_compare_is_not_told(run_script) -> None:
    started = run_script(JOB, "allreduce(compare_every=0)", "2")
    assert started.finish(150) == 0, started.text()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str
)
@given(at=st.integers(0, 59), bit=st.integers(0, 7))
def test_every_single_bit_changes_the_fingerprint(dtype, at, bit) -> None:
    tensors = [torch.arange(7).to(dtype), torch.arange(60).to(dtype)]
    before = fingerprint(tensors)
    assert fingerprint([one.clone() for one in tensors]) == before
    tensors[1].view(torch.uint8)[at] ^= 1 << bit
    assert fingerprint(tensors) != before


def test_what_is_said_of_hashes() -> None:
    assert difference([3]) == ""
    assert difference([3, 3, 3]) == ""
    assert difference([3, 4, 3, 3, 5]).startswith("the parameters of workers 1, 4 differ from")
    assert difference([1, 2, 1, 2]) == (
        "the parameters of workers 0, 2 and workers 1, 3 differ, and it cannot be told which are "
        "right"
    )


def test_a_number_of_steps_below_0_is_refused() -> None:
    from manyhands.strategies import strategy

    with pytest.raises(ValueError, match="compare_every must be 0 or more"):
        strategy("allreduce(compare_every=-1)")
