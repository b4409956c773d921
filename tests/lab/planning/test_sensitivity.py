"""What a plan assumed is said, and whether its first choice depends on it."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.lab.calibration.assumed import STEP, assume
from manyhands.lab.planning.timing import MODEL_ERROR, expected_range

_RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
PARAMETERS = 250_000
"""1 MB."""
LINK = 125e6
"""Bytes per second."""


def job(batch: int = 64) -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(batch, 500), torch.zeros(batch, 500))
    return mh.Job(
        model=lambda: torch.nn.Linear(500, 500, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=batch,
        epochs=1,
        metrics=(),
    )


def assumed(seconds: float, fixed: float = 0.0) -> mh.Calibration:
    """A global batch of 64 takes so long, at an assumed speed."""
    compute = tuple(
        mh.ComputeTime(samples=n, seconds=seconds * n / 64, cv=0.0, data=0.0, steps=0)
        for n in (1, 64)
    )
    about = {"date": "", "job": "job", "parameters": 4 * PARAMETERS, "fixed": fixed}
    return mh.Calibration(compute=compute, assumed="1 TFLOP/s", **about)


def planned(known: mh.Calibration, *strategies: str, cluster: str, **options) -> mh.Plan:
    return mh.plan(job(), cluster, known, strategies=strategies, **options)


def test_the_winner_at_half_and_at_twice_an_assumed_speed_is_named() -> None:
    """Two workers: a ring of two takes (1 MB)/(125 MB/s) = 8 ms, beside a batch of c or c/2.

    They are the faster way as long as c/2 + 8 ms < c, so from c = 16 ms on. At 24 ms of a batch
    they win (20 ms), at half the speed too, and at twice the speed one worker does (12 to 14 ms).
    """
    cluster = "2 hosts of 1 worker, 1gbit and 1us"
    found = planned(assumed(0.024), "allreduce()", cluster=cluster, workers=[2])
    assert (found.best[0].strategy, found.best[0].workers) == ("allreduce()", 2)
    (speed,) = (one for one in found.assumptions if one.name == "computing speed")
    assert (speed.at_half, speed.at_twice) == (None, "single() on 1 worker")
    assert speed.tried
    assert "at twice of it single() on 1 worker is the best" in " ".join(found.cautions)
    # At 80 ms two workers win at every one of the three speeds, and nothing is said.
    steady = planned(assumed(0.080), "allreduce()", cluster=cluster, workers=[2])
    assert not any(one.decides for one in steady.assumptions)
    assert steady.cautions == ()


def test_a_codec_has_a_speed_and_its_row_says_that_it_was_assumed() -> None:
    cluster, text = "2 hosts of 1 worker, 1gbit and 0.1ms", "synchronous(codec=topk(0.01))"
    found = planned(assumed(0.001), text, "synchronous()", cluster=cluster, workers=[2])
    rows = {one.strategy: one for one in found.ranking}
    coded = rows["synchronous(codec=topk())"]
    assert coded.assumed == ("speed of topk()",)
    assert rows["synchronous()"].assumed == ()
    names = [one.name for one in found.assumptions]
    assert "speed of codecs" in names
    # Each worker encodes and decodes 1 MB, and the server decodes two pushes and encodes once.
    encode, decode = 1e6 / 1.12e9, 1e6 / 3.5e9
    free = planned(assumed(0.001), text, cluster=cluster, workers=[2], coding=1e18)
    before, after = (64 / one.ranking[0].rate for one in (free, planned_of(found, coded)))
    hand = encode + decode + 2 * decode + encode
    assert after - before == pytest.approx(hand, rel=0.15)
    assert free.ranking[0].assumed == ()
    assert "speed of codecs" not in [one.name for one in free.assumptions]


def planned_of(found: mh.Plan, row: mh.PlannedStrategy) -> mh.Plan:
    """The plan with one row."""
    return mh.Plan((row,), (), found.cluster, found.calibration, 0.0)


def test_a_codec_that_changes_what_is_learnt_has_a_caution() -> None:
    cluster = "2 hosts of 1 worker, 10mbit and 0.1ms"
    texts = ("asynchronous(codec=topk(0.01))", "asynchronous(codec=exact())")
    lossy, lossless = (
        planned(assumed(0.1), text, cluster=cluster, workers=[2], coding="2GB/s") for text in texts
    )
    assert any("topk() changes what is learnt" in one for one in lossy.cautions)
    assert not any("what is learnt" in one for one in lossless.cautions)


def test_latency_is_assumed_only_where_the_text_has_none() -> None:
    without, given = (
        planned(assumed(0.02), "allreduce()", cluster=f"2 hosts of 1 worker, {link}", workers=[2])
        for link in ("1gbit", "1gbit and 0.3ms")
    )
    names = [[one.name for one in found.assumptions] for found in (without, given)]
    assert ("latency of links" in names[0], "latency of links" in names[1]) == (True, False)


def test_what_was_measured_is_not_called_assumed() -> None:
    compute = (mh.ComputeTime(samples=64, seconds=0.1, cv=0.0, data=0.0, steps=9),)
    known = mh.Calibration(date="", job="", parameters=8, compute=compute)
    found = planned(known, "allreduce()", cluster="2 hosts of 1 worker, 1gbit and 1ms")
    assert found.assumptions == ()


def test_no_step_is_faster_than_a_step_with_nothing_to_compute() -> None:
    stored = json.loads((_RESULTS / "step_floor.json").read_text(encoding="utf-8"))["figures"]
    assert pytest.approx(stored["seconds"], rel=0.06) == STEP
    known = assume(job(), "1000 PFLOP/s")
    found = planned(known, "allreduce()", "tensor()", cluster="2 hosts of 1 worker, 100gbit")
    for one in found.ranking:
        assert one.rate <= 64 / STEP * 1.01, one.strategy
    (alone,) = (one for one in found.ranking if one.workers == 1)
    assert alone.rate == pytest.approx(64 / STEP, rel=0.01)


def test_a_batch_that_takes_as_long_as_a_small_one_is_predicted_so() -> None:
    """Where a step's fixed cost is nearly all of it, eight times the samples take no longer."""
    compute = tuple(
        mh.ComputeTime(samples=n, seconds=0.001, cv=0.0, data=0.0, steps=9) for n in (8, 64)
    )
    known = mh.Calibration(date="", job="", parameters=8, compute=compute)
    assert known.seconds(64) == known.seconds(8) == pytest.approx(0.001)


