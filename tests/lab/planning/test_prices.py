"""Prices in plans: every host that a run needs, from its start on; and the ranking by price."""

import json
import sys
from pathlib import Path

import pytest
from planned_jobs import known_times, planned_job

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.lab.planning.candidates import Candidate
from manyhands.lab.planning.page import write_page
from manyhands.lab.planning.prices import STARTS, paid_workers
from manyhands.reports import measure

_FREE = "4 hosts of 1 worker, 1000gbit and 1us"
SCRIPT = """
import torch
import manyhands as mh

job = mh.Job(
    model=lambda: torch.nn.Linear(50, 50, bias=False),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.functional.mse_loss,
    data=torch.utils.data.TensorDataset(torch.zeros(640, 50), torch.zeros(640, 50)),
    global_batch=64,
    epochs=100,
    metrics=(),
)
"""


def planned(*strategies: str, where: str = _FREE, made: mh.Job | None = None, **asked) -> mh.Plan:
    known = known_times()
    return mh.plan(
        made or planned_job(epochs=1000), where, known, strategies=strategies, workers=[4], **asked
    )


@pytest.mark.parametrize(
    ("strategy", "workers", "where", "paid"),
    [
        ("allreduce()", 4, "4 hosts of 1 worker, 1gbit", 4),
        ("allreduce()", 2, "4 hosts of 1 worker, 1gbit", 2),
        # A host with four workers is paid for whether all of them compute or not.
        ("allreduce()", 2, "2 hosts of 4 workers, 1gbit", 4),
        ("allreduce()", 6, "2 hosts of 4 workers, 1gbit", 8),
        ("single()", 1, "4 workers", 4),
        # Hosts of servers alone, only where there are servers; each as large as a host of workers.
        ("allreduce()", 4, "4 workers, 1gbit, servers on 2 hosts apart", 4),
        ("synchronous(servers=2)", 4, "4 workers, 1gbit, servers on 2 hosts apart", 6),
        ("synchronous()", 4, "4 workers, 1gbit, servers on 2 hosts apart", 5),
        ("synchronous()", 4, "2 hosts of 2 workers, 1gbit, servers apart", 6),
        # A host that is named for servers, beyond those of the workers.
        ("synchronous()", 2, "4 hosts of 1 worker, 1gbit, servers at host 3", 3),
        ("synchronous()", 2, "4 hosts of 1 worker, 1gbit, servers at host 1", 2),
    ],
)
def test_all_hosts_that_a_run_needs_are_paid_for(
    strategy: str, workers: int, where: str, paid: int, tmp_path: Path
) -> None:
    found = Candidate(mh.strategy(strategy), workers)
    cluster = Cluster.parse(where)
    assert paid_workers(found, cluster) == paid
    if workers != cluster.default_workers():
        return
    # A comparison, which is of all workers of a cluster, says the same of a run that was made.
    run = mh.simulate(
        planned_job(2, epochs=1),
        strategy,
        workers=workers,
        cluster=where,
        times="constant(0.001)",
        time_only=True,
        output=tmp_path / "run",
    )
    made = measure(run.trace, price=3600.0)
    assert made.paid == paid
    assert made.cost == pytest.approx(paid * (made.start_up + made.seconds))


def test_a_price_has_the_start_and_the_copies_of_the_first_parameters() -> None:
    """A second costs 1 for each host: four workers and a server's host."""
    # 1 MB to each of four workers through one port of 12.5 MB/s: 0.32 s.
    where = "4 workers, 100mbit and 1us, servers apart"
    short = planned_job(epochs=1)
    found = planned("synchronous()", where=where, made=short, price=3600.0, start_up=1.0)
    (row,) = (one for one in found.ranking if one.workers == 4)
    assert row.paid == 5
    assert row.price == pytest.approx(5 * (1 + 0.33 + 64 / row.rate), rel=0.02)
    assert found.samples == 64
    default = planned("synchronous()", where=where, made=short, price=3600.0)
    (again,) = (one for one in default.ranking if one.workers == 4)
    assert row.price - (again.price or 0) == pytest.approx(5 * (1 - STARTS), rel=1e-6)
    assert "start-up 3.2 s (--start-up 3min)" in [one.words for one in default.assumptions]
    assert "start-up" not in [one.name for one in found.assumptions]


