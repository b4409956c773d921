"""Plans for hosts with unequal memory, and what they say of a larger batch."""

from pathlib import Path

import msgspec
import pytest
import torch
from planned_jobs import known_times, planned_job

import manyhands as mh
from manyhands.lab.planning.candidates import paces_on
from manyhands.lab.planning.commands import PlannedJob, command_of
from manyhands.lab.planning.page import write_page

MB = 1_000_000
JOB = planned_job(32, epochs=1)
KNOWN = known_times(sizes=(4, 128))


def hosts(*memories: int, workers: int = 4) -> mh.Cluster:
    """Hosts a, b, c with so many megabytes, behind 1 Gbit/s."""
    found = tuple(
        mh.Host(name, cores=4, memory=memory * MB, workers=workers)
        for name, memory in zip("abc", memories, strict=False)
    )
    return mh.Cluster(found, link=mh.Link(125e6, 1e-6))


def planned(where: mh.Cluster | str, *strategies: str, **asked) -> mh.Plan:
    return mh.plan(
        JOB,
        where,
        KNOWN,
        strategies=strategies,
        **asked,
    )


def test_workers_are_where_there_is_room_for_them() -> None:
    """A process takes 39 MB here, and the agent and the fork server of a host 315 MB.

    So there is room for none on a host of 300 MB, for two in 400 MB and for four in 600 MB.
    """
    found = planned(hosts(300, 400, 600), "allreduce()", slow=["8:3x"])
    rows = {one.strategy: one for one in found.ranking}
    assert rows["allreduce()"].hosts == (("b", 2), ("c", 4))
    assert rows["allreduce()"].workers == 6
    # The first host is too small for one worker, and the last one is not.
    assert rows["single()"].hosts == (("c", 1),)
    why = {one.strategy: one.why for one in found.left_out}["allreduce() on 12 workers"]
    assert why.startswith("a: 4 workers need at least 469 MB of memory")
    assert "and 300 MB are available" in why
    # Worker 8 of all was the first one of c, which is now number 2; it is 3 times slower.
    command = command_of(found, rows["allreduce()"], PlannedJob("train.py"))
    assert "--hosts 'b:2, c:4' --slow 2:3x" in command
    even = planned(hosts(300, 400, 600), "allreduce()")
    quicker = next(one for one in even.ranking if one.strategy == "allreduce()")
    assert quicker.rate > 1.2 * rows["allreduce()"].rate


def test_the_prediction_is_that_of_a_cluster_of_these_hosts() -> None:
    small = planned(hosts(300, 400, 600), "synchronous(servers=2)")
    row = next(one for one in small.ranking if one.strategy == "synchronous(servers=2)")
    assert dict(row.hosts).keys() == {"b", "c"}
    left = tuple(mh.Host(name, cores=4, memory=0, workers=count) for name, count in row.hosts)
    same = planned(
        mh.Cluster(left, link=mh.Link(125e6, 1e-6)),
        "synchronous(servers=2)",
        workers=[row.workers],
    )
    (again,) = (one for one in same.ranking if one.strategy == "synchronous(servers=2)")
    assert again.rate == row.rate


def test_a_machine_of_a_calibration_that_is_too_small_is_left_out() -> None:
    measured = tuple(
        mh.CalibratedHost(
            name=name, workers=2, samples=16, seconds=0.016, cores=2, memory=memory * MB
        )
        for name, memory in (("a", 600), ("b", 320), ("c", 600))
    )
    links = tuple(
        mh.CalibratedLink(sender=one, receiver=two, bandwidth=125e6, latency=1e-5)
        for one in "abc"
        for two in "abc"
        if one != two
    )
    known = msgspec.structs.replace(KNOWN, hosts=measured, links=links)
    found = mh.plan(JOB, None, known, strategies=["allreduce()"])
    rows = {(one.strategy, one.workers): one for one in found.ranking}
    assert rows["allreduce()", 4].hosts == (("a", 2), ("c", 2))
    assert any(one.why.startswith("b: 2 workers need") for one in found.left_out)
    command = command_of(found, rows["allreduce()", 4], PlannedJob("train.py"))
    assert "--hosts 'a:2, c:2'" in command


def test_where_all_fit_nothing_is_moved() -> None:
    found = planned(hosts(600, 500, 600), "allreduce()")
    assert not found.left_out
    assert all(one.hosts == () for one in found.ranking)
    none = planned(hosts(300, 310, 300), "allreduce()")
    assert not none.ranking
    assert none.choice is None


def test_failures_and_prices_are_those_of_the_hosts_with_room() -> None:
    asked = {"failures": "every 6h", "price": 3600.0, "start_up": 0.0}
    found = planned(hosts(300, 400, 600), "allreduce()", "asynchronous()", **asked)
    rows = {one.strategy: one for one in found.ranking}
    # Both hosts are paid for whole.
    assert rows["allreduce()"].paid == 8
    for strategy in ("allreduce()", "asynchronous()"):
        goodput = rows[strategy].goodput
        assert goodput is not None
        assert goodput.effect == "goes on"


def test_slow_workers_keep_their_hosts() -> None:
    slow = tuple(map(mh.Pace.read, ["5:2x", "1:3x", "9:4x", "all:1.5x"]))
    found = paces_on(hosts(0, 0, 0), (("b", 2), ("c", 1)), slow)
    # Of b the workers 4 and 5 of all are taken, of c number 8.
    assert found == tuple(map(mh.Pace.read, ["1:2x", "all:1.5x"]))
    assert paces_on(hosts(0, 0, 0), (), slow) == slow


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (torch.optim.SGD, "twice the learning rate (linear scaling, for SGD)"),
        (torch.optim.AdamW, "1.4 times the learning rate (square-root scaling, for AdamW)"),
    ],
)
def test_a_larger_batch_is_advised_where_the_network_is_in_the_way(optimizer, rule) -> None:
    """16 ms of computing and 12 ms of the ring: 2,286 samples/s; with twice the batch 2,909."""
    made = planned_job(32, epochs=1, optimizer=lambda model: optimizer(model.parameters(), lr=0.1))
    asked = {"strategies": ["allreduce()"], "workers": [4]}
    found = mh.plan(made, "4 hosts of 1 worker, 1gbit and 1us", KNOWN, **asked)
    assert found.choice is not None
    assert found.choice.strategy == "allreduce()"
    assert "each of the 4 workers has 16 of the 64 samples" in found.advice
    assert "--global-batch 128" in found.advice
    assert rule in found.advice
    assert "rule of thumb" in found.advice
    faster = float(found.advice.partition("train at ")[2].partition(" ")[0].replace(",", ""))
    assert faster == pytest.approx(128 / (0.032 + 0.012), rel=0.05)


def test_no_larger_batch_is_advised_where_it_would_not_be_faster(tmp_path: Path) -> None:
    asked = {"strategies": ["allreduce()"], "workers": [4]}
    fast = mh.plan(
        JOB,
        "4 hosts of 1 worker, 1000gbit and 1us",
        KNOWN,
        **asked,
    )
    assert fast.choice is not None
    assert fast.choice.workers == 4
    assert fast.advice == ""
    # One worker has nobody to wait for.
    alone = mh.plan(
        JOB,
        "4 hosts of 1 worker, 1mbit",
        KNOWN,
        **asked,
    )
    assert alone.advice == ""
    near = mh.plan(
        JOB,
        "4 hosts of 1 worker, 1gbit and 1us",
        KNOWN,
        **asked,
    )
    assert "A larger batch" in write_page(near, tmp_path / "plan.html").read_text()
