"""Takeover: hosts agree on a new first host, once, and never beside one that is alive."""

import threading
import time

import pytest

from manyhands.failure import RunFailed
from manyhands.files.checkpoints.attempts import make_room
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.invitation import Invitation
from manyhands.live.hosts.shared_folder import Marker, is_going_on
from manyhands.live.hosts.takeover import Takeover, agree, taken_over
from manyhands.transport.interfaces import read_place

HOSTS = Hosts.read("a:1, b:2, c:3, d:4")
WATCHED = 1.0


@pytest.fixture
def marker(tmp_path):
    marker = Marker(tmp_path, "7")
    marker.create()
    marker.beat()
    return marker


def meet(folder, names, *, late=(), turn=0.5, watched=WATCHED):
    """What the hosts of these names agree on, or why not; some of them arrive late."""
    found = {}

    def take_part(name):
        time.sleep(1.5 * WATCHED if name in late else 0.0)
        try:
            found[name] = agree(folder, "7", HOSTS, name, "127.0.0.1", watched, turn)
        except RunFailed as failure:
            found[name] = str(failure)

    threads = [threading.Thread(target=take_part, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found.keys() == set(names)
    return found


@pytest.mark.usefixtures("marker")
@pytest.mark.parametrize("names", [("b",), ("c", "d"), ("b", "c", "d")])
def test_hosts_agree_on_the_first_of_those_that_remain(tmp_path, names):
    found = meet(tmp_path, names)
    decision = found[names[0]]
    assert isinstance(decision, Takeover)
    assert all(one == decision for one in found.values())
    assert decision.first == names[0]
    assert decision.hosts == tuple((name, dict(HOSTS.counts)[name]) for name in names)
    assert read_place(decision.place)[0] == "127.0.0.1"


def test_nobody_takes_over_from_a_first_host_that_is_alive(tmp_path, marker):
    over = threading.Event()

    def live():
        while not over.is_set():
            marker.beat()
            time.sleep(0.05)

    alive = threading.Thread(target=live)
    alive.start()
    try:
        # It writes once a second, and may have to wait for a core.
        found = meet(tmp_path, ("b", "c"), watched=6 * WATCHED)
        assert is_going_on(tmp_path)
    finally:
        over.set()
        alive.join()
    assert all("it is cut off, not lost" in words for words in found.values())
    assert taken_over(tmp_path, "7") is None
    assert not is_going_on(tmp_path)


@pytest.mark.usefixtures("marker")
def test_a_host_that_is_late_is_told_that_the_others_continue(tmp_path):
    found = meet(tmp_path, ("b", "c", "d"), late=("d",))
    assert found["b"] == found["c"]
    assert [name for name, _ in found["b"].hosts] == ["b", "c"]
    assert found["d"] == "the other hosts continue the run without this one"


@pytest.mark.usefixtures("marker")
def test_a_host_that_entered_and_is_lost_as_well_is_not_waited_for(tmp_path):
    (tmp_path / ".takeover-7").mkdir()
    (tmp_path / ".takeover-7" / "b").touch()
    decision = meet(tmp_path, ("c",), turn=0.2)["c"]
    # It may still come: the run waits for it, and names it if it does not.
    assert decision.first == "c"
    assert [name for name, _ in decision.hosts] == ["c", "b"]


@pytest.mark.parametrize("cleared", [False, True])
def test_a_first_host_that_was_stopped_finds_the_decision(tmp_path, cleared):
    script = tmp_path / "job.py"
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    invitation = Invitation(folder, HOSTS, script)
    invitation.write()
    invitation.beat()
    attempt = invitation._attempt
    agree(folder, attempt, HOSTS, "b", "127.0.0.1", 0.2, 0.2)
    if cleared:
        make_room(folder)
    time.sleep(1.1)
    with pytest.raises(RunFailed, match="b took its place: the run continues there"):
        invitation.beat()
    invitation.close()


def test_hosts_that_see_the_folder_cleared_read_the_decision_where_it_was_moved(tmp_path, marker):
    (tmp_path / "checkpoints").mkdir()
    first = agree(tmp_path, "7", HOSTS, "b", "127.0.0.1", 0.2, 0.2)
    make_room(tmp_path)
    assert not marker.path.exists()
    with pytest.raises(RunFailed, match="without this one"):
        agree(tmp_path, "7", HOSTS, "c", "127.0.0.1", 0.2, 0.2)
    assert taken_over(tmp_path, "7") == first
