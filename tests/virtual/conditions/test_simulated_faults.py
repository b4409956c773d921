"""The texts of live faults, in virtual runs."""

import pytest

from manyhands.cluster import Link
from manyhands.faults import Crash, Faults, Isolate, Pause
from manyhands.protocols import Asynchronous, Gossip, Synchronous
from manyhands.virtual import ProcessHosts
from manyhands.virtual.conditions.simulated_faults import simulated

PLACES = ProcessHosts.in_blocks(4, 1, (2, 1), Link(1e9, 1e-4))


def lowered(text, places=PLACES, *, peers=False):
    return simulated(Faults.read(text), places, peers=peers)


def test_a_host_that_is_cut_off_is_all_of_its_workers():
    assert lowered("cut host host-1 from 2 s to 5 s") == (
        Isolate(2, at=2.0, seconds=3.0),
        Isolate(3, at=2.0, seconds=3.0),
    )


def test_a_worker_that_is_stopped_for_ever_is_ejected_and_restarted():
    pause, crash = lowered("stop worker 1 at 2 s")
    assert pause == Pause(worker=1, at=2.0, seconds=30.0)
    assert crash == Crash(worker=1, at=32.0, restart=1.0)


def test_a_worker_that_its_strategy_does_not_take_back_stays_away():
    faults = Faults.read("crash worker 1 at 2 s; stop worker 2 at 3 s")
    crash, _, ejected = simulated(faults, PLACES, peers=True, back=False)
    assert crash == Crash(worker=1, at=2.0)
    assert ejected == Crash(worker=2, at=33.0)


def test_random_faults_are_those_of_a_live_run():
    text = "random(every=15, seed=3, until=60)"
    assert lowered(text) == Faults.read(text).drawn(4, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("full disk at 3 s", "a virtual run has not"),
        ("cut host host-2 at 3 s", "the hosts with workers are host-0, host-1"),
        ("cut host host-1 incoming at 3 s", "in both directions"),
        ("crash worker 4 at 3 s", "the run has 4 workers"),
    ],
)
def test_what_a_virtual_run_cannot_have_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        lowered(text)


def test_a_host_with_a_server_is_not_cut_off():
    with pytest.raises(ValueError, match="host-0 has a server"):
        lowered("cut host host-0 at 3 s", ProcessHosts.one_host(2, 1))
    with pytest.raises(ValueError, match="needs a strategy with separate servers"):
        lowered("cut host host-0 at 3 s", ProcessHosts.one_host(2, 2), peers=True)


SENTENCES = "crash worker 1 at 0.35 s; stop worker 2 from 0.5 s to 1.5 s; crash server 0 at 1 s"
CALLS = (
    "[crash(worker=1, at=0.35, restart=1.0), pause(worker=2, at=0.5, seconds=1.0), "
    "crash(server=0, at=1.0, restart=1.0)]"
)


@pytest.mark.parametrize("protocol", [Asynchronous(), Synchronous()])
def test_sentences_give_the_same_run_as_calls_and_the_summary_shows_them(virtually, protocol):
    one, other = (virtually(protocol=protocol, faults=text) for text in (SENTENCES, CALLS))
    assert one.run.trace.processes[-1].totals == other.run.trace.processes[-1].totals
    assert one.run.samples == other.run.samples
    summary = " ".join(one.run.summary().split())
    assert "worker 1 killed at 0.3 s, back after 1.0 s" in summary.replace("at 0.4", "at 0.3")
    assert "worker 2 stopped from 0.5 s to 1.5 s" in summary
    assert "server 0 killed at 1.0 s, back after 1.0 s" in summary


def test_a_host_is_cut_off_for_a_while_and_every_sample_counts_once(virtually):
    done = virtually(places=PLACES, faults="cut host host-1 from 0.5 s to 20 s", detection=1.0)
    assert done.run.status == "finished"
    assert done.run.samples == virtually(places=PLACES).run.samples


def test_peers_go_on_without_a_worker_that_is_stopped_for_ever(virtually):
    done = virtually(protocol=Gossip(), faults="stop worker 1 at 0.3 s", detection=1.0)
    assert done.run.status == "finished"