def test_the_error_of_predictions_is_that_of_the_stored_runs() -> None:
    stored = json.loads((_RESULTS / "predictions.json").read_text(encoding="utf-8"))["figures"]
    assert pytest.approx(stored["p90 error"], abs=0.0006) == MODEL_ERROR


def test_an_interval_has_the_error_of_predictions_and_the_spread() -> None:
    # The sides of a right-angled triangle: 6.7 and 5 give 8.36; 6.7 and 1.645 × 2 give 7.464.
    low, high = expected_range(100.0, 95.0, 100.0)
    assert (low, high) == (pytest.approx(100 - 8.360), pytest.approx(106.7))
    low, high = expected_range(100.0, 100.0, 100.0, deviation=0.02)
    assert (low, high) == (pytest.approx(100 - 7.464, abs=1e-3), pytest.approx(107.464, abs=1e-3))
    steady = planned(assumed(0.1), "allreduce()", cluster="2 hosts of 1 worker, 1gbit and 1ms")
    for one in steady.ranking:
        assert one.least == pytest.approx((1 - MODEL_ERROR) * one.rate)
        assert one.most == pytest.approx((1 + MODEL_ERROR) * one.rate)


def test_measured_spread_widens_the_interval() -> None:
    about = {"date": "", "job": "", "parameters": 8}
    compute = (mh.ComputeTime(samples=64, seconds=0.1, cv=0.3, data=0.0, steps=9),)
    known = mh.Calibration(compute=compute, **about)
    assert known.deviation == pytest.approx(0.1)
    exact = msgspec.structs.replace(known, compute=())
    assert exact.deviation == 0


def test_numbers_of_a_cluster_without_text_are_given() -> None:
    hosts = tuple(mh.Host(name, cores=1, memory=0, workers=1) for name in "ab")
    where = Cluster(hosts, link=mh.Link(LINK, 1e-4), links=(("a", "b", mh.Link(LINK, 2e-4)),))
    found = mh.plan(job(), where, assumed(0.02), strategies=["allreduce()"])
    assert "latency of links" not in [one.name for one in found.assumptions]
