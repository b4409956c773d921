"""Failures in plans: what a loss costs is what runs do, and the ranking is by what is left."""

import json
import random
import statistics
from pathlib import Path

import pytest
from planned_jobs import BATCH, known_times, planned_job

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.lab.planning.candidates import Candidate
from manyhands.lab.planning.commands import PlannedJob, command_of
from manyhands.lab.planning.failures import (
    JOINS,
    NOTICED,
    RETURNS,
    STEPS,
    LossCost,
    checkpoint_seconds,
)
from manyhands.lab.planning.losses import loss_cost
from manyhands.lab.planning.page import write_page
from manyhands.lab.planning.timing import predict

_RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
_FREE = "4 hosts of 1 worker, 1000gbit and 1us"


def planned(*strategies: str, where: str = _FREE, made: mh.Job | None = None, **asked) -> mh.Plan:
    known = known_times()
    return mh.plan(
        made or planned_job(64), where, known, strategies=strategies, workers=[4], **asked
    )


@pytest.mark.parametrize(
    ("text", "every", "back"),
    [
        ("every 6h", 21600.0, None),
        ("every 90 min per worker, back after 2min", 5400.0, 120.0),
        ("Every 2 days, back after 0.5s", 172800.0, 0.5),
        ("every 30s", 30.0, None),
    ],
)
def test_failures_are_read_with_their_units(text: str, every: float, back: float | None) -> None:
    found = mh.Failures.read(text)
    assert found == mh.Failures(every, back)
    assert mh.Failures.read(str(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("every 6", "6 has no unit: write 6h or 6min"),
        ("every 6h, back after 90", "90 has no unit"),
        ("every 6 weeks", "'weeks' is not s, min, h or d"),
        ("6h", "expected failures such as 'every 6h'"),
        ("every 0h", "every must be above 0 seconds"),
    ],
)
def test_failures_without_a_unit_or_of_another_form_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mh.plan(planned_job(64), _FREE, known_times(), failures=text)


def test_what_a_return_takes_is_what_was_measured() -> None:
    elastic = json.loads((_RESULTS / "elastic.json").read_text())["figures"]
    assert pytest.approx(elastic["back_from_signal"]["median"], rel=0.01) == JOINS
    assert pytest.approx(elastic["stepped_from_signal"]["median"], rel=0.02) == STEPS
    cells = json.loads((_RESULTS / "process_faults.json").read_text())["figures"]["cells"]
    of_workers = [one for one in cells if one["process"] == "worker" and one["passed"]]
    divided = [
        one["on"] - one["gone"]
        for one in of_workers
        if one["strategy"] in ("fully_sharded()", "tensor()") and one["hosts"] == 1
    ]
    assert pytest.approx(statistics.median(divided), abs=0.05) == RETURNS
    killed = [one["gone"] for one in of_workers if one["fault"] == "kill" and one["hosts"] == 1]
    assert pytest.approx(statistics.median(killed), abs=0.05) == NOTICED


