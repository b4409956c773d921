"""The laws of every schedule, by properties; and torch's own schedules, action by action."""

import doctest
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from manyhands.schedules import (
    ALL,
    Action,
    DeadlockError,
    Durations,
    Table,
    gpipe,
    interleaved,
    messages,
    one_f_one_b,
    pipedream,
    replay,
    zero_bubble,
)

SEVERAL = ("interleaved", "zero_bubble")
seconds = st.floats(0.01, 10.0)


@st.composite
def tables(draw, names=tuple(ALL)):
    """A name, and its table for any numbers that it takes."""
    name = draw(st.sampled_from(names))
    ranks = draw(st.integers(1, 6))
    least = 2 if name == "interleaved" else 1
    local = draw(st.integers(least, 3)) if name in SEVERAL else 1
    microbatches = draw(st.integers(1, 18))
    try:
        return name, ALL[name](ranks * local, microbatches, ranks)
    except ValueError:
        assume(False)
        raise


@given(tables())
def test_every_microbatch_goes_forward_and_backward_once_through_every_stage_in_order(case):
    _, table = case
    for stage in range(table.stages):
        actions = [action for action in table.ranks[table.rank_of(stage)] if action.stage == stage]
        by_kind = {
            kind: [action.microbatch for action in actions if action.kind == kind]
            for kind in ("forward", "input", "weight", "backward")
        }
        everything = list(range(table.microbatches))
        assert by_kind["forward"] == everything
        backwards = by_kind["backward"], by_kind["input"], by_kind["weight"]
        assert backwards in [(everything, [], []), ([], everything, everything)]
        assert all(action.microbatch in everything for action in actions)
    of_stages = {action.stage for actions in table.ranks for action in actions}
    assert of_stages == set(range(table.stages))


@given(tables(), st.data())
def test_no_deadlock_whatever_the_durations_and_nothing_before_what_it_needs(case, data):
    _, table = case
    each = st.tuples(*[seconds] * table.stages)
    durations = Durations(data.draw(each), data.draw(each), data.draw(each), data.draw(seconds))
    done = replay(table, durations)
    stop = {timed.action: timed.stop for rank in done.ranks for timed in rank}
    start = {timed.action: timed.start for rank in done.ranks for timed in rank}
    for action, begun in start.items():
        kind, stage, number = action.kind, action.stage, action.microbatch
        away = durations.transfer if len(table.ranks) > 1 else 0.0
        if kind == "forward" and stage:
            assert begun >= stop[Action("forward", stage - 1, number)] + away
        if kind in {"input", "backward"}:
            assert begun >= stop[Action("forward", stage, number)]
            if stage + 1 < table.stages:
                assert begun >= stop[Action(kind, stage + 1, number)] + away
        if kind == "weight":
            assert begun >= stop[Action("input", stage, number)]
    for rank in done.ranks:
        assert all(before.stop <= after.start for before, after in pairwise(rank))
    assert 0 <= done.idle_share < 1


@given(tables())
def test_memory_in_flight_is_bounded_as_the_papers_say(case):
    name, table = case
    ranks, microbatches = len(table.ranks), table.microbatches
    local = table.stages // ranks
    for rank in range(ranks):
        held = table.in_flight(rank)
        if name == "gpipe":
            assert held == microbatches
        elif name in {"one_f_one_b", "pipedream"}:
            assert held == min(microbatches, ranks - rank)
        else:
            per_round = microbatches // max(1, microbatches // ranks)
            hops = 2 * (ranks - 1 - rank) + 1 if name == "interleaved" else ranks
            assert held <= min(local * microbatches, (local - 1) * per_round + hops)


@given(st.integers(1, 8), st.integers(1, 32), seconds, seconds, seconds)
def test_the_bubble_of_gpipe(stages, microbatches, forward, inputs, weights):
    done = replay(
        gpipe(stages, microbatches, stages), Durations.even(stages, forward, inputs, weights)
    )
    assert done.idle_share == pytest.approx((stages - 1) / (microbatches + stages - 1))


