"""Shares by speed on the virtual clock: rate, results and changes of speed."""

import pytest
import torch
from virtual_jobs import a_job

import manyhands as mh
from manyhands.reports import throughput

STRATEGIES = (
    "synchronous(shares=by_speed)",
    "synchronous(servers=2, shares=by_speed)",
    "central_storage(shares=by_speed)",
    "averaging(every=2, shares=by_speed)",
    "local_sgd(every=4, shares=by_speed)",
    "diloco(every=4, shares=by_speed)",
    "diloco(every=4, fragments=2, overlap=1, shares=by_speed)",
    "allreduce(shares=by_speed)",
)
SLOW = "constant(0.1, slow=[slow(rank=3, factor=4.0)])"
SPEED = (3 + 1 / 4) * 64 / 0.1
"""Samples per second of three workers with 64 in 0.1 s, and one that is four times slower."""


def shares_of(run: mh.Run) -> list[tuple[int, list[float]]]:
    """Steps from which on shares hold, and the shares."""
    return [
        (int(event.detail["step"]), [float(one) for one in event.detail["shares"].split(",")])
        for process in run.trace.processes
        for event in process.events
        if event.what == "shares"
    ]


@pytest.mark.parametrize(
    ("strategy", "least", "most"),
    [("synchronous()", 0.3, 0.31), *((text, 0.95, 1.0) for text in STRATEGIES)],
)
def test_a_slow_worker_costs_no_more_than_its_own_speed(tmp_path, strategy, least, most) -> None:
    # The first batches, with equal shares, are a small part of the run.
    job = a_job(512, global_batch=256, epochs=150)
    run = mh.simulate(job, strategy, workers=4, times=SLOW, output=tmp_path / "run", time_only=True)
    assert run.samples == 512 * 150
    assert least <= throughput(run.trace).rate / SPEED <= most


def in_double(**changes: object) -> mh.Job:
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    given: dict[str, object] = {
        "model": lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        ).double(),
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=0.02),
        "data": torch.utils.data.TensorDataset(inputs, inputs[:, :2] ** 2),
        "global_batch": 50,
        "epochs": 5,
    }
    return a_job(**(given | changes))


@pytest.mark.parametrize("strategy", ["synchronous", "central_storage", "allreduce"])
def test_the_result_is_that_of_one_worker(tmp_path, strategy: str) -> None:
    job = in_double()
    text = f"{strategy}(shares=by_speed)"
    run = mh.simulate(job, text, workers=4, times=SLOW, output=tmp_path / "four")
    assert shares_of(run)
    alone = mh.simulate(job, "single()", workers=1, output=tmp_path / "one")
    found, wanted = (one.state_dict() for one in (run, alone))
    assert max((found[name] - wanted[name]).abs().max() for name in wanted) < 1e-9


def test_averages_in_every_step_equal_synchronous_steps(tmp_path) -> None:
    job = in_double(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    states = []
    for name in ("averaging", "synchronous"):
        run = mh.simulate(
            job, f"{name}(shares=by_speed)", workers=4, times=SLOW, output=tmp_path / name
        )
        assert shares_of(run)
        states.append(run.state_dict())
    assert max((states[0][name] - states[1][name]).abs().max() for name in states[0]) < 1e-9


@pytest.mark.parametrize("strategy", ["synchronous", "allreduce"])
def test_a_worker_that_becomes_slow_is_followed_within_twenty_steps(tmp_path, strategy) -> None:
    times = "lognormal(0.1, cv=0.05, slow=[slow(rank=0, factor=4.0, after=40)])"
    job = a_job(512, global_batch=256, epochs=50)
    text = f"{strategy}(shares=by_speed)"
    run = mh.simulate(job, text, workers=4, times=times, output=tmp_path / "run")
    (settled,) = [
        step
        for step, found in shares_of(run)
        if found == pytest.approx([1 / 13, 4 / 13, 4 / 13, 4 / 13], rel=0.1)
    ][:1]
    assert 40 < settled <= 60
    assert all(found[0] > 0.2 for step, found in shares_of(run) if step <= 40)


def test_a_run_is_repeatable_and_takes_as_long_without_numbers(tmp_path) -> None:
    job = a_job(512, global_batch=256, epochs=20)
    runs = [
        mh.simulate(
            job,
            "synchronous(shares=by_speed)",
            workers=4,
            times="lognormal(0.1, cv=0.5)",
            time_only=time_only,
            output=tmp_path / str(number),
        )
        for number, time_only in enumerate((False, False, True))
    ]
    assert runs[0].seconds == runs[1].seconds == runs[2].seconds
    assert shares_of(runs[0]) == shares_of(runs[1]) == shares_of(runs[2])


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("softsync(wait_for=2, shares=by_speed)", "does not wait for slow workers"),
        ("asynchronous(shares=by_speed)", "at their own pace"),
        ("ssp(shares=by_speed)", "at their own pace"),
        ("hogwild(shares=by_speed)", "at their own pace"),
        ("gossip(shares=by_speed)", "with equal weights"),
        ("easgd(shares=by_speed)", "with equal weights"),
        ("diloco(wait_for=2, shares=by_speed)", "leave out shares, or wait_for"),
        ("hierarchical(inner=synchronous(shares=by_speed))", "leave out shares"),
        ("synchronous(shares=fast)", "even or by_speed"),
    ],
)
def test_what_has_no_shares_says_why(strategy: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mh.strategy(strategy)