def test_failures_make_a_run_dearer() -> None:
    asked = {"price": 3600.0, "start_up": 0.0}
    without = planned("fully_sharded()", **asked).ranking
    failing = planned("fully_sharded()", failures="every 1h", **asked).ranking
    for before, after in zip(without, failing, strict=True):
        assert before.price is not None
        assert after.goodput is not None
        assert after.price == pytest.approx(before.price / after.goodput.fraction, rel=0.01)


def test_the_cheapest_is_not_the_fastest() -> None:
    """Of 1 MB each sends 1.5 MB in 12 ms: 28 ms for a batch, of which one worker takes 64."""
    asked = {"where": "4 hosts of 1 worker, 1gbit", "price": 3600.0}
    fastest = planned("allreduce()", **asked)
    cheapest = planned("allreduce()", by="cost", **asked)
    assert fastest.ranking[0].workers == 4
    assert cheapest.ranking[0].workers == 1
    prices = [one.price for one in cheapest.ranking]
    assert prices == sorted(prices)
    # 64 s and a start for one; 28 s and a start for each of four.
    assert prices == pytest.approx([64 + STARTS, 4 * (28 + STARTS)], rel=0.08)
    assert cheapest.by == "cost"
    assert "clearly cheaper" in cheapest.verdict
    assert f"for {prices[0]:.3g}" in cheapest.verdict


def test_whether_the_cheapest_depends_on_the_start_up_is_said() -> None:
    """One worker trains for 64 s; four for 16 s, and each start of theirs costs four times.

    With s seconds of a start the prices are s + 64 and 4 (s + 16): one worker is the cheaper one,
    the more clearly the longer a start takes.
    """
    found = planned("allreduce()", price=3600.0, by="cost")
    (start,) = (one for one in found.assumptions if one.name == "start-up")
    assert found.ranking[0].workers == 1
    assert start.tried
    assert start.at_twice is None


def test_a_job_without_a_number_of_samples_is_priced_by_the_million() -> None:
    found = planned(
        "allreduce()", made=planned_job(epochs=None, seconds=60.0), price=3600.0, start_up=0.0
    )
    assert found.samples == 1_000_000
    for one in found.ranking:
        assert one.price == pytest.approx(one.workers * 1e6 / one.rate, rel=0.001)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"by": "cost"}, "ranked by cost, but a worker has no price"),
        ({"start_up": "3min"}, "the start-up is part of the price, and there is none"),
        ({"start_up": "3 moons", "price": 1.0}, "expected a time such as '90s', '3min' or '6h'"),
        ({"by": "beauty"}, "by is time or cost, not 'beauty'"),
        ({"price": -1.0}, "price must be 0 or more"),
    ],
)
def test_options_that_cannot_be_read_or_would_do_nothing_are_refused(asked, words) -> None:
    with pytest.raises(ValueError, match=words):
        planned("allreduce()", **asked)


def test_the_command_shows_failures_and_prices_in_every_form(start, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    command = (sys.executable, "-m", "manyhands", "plan", "job.py", "--assume", "0.01 TFLOP/s")
    asked = ("--cluster", "2 workers, 1gbit", "--failures", "every 2h", "--price", "1.5")
    asked += ("--by", "cost", "--strategy", "allreduce()", "--strategy", "fully_sharded()")
    shown = start(*command, *asked, "--output", "plan.html")
    assert shown.finish(120) == 0, shown.text()
    text = " ".join(shown.text().split())
    assert "goodput a loss price limited by" in text
    assert "A worker is lost every 2 h, each on its own." in text
    assert "Price: of 64,000 samples, failures included, from the start on" in text
    assert "303 s, back" in text
    page = (tmp_path / "plan.html").read_text()
    assert "price of 64,000" in page
    told = start(*command, *asked, "--json")
    assert told.finish(120) == 0, told.text()
    found = json.loads(told.text()[told.text().index("{") :])
    assert found["by"] == "cost"
    assert found["failures"] == {"every": 7200.0, "back": None}
    assert found["samples"] == 64_000
    rows = {one["strategy"]: one for one in found["ranking"]}
    assert rows["fully_sharded()"]["goodput"]["effect"] == "goes back"
    assert rows["allreduce()"]["goodput"]["effect"] == "goes on"
    assert rows["allreduce()"]["paid"] == 2


def test_the_page_says_what_a_price_is_of(tmp_path: Path) -> None:
    found = planned("allreduce()", price=2.0)
    text = write_page(found, tmp_path / "plan.html").read_text()
    assert "Price: of 64,000 samples" in text