@given(st.integers(1, 6), st.integers(0, 12), seconds, seconds, seconds)
def test_one_f_one_b_is_as_fast_as_gpipe(stages, more, forward, inputs, weights):
    microbatches, durations = stages + more, Durations.even(stages, forward, inputs, weights)
    one = replay(one_f_one_b(stages, microbatches, stages), durations)
    other = replay(gpipe(stages, microbatches, stages), durations)
    assert one.makespan == pytest.approx(other.makespan)


@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 4), seconds)
def test_the_bubble_of_interleaved(ranks, local, times, each):
    microbatches = ranks * times
    stages = ranks * local
    done = replay(
        interleaved(stages, microbatches, ranks), Durations.even(stages, each, each, each)
    )
    assert done.idle_share == pytest.approx((ranks - 1) / (local * microbatches + ranks - 1))


@given(st.integers(1, 6), st.integers(2, 6), seconds)
def test_the_bubble_of_zero_bubble_with_equal_times(ranks, times, each):
    microbatches = ranks * times
    done = replay(zero_bubble(ranks, microbatches, ranks), Durations.even(ranks, each, each, each))
    assert done.idle_share == pytest.approx((ranks - 1) / (3 * microbatches + ranks - 1))


def test_theory_orders_the_schedules_by_their_bubbles():
    shares = [
        replay(ALL[name](stages, 8, 4), Durations.even(stages, *[4 / stages] * 3)).idle_share
        for name, stages in (("gpipe", 4), ("interleaved", 8), ("zero_bubble", 4))
    ]
    assert shares == sorted(shares, reverse=True)
    # A stream of many batches leaves PipeDream with nothing to wait for but its two ends.
    stream = replay(pipedream(4, 8 * 50, 4), Durations.even(4, 1, 1, 1))
    assert stream.idle_share < 0.01


@given(tables(), st.integers(1, 100))
def test_every_microbatch_crosses_every_border_there_and_back(case, size):
    _, table = case
    sent = messages(table, lambda stage, microbatch: size * (stage + 1) + microbatch)
    borders = range(table.stages - 1) if len(table.ranks) > 1 else ()
    expected = Counter(
        size * (stage + 1) + microbatch
        for stage in borders
        for microbatch in range(table.microbatches)
        for _ in range(2)
    )
    assert Counter(one for rank in sent for one in rank) == expected


@settings(max_examples=60, deadline=None)
@given(tables(names=("gpipe", "one_f_one_b", "interleaved", "zero_bubble")))
def test_the_tables_are_torchs_own(case):
    from manyhands.engine.torch_schedules import torch_order

    name, table = case
    # torch refuses it; a batch that is too short for its stages needs it.
    assume(name != "one_f_one_b" or table.microbatches >= table.stages)
    ours = [[str(action) for action in rank] for rank in table.ranks]
    assert ours == torch_order(name, table.stages, table.microbatches, len(table.ranks))


def test_an_order_that_cannot_be_executed_is_named():
    forwards = tuple(Action("forward", 0, number) for number in range(2))
    backwards = tuple(Action("backward", 0, number) for number in range(2))
    with pytest.raises(DeadlockError, match="rank 0 waits for 0B0"):
        replay(Table(1, 2, ((backwards[0], *forwards, backwards[1]),)), Durations.even(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("name", "numbers", "fix"),
    [
        ("gpipe", (8, 4, 4), "interleaved or zero_bubble"),
        ("one_f_one_b", (8, 4, 4), "need 8 workers"),
        ("pipedream", (4, 4, 2), "need 4 workers"),
        ("interleaved", (4, 4, 4), "use 8 stages"),
        ("interleaved", (8, 9, 4), "use 8 or 12 microbatches"),
        ("zero_bubble", (6, 4, 4), "use 8 stages"),
        ("gpipe", (0, 4, 1), "at least 1"),
        ("gpipe", (4, 0, 4), "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name, numbers, fix):
    with pytest.raises(ValueError, match=fix):
        ALL[name](*numbers)


@pytest.mark.parametrize("name", ALL)
def test_the_example_of_each_is_what_it_does(name):
    tried = doctest.testmod(sys.modules[f"manyhands.schedules.{name}"])
    assert (tried.attempted, tried.failed) == (1, 0)
