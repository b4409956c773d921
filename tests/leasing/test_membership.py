import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.leasing.membership import (
    LONG,
    WAITS,
    Member,
    Membership,
    Patience,
    Sign,
    overdue,
    suspects,
)

SILENCE, STALL, STILL = 5.0, 10.0, 20.0
PHASES = ["start", "join", "compute", "data", "evaluate", "store", "finish"]
PHASES += ["exchange", "receive", "lease"]

names = st.integers(0, 5).map("worker-{}".format)
members = st.builds(
    Member, st.just("worker"), st.integers(0, 5), st.sampled_from("ab"), st.integers(1, 99)
)
signs = st.builds(
    Sign,
    member=members,
    heard=st.floats(0, 100),
    moved=st.floats(0, 100),
    step=st.integers(0, 9),
    phase=st.sampled_from(PHASES),
    line=st.just("train.py:7 in loop"),
)
gatherings = st.lists(signs, max_size=6).map(
    lambda several: {sign.member.name: sign for sign in several}
)


def member(rank: int, pid: int = 100) -> Member:
    return Member("worker", rank, "hostB", pid)


def sign(rank: int, *, silent: float = 0.0, still: float = 0.0, phase: str = "compute") -> Sign:
    """Of a worker at second 1,000."""
    return Sign(member(rank), 1000.0 - silent, 1000.0 - still, 7, phase, f"train.py:{rank} in f")


def suspected(*given: Sign) -> list[tuple[int, str]]:
    named = {one.member.name: one for one in given}
    found = suspects(1000.0, named, silence=SILENCE, stall=STALL, still=STILL)
    return [(suspect.member.rank, suspect.reason) for suspect in found]


def test_a_member_is_named_by_role_and_rank_and_told_with_its_host() -> None:
    assert member(3).name == "worker-3"
    assert str(member(3)) == "worker 3 on hostB"


def test_members_sort_by_rank_and_not_by_name() -> None:
    assert [one.rank for one in sorted([member(10), member(9)])] == [9, 10]


def test_who_joins_is_here_one_epoch_later() -> None:
    alone = Membership()
    both = alone.joined(member(0), member(1))
    assert (alone.epoch, dict(alone.members)) == (0, {}), "what was is not changed"
    assert both.epoch == 1, "joining together is one change"
    assert both.members == {"worker-0": member(0), "worker-1": member(1)}


def test_a_restarted_process_replaces_its_former_self() -> None:
    before = Membership().joined(member(0, pid=1), member(1))
    after = before.joined(member(0, pid=2))
    assert after.epoch == before.epoch + 1
    assert after.members == {"worker-0": member(0, pid=2), "worker-1": member(1)}


def test_a_newcomer_with_the_pid_of_its_former_self_is_still_a_newcomer() -> None:
    # In a container every first process has the pid 1, so a restart can look the same.
    before = Membership().joined(member(0, pid=1))
    assert before.joined(member(0, pid=1)).epoch == before.epoch + 1


def test_empty_joins_and_leaving_strangers_change_nothing() -> None:
    here = Membership().joined(member(0))
    assert here.joined() is here
    assert here.left() is here
    assert here.left("worker-7", "agent-0") is here


def test_who_leaves_is_gone_one_epoch_later() -> None:
    here = Membership().joined(member(0), member(1), member(2))
    left = here.left("worker-0", "worker-2", "worker-9")
    assert left.epoch == here.epoch + 1
    assert list(left.members) == ["worker-1"]


@given(
    st.lists(
        st.tuples(st.just("joined"), st.lists(members, max_size=3))
        | st.tuples(st.just("left"), st.lists(names, max_size=3))
    )
)
def test_the_epoch_rises_by_one_exactly_when_a_member_came_or_went(
    history: list[tuple[str, list[Member] | list[str]]],
) -> None:
    membership, expected = Membership(), dict[str, Member]()
    for what, who in history:
        before = membership
        if what == "joined":
            membership = membership.joined(*who)
            expected |= {one.name: one for one in who}
            changed = bool(who)
        else:
            membership = membership.left(*who)
            changed = any(name in expected for name in who)
            expected = {name: one for name, one in expected.items() if name not in who}
        assert membership.epoch == before.epoch + changed
        assert membership.members == expected
        assert all(one.name == name for name, one in membership.members.items())


