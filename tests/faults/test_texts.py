"""Faults as text: sentences, calls, random ones; and what is refused, with the remedy."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.faults import (
    CoordinatorCrash,
    Crash,
    Cut,
    CutHost,
    Faults,
    FullDisk,
    Isolate,
    Lose,
    Pause,
    RandomFaults,
)
from manyhands.faults.live import check_live
from manyhands.notation import NotationError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crash worker 2 at 20 s", Crash(worker=2, at=20.0, restart=1.0)),
        ("kill worker 2 at 20s for ever", Crash(worker=2, at=20.0)),
        ("crash server 0 at 1.5 min", Crash(server=0, at=90.0, restart=1.0)),
        ("crash coordinator at 40", CoordinatorCrash(at=40.0)),
        ("stop worker 1 from 30 s to 45 s", Pause(worker=1, at=30.0, seconds=15.0)),
        ("pause  server 0  at 500 ms for 2 s", Pause(server=0, at=0.5, seconds=2.0)),
        ("stop worker 1 from 30 s", Pause(worker=1, at=30.0, seconds=None)),
        ("stop worker 1 at 30 s for ever", Pause(worker=1, at=30.0, seconds=None)),
        ("cut host b from 60 s to 70 s", CutHost("b", at=60.0, seconds=10.0)),
        ("cut host host-1 outgoing at 6 s", CutHost("host-1", at=6.0, way="outgoing")),
        ("full disk at 80 s", FullDisk(at=80.0)),
        ("full disk from 80 s to 90 s", FullDisk(at=80.0, seconds=10.0)),
        ("random every 15 s, seed 3", RandomFaults(15.0, seed=3)),
        ("random(every=15s, seed=3)", RandomFaults(15.0, seed=3)),
        ("crash(worker=3, at=2.5s)", Crash(worker=3, at=2.5)),
    ],
)
def test_a_sentence_is_the_value_that_it_describes(text, fault):
    assert Faults.read(text) == Faults((fault,))
    assert Faults.read(str(Faults((fault,)))) == Faults((fault,)), "and so is its text"


def test_sentences_and_calls_may_be_mixed():
    text = 'crash worker 2 at 20 s; pause(worker=1, at=3), lose(a="server-0", b="worker-1");'
    faults = Faults.read(text)
    assert faults.faults == (
        Crash(worker=2, at=20.0, restart=1.0),
        Pause(worker=1, at=3.0),
        Lose("server-0", "worker-1"),
    )
    assert Faults.read(faults.text) == Faults.read(str(faults)) == faults
    assert not Faults.read("")
    assert Faults.read("").text == ""


def test_more_faults_than_a_text_of_the_notation_holds_are_read_back():
    faults = Faults(tuple(Crash(worker=1, at=float(at), restart=1.0) for at in range(300)))
    assert Faults.read(faults.text) == faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crash worker 2", "expected one of: crash worker 2 at 20 s"),
        ("explode worker 2 at 3 s", "expected one of"),
        ("slow worker 2 by 4", "--slow 2:4x"),
        ("stop worker 1 from 30 s to 20 s", "the end must be after the begin at 30 s, got 20 s"),
        ("stop server 0 from 3 s", "cannot continue without a server: set seconds"),
        ("stop coordinator from 3 s to 4 s", "stop a worker or a server"),
        ("crash server 0 at 3 s for ever", "cannot continue without a server: set restart"),
        ("crash coordinator at 3 s for ever", "cannot continue without the coordinator"),
        ("random(every=0)", "every must be above 0"),
        ("random(every=0.0001)", "are too many: the limit is 100,000, set until="),
        ('cut_host(host="a b", at=3)', "expected the name of a host"),
        ("full_disk(at=3, seconds=0)", "seconds must be above 0"),
    ],
)
def test_what_is_no_fault_is_refused_in_words(text, words):
    with pytest.raises(NotationError) as raised:
        Faults.read(text)
    assert words in str(raised.value)


@given(seed=st.integers(0, 2**62), workers=st.integers(1, 30), servers=st.integers(0, 4))
def test_random_faults_are_one_in_every_interval_and_fit_the_run(seed, workers, servers):
    faults = Faults((RandomFaults(15.0, seed=seed, until=600.0),))
    drawn = faults.drawn(workers, servers)
    assert drawn == faults.drawn(workers, servers), "the same seed, the same faults"
    assert len(drawn) == 40
    for number, fault in enumerate(drawn):
        assert 15.0 * number <= fault.at <= 15.0 * (number + 1)
        assert isinstance(fault, Crash | Pause)
    Faults(drawn).check(workers, servers)
    check_live(Faults(drawn), workers, servers, ["a"], network=False)


def test_random_faults_hit_worker_0_and_every_server_too():
    drawn = Faults.read("random(every=1, seed=1, until=400)").drawn(4, 2)
    hit = {name for fault in drawn if isinstance(fault, Crash) for name in fault.members()}
    assert hit == {*(f"worker-{rank}" for rank in range(4)), "server-0", "server-1"}
    assert {type(fault) for fault in drawn} == {Crash, Pause}
    assert drawn != Faults.read("random(every=1, seed=2, until=400)").drawn(4, 2)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Cut("worker-0", "server-0", 1, 2), "is for virtual runs"),
        (Lose("server-0", "worker-0"), "is for virtual runs"),
        (Isolate(1), "Use 'cut host NAME from 60 s to 70 s'"),
        (CutHost("b"), "needs a network that Manyhands made: use --cluster"),
        (Crash(worker=3, at=1.0), "names worker-3, and the run has 3 workers, numbered from 0"),
        (Pause(server=1, at=1.0), "names server-1, and the run has 1 servers"),
    ],
)
def test_what_a_live_run_cannot_have_is_refused_with_the_remedy(fault, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        check_live(Faults((fault,)), 3, 1, ["a", "b"], network=False)


def test_hosts_are_cut_off_where_manyhands_made_the_network():
    faults = Faults.read("cut host b at 3 s")
    check_live(faults, 2, 1, ["a", "b"], network=True)
    with pytest.raises(ValueError, match="names b, and the run has a, c"):
        check_live(faults, 2, 1, ["a", "c"], network=True)
    with pytest.raises(ValueError, match="stops the only worker for ever"):
        check_live(Faults.read("stop worker 0 at 3 s"), 1, 1, ["a"], network=True)