def test_goodput_is_the_time_between_losses_without_what_one_costs() -> None:
    hourly = mh.Failures(3600.0, back=20.0)
    # Of four workers one is lost every 900 s: 4 s + 0.25 of 20 s.
    on = LossCost("goes on", 4.0, 0.25).goodput(hourly, 4, interval=600, lasts=1e6)
    assert (on.seconds, on.fraction) == (9.0, pytest.approx(900 / 909))
    # Half of a checkpoint's 600 s, and 20 s.
    back = LossCost("goes back").goodput(hourly, 4, interval=600, lasts=1e6)
    assert (back.seconds, back.fraction) == (320.0, pytest.approx(900 / 1220))
    # Of those, 1 - exp(-620/900) have a second loss before the next checkpoint.
    assert back.ends_after == pytest.approx(1220 / 0.498, rel=0.01)
    # After 3,600 s a worker is there with a probability of 1/e; 1 - 1/e on average until then.
    away = LossCost("is not replaced").goodput(hourly, 4, interval=600, lasts=3600)
    assert away.fraction == pytest.approx(0.632, abs=0.001)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10min", 600.0),
        ("10min, 10s in memory", 10.0),
        ("100 steps", 6.4),
        ("32000 samples", 32.0),
        ("0.5 epochs", 2.048),
        ("1 steps", 0.064),
        ("0.001s", 0.064),
    ],
)
def test_an_interval_of_checkpoints_has_seconds(text: str, seconds: float) -> None:
    found = checkpoint_seconds(mh.Every.read(text), planned_job(64), 1000.0)
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    "strategy",
    ["synchronous()", "asynchronous()", "local_sgd(every=8)", "easgd(every=8)", "gossip()"],
)
def test_a_loss_costs_what_runs_with_crashes_take_longer(strategy: str, tmp_path: Path) -> None:
    """Long virtual runs with crashes at random moments, against the short ones of a plan."""
    where, known, away = Cluster.parse("4 hosts of 1 worker, 1gbit"), known_times(0.02), 1.5
    candidate = Candidate(mh.strategy(strategy), 4)
    about = (planned_job(64), where, known, ())
    rate = predict(planned_job(64), candidate, where, known, repeats=1, reasons=False).rate
    cost = loss_cost(candidate, about, rate, away)
    assert cost.effect == "goes on"
    draw = random.Random(3)  # noqa: S311 - the same moments every time
    moments = [8.0 * number + draw.uniform(2.0, 7.0) for number in range(12)]
    faults = tuple(mh.faults.Crash(worker=3, at=at, restart=away) for at in moments)
    long = planned_job(64, epochs=None, samples=round(110 * rate / BATCH) * BATCH)
    seconds = {}
    for name, given in (("whole", None), ("crashed", mh.Faults(faults))):
        run = mh.simulate(
            long,
            strategy,
            cluster=where,
            times="constant(0.32)",
            time_only=True,
            faults=given,
            detection=None if given is None else NOTICED,
            output=tmp_path / name,
        )
        seconds[name] = run.seconds
    measured = (seconds["crashed"] - seconds["whole"]) / len(faults)
    assert cost.fixed + cost.share * away == pytest.approx(measured, rel=0.3, abs=0.1)
    # One of four workers.
    assert cost.share == pytest.approx(0.25, abs=0.06)


def test_the_ranking_is_by_the_speed_that_is_left() -> None:
    """Without a network in the way all are equally fast; with failures, a checkpoint is behind."""
    strategies = ("allreduce()", "fully_sharded()", "asynchronous()")
    found = planned(*strategies, failures="every 1h")
    rows = {one.strategy: one for one in found.ranking}
    rates = [one.rate for one in found.ranking if one.workers == 4]
    assert max(rates) < 1.1 * min(rates)
    counting = [one.counting_rate for one in found.ranking]
    assert counting == sorted(counting, reverse=True)
    # One of four workers is lost every 900 s.
    on, back, free = (rows[one].goodput for one in strategies)
    assert on is not None
    assert back is not None
    assert free is not None
    # Half a step of 16 ms, two new groups, and a quarter of the speed until it is back.
    assert on.effect == "goes on"
    assert on.seconds == pytest.approx(0.008 + 2 * STEPS + 0.25 * JOINS, rel=0.05)
    assert on.fraction == pytest.approx(900 / (900 + on.seconds))
    # Half of ten minutes, and the return of all.
    assert (back.effect, back.seconds) == ("goes back", 300 + RETURNS)
    assert back.fraction == pytest.approx(900 / 1203.05)
    assert free.effect == "goes on"
    assert free.seconds == pytest.approx(0.25 * JOINS, rel=0.3)
    order = [one.strategy for one in found.ranking]
    assert order.index("fully_sharded()") > order.index("allreduce()")
    assert not rows["allreduce()"].resembles(rows["fully_sharded()"])
    without = {one.strategy: one for one in planned(*strategies).ranking}
    assert without["allreduce()"].resembles(without["fully_sharded()"])
    assert all(one.goodput is None for one in without.values())