def test_no_member_is_suspected_up_to_the_thresholds() -> None:
    assert suspected() == []
    assert suspected(sign(0, silent=SILENCE), sign(1)) == []
    assert suspected(sign(0, still=STALL, phase="exchange"), sign(1)) == []
    assert suspected(sign(0, still=STILL), sign(1, still=STILL)) == []


def test_who_makes_no_progress_is_named_though_no_member_waits_for_it() -> None:
    assert suspected(sign(0, still=20.1), sign(1, still=3)) == [(0, "still")]
    assert suspected(sign(0, still=1000, phase="receive"), sign(1, still=30, phase="data")) == [
        (1, "still")
    ]


def test_who_is_not_heard_of_is_silent_whatever_it_did() -> None:
    found = suspected(sign(0, silent=5.1), sign(1, silent=6, phase="exchange"), sign(2))
    assert found == [(0, "silent"), (1, "silent")]


def test_who_keeps_others_waiting_is_stuck_and_the_waiting_are_victims() -> None:
    waiting = [sign(rank, still=10.1, phase="exchange") for rank in (0, 2)]
    assert suspected(*waiting, sign(1, still=60), sign(3)) == [(1, "stuck"), (3, "stuck")]


def test_silence_explains_the_waiting_so_no_other_member_is_suspected() -> None:
    waiting = sign(0, still=60, phase="exchange")
    assert suspected(waiting, sign(1, silent=60, still=60), sign(2, still=60)) == [(1, "silent")]


def test_where_all_wait_for_each_other_that_is_said() -> None:
    waiting = [sign(rank, still=600 - rank, phase="exchange") for rank in range(4)]
    assert suspected(*waiting) == [(0, "all")]
    assert suspected(*(sign(rank, still=20, phase="exchange") for rank in range(4))) == []
    elsewhere = [sign(rank, still=600, phase="lease") for rank in range(4)]
    assert suspected(*elsewhere) == [], "they wait for the coordinator or servers"


def test_the_longest_wait_counts() -> None:
    found = suspects(
        1000.0,
        {
            "worker-0": sign(0, still=1, phase="exchange"),
            "worker-1": sign(1, still=42, phase="exchange"),
            "worker-2": sign(2),
        },
        silence=SILENCE,
        stall=STALL,
    )
    assert [suspect.seconds for suspect in found] == [42.0]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"silent": 17.0}, "has sent no heartbeat for 17 s; it was at train.py:3 in f"),
        ({"still": 17.0}, "has kept the others waiting for 12 s; it is at train.py:3 in f"),
    ],
)
def test_the_words_say_who_where_for_how_long_and_at_which_line(
    others: dict[str, float], words: str
) -> None:
    given = {"worker-0": sign(0, still=12, phase="exchange"), "worker-3": sign(3, **others)}
    (suspect,) = suspects(1000.0, given, silence=SILENCE, stall=STALL)
    assert str(suspect) == f"worker 3 on hostB (pid 100) {words}"


@given(gatherings, st.floats(100, 200), st.floats(0.1, 60), st.floats(0.1, 60))
def test_a_waiting_member_with_heartbeats_is_never_a_suspect(
    here: dict[str, Sign], now: float, silence: float, stall: float
) -> None:
    for suspect in suspects(now, here, silence=silence, stall=stall):
        one = here[suspect.member.name]
        assert suspect.member == one.member
        assert suspect.line == one.line
        assert one.phase != "exchange" or now - one.heard > silence
        assert suspect.seconds > (silence if suspect.reason == "silent" else stall)


@given(gatherings, st.floats(100, 200))
def test_reasons_are_not_mixed_and_more_patience_finds_no_new_silent_member(
    here: dict[str, Sign], now: float
) -> None:
    eager = suspects(now, here, silence=SILENCE, stall=STALL)
    assert len({suspect.reason for suspect in eager}) <= 1
    patient = suspects(now, here, silence=2 * SILENCE, stall=STALL)
    for suspect in patient:
        if suspect.reason == "silent":
            assert suspect in eager


@given(gatherings, st.floats(100, 200))
def test_when_all_make_progress_no_member_is_suspected(here: dict[str, Sign], now: float) -> None:
    moving = {name: dataclasses.replace(one, heard=now, moved=now) for name, one in here.items()}
    assert suspects(now, moving, silence=SILENCE, stall=STALL) == []