def test_what_was_assumed_of_failures_is_said_and_given() -> None:
    asked = {"strategies": ["fully_sharded()", "allreduce()"], "workers": [4]}
    found = mh.plan(planned_job(64), _FREE, known_times(), failures="every 1h", **asked)
    named = {one.name: one for one in found.assumptions}
    assert named["checkpoints"].words == "checkpoints every 10min (--checkpoint 1min)"
    assert "1.2 s of a worker, 3 s of all workers" in named["return"].value
    assert named["return"].tried
    given = mh.plan(
        planned_job(64),
        _FREE,
        known_times(),
        failures="every 1h, back after 60s",
        checkpoint="1min",
        **asked,
    )
    assert not {"checkpoints", "return"} & {one.name for one in given.assumptions}
    (row,) = (one for one in given.ranking if one.strategy == "fully_sharded()")
    assert row.goodput is not None
    assert row.goodput.seconds == 30 + 60
    own = mh.plan(
        planned_job(64, checkpoint=mh.every(steps=100)),
        _FREE,
        known_times(),
        failures="every 1h",
        **asked,
    )
    assert "checkpoints" not in {one.name for one in own.assumptions}
    assert own.checkpoint is None


def test_the_command_stores_the_checkpoints_that_were_assumed() -> None:
    found = planned("fully_sharded()", "allreduce()", failures="every 1h")
    about = PlannedJob("train.py")
    commands = {one.strategy: command_of(found, one, about) for one in found.ranking}
    assert "--checkpoint 600s" in commands["fully_sharded()"]
    assert "--checkpoint" not in commands["allreduce()"]
    often = planned("fully_sharded()", failures="every 1h", checkpoint="10min, 10s in memory")
    assert "--checkpoint '600s, 10s in memory'" in command_of(often, often.ranking[0], about)


def test_a_run_that_a_second_loss_ends_has_a_caution() -> None:
    # A loss every 15 min, a checkpoint every 10: most second losses come too soon.
    words = " ".join(
        planned("fully_sharded()", failures="every 1h", made=planned_job(64, epochs=1e6)).cautions
    )
    assert "a second loss before the next checkpoint ends a run of fully_sharded()" in words
    assert "give a shorter --checkpoint" in words
    short = planned("fully_sharded()", failures="every 1h", made=planned_job(64, epochs=1))
    assert not any("second loss" in one for one in short.cautions)


def test_collectives_on_accelerators_go_back_as_their_runs_do() -> None:
    hosts = tuple(
        mh.Host(f"h{number}", cores=2, memory=0, devices=("cuda:0",), workers=1)
        for number in range(4)
    )
    where = mh.Cluster(hosts, link=mh.Link(1e9))
    found = mh.plan(
        planned_job(64),
        where,
        known_times(),
        strategies=["allreduce()"],
        workers=[4],
        failures="every 1d",
    )
    (row,) = (one for one in found.ranking if one.workers == 4)
    assert row.goodput is not None
    assert row.goodput.effect == "goes back"


def test_a_member_of_an_ensemble_is_not_replaced() -> None:
    found = planned("ensemble()", failures="every 1h")
    (row,) = (one for one in found.ranking if one.workers == 4)
    assert row.goodput is not None
    assert row.goodput.effect == "is not replaced"
    assert "is not replaced" in row.goodput.words


def test_checkpoints_without_failures_are_refused() -> None:
    with pytest.raises(ValueError, match="checkpoints matter to a plan only where workers are"):
        mh.plan(planned_job(64), _FREE, known_times(), checkpoint="1min")


def test_the_page_has_goodput_and_what_a_loss_does(tmp_path: Path) -> None:
    found = planned("fully_sharded()", failures="every 6h")
    text = write_page(found, tmp_path / "plan.html").read_text()
    assert "goodput" in text
    assert "goes back, 303 s a loss" in text
    assert "A worker is lost every 6 h" in text