GIVEN = Patience.of(6.0, recovers=True)


def late(
    *given: Sign, patience: Patience = GIVEN, starting: tuple[str, ...] = ()
) -> list[tuple[int, str]]:
    # They have taken steps, so none of them is at its first one.
    named = {one.member.name: dataclasses.replace(one, steps=one.steps or 9) for one in given}
    found = overdue(1000.0, named, patience, starting)
    return [(suspect.member.rank, suspect.reason) for suspect in found]


def test_a_heartbeat_is_not_progress() -> None:
    assert late(sign(0, still=6.1), sign(1)) == [(0, "still")]
    assert late(sign(0, still=6), sign(1)) == []


@pytest.mark.parametrize("phase", sorted(WAITS))
def test_a_member_that_waits_is_not_ended_for_what_it_waits_for(phase: str) -> None:
    assert late(sign(0, still=99, phase=phase), sign(1)) == []


@pytest.mark.parametrize("phase", sorted(LONG))
def test_starting_and_storing_may_take_longer_than_a_step(phase: str) -> None:
    assert late(sign(0, still=600, phase=phase), sign(1)) == []
    assert late(sign(0, still=601, phase=phase), sign(1)) == [(0, "still")]
    assert late(sign(0, silent=7, phase=phase), sign(1)) == [(0, "silent")], "it is stopped"


def test_the_first_step_may_take_long_because_torch_may_compile_the_model() -> None:
    first = {"worker-0": dataclasses.replace(sign(0, still=599), steps=1)}
    assert overdue(1000.0, first, GIVEN) == []


def test_a_starting_process_may_be_silent_while_it_imports() -> None:
    assert late(sign(0, silent=599), sign(1), starting=("worker-0",)) == []
    assert late(sign(0, silent=601), sign(1), starting=("worker-0",)) == [(0, "silent")]


def test_of_workers_that_wait_for_each_other_the_one_furthest_behind_is_ended() -> None:
    waiting = [sign(rank, still=7, phase="exchange") for rank in range(3)]
    behind = dataclasses.replace(waiting[1], step=6)
    assert late(waiting[0], behind, waiting[2]) == [(1, "all")]
    assert late(*waiting, sign(3)) == [], "they wait for worker 3"


def test_workers_of_one_host_do_not_wait_for_each_other_for_long() -> None:
    default = Patience.of(None, recovers=True)
    waiting = [sign(rank, still=121, phase="exchange") for rank in range(3)]
    assert late(*waiting, patience=default) == [(0, "all")]
    sooner = [sign(rank, still=120, phase="exchange") for rank in range(3)]
    assert late(*sooner, patience=default) == []
    member = dataclasses.replace(waiting[2].member, host="another")
    apart = dataclasses.replace(waiting[2], member=member)
    assert late(*waiting[:2], apart, patience=default) == [], "the network may be slow"
    first = [dataclasses.replace(one, steps=1) for one in waiting]
    assert late(*first, patience=default) == [], "torch may compile the model"
    asked = Patience.of(200.0, recovers=True)
    assert late(*waiting, patience=asked) == [], "as the user said"


def test_by_default_a_long_step_is_borne_and_silence_is_not() -> None:
    default = Patience.of(None, recovers=True)
    assert late(sign(0, still=1799), sign(1), patience=default) == []
    assert late(sign(0, still=1801), sign(1), patience=default) == [(0, "still")]
    assert late(sign(0, silent=31), sign(1), patience=default) == [(0, "silent")]
    without = Patience.of(None, recovers=False)
    assert late(sign(0, silent=599), sign(1), patience=without) == [], "it would end the run"


def test_progress_is_a_step_a_phase_or_a_mark_and_not_a_line_of_code() -> None:
    before = sign(0, still=9)
    about = {"step": 7, "phase": "compute", "marks": 0}
    assert before.followed(1000.5, **about, line="train.py:8 in f").moved == before.moved
    for other in ({"step": 8}, {"phase": "data"}, {"marks": 1}):
        assert before.followed(1000.5, **{**about, **other}, line="").moved == 1000.5


def test_who_was_stopped_had_no_time_to_get_on() -> None:
    before = sign(0, silent=60, still=61)
    after = before.followed(1000.0, step=7, phase="compute", marks=0, line="")
    assert (after.heard, after.moved) == (1000.0, before.moved + 59)
