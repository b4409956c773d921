"""Hosts and addresses as text, and what hosts must have in common."""

import socket

import pytest

from manyhands.live.agent.join import _own_origin
from manyhands.live.hosts.compatibility import difference, facts_of_host
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.invitation import Invitation, choose_address
from manyhands.script.origin import Origin
from manyhands.transport.interfaces import address_towards, read_place


def test_ranks_are_dealt_host_after_host():
    hosts = Hosts.read("a:4, b:2,c-1.example:1")
    assert hosts.workers == 7
    assert [hosts.ranks(name) for name in hosts.names] == [range(4), range(4, 6), range(6, 7)]
    assert Hosts.read(str(hosts)) == hosts


def test_hosts_of_servers_alone_have_no_workers():
    hosts = Hosts.read("a:0, b:2, c:0, d:1")
    assert [*map(hosts.ranks, hosts.names)] == [range(0), range(2), range(2, 2), range(2, 3)]
    with pytest.raises(ValueError, match="at least 1 worker, but the hosts a:0, b:0 have none"):
        Hosts.read("a:0, b:0")


@pytest.mark.parametrize(
    "text", ["", "a", "a:x", "a:1, a:2", "a:-1", ":3", "a b:1", "../x:1", "a:0", "a:1,,b:1"]
)
def test_what_names_no_hosts_is_refused(text):
    with pytest.raises(ValueError, match="host"):
        Hosts.read(text)


def test_who_is_missing_is_said_by_host():
    hosts = Hosts.read("a:4, b:4")
    assert hosts.missing({0, 1, 2, 3, 4, 5}) == "b:6,7"
    assert hosts.missing({0, 2, 4, 5, 6, 7}) == "a:1,3"
    assert hosts.missing(set(range(8))) == ""


def test_another_number_of_workers_is_refused():
    Hosts.read("a:4, b:4").check_count(8)
    Hosts.read("a:4, b:4").check_count(None)
    with pytest.raises(ValueError, match="omit one of the two"):
        Hosts.read("a:4, b:4").check_count(6)


@pytest.mark.parametrize(
    ("text", "port", "place"),
    [
        ("10.0.0.1:40001", None, ("10.0.0.1", 40001)),
        ("10.0.0.1", 0, ("10.0.0.1", 0)),
        ("host.example:1", 0, ("host.example", 1)),
        ("10.0.0.1", None, None),
        ("10.0.0.1:", None, None),
        ("10.0.0.1:99999", None, None),
        (":1", None, None),
        ("a b:1", None, None),
    ],
)
def test_places_are_read(text, port, place):
    if place is None:
        with pytest.raises(ValueError, match="is not of the form"):
            read_place(text, port)
    else:
        assert read_place(text, port) == place


def test_the_way_to_this_host_leads_over_loopback():
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


def test_an_address_that_is_not_this_hosts_cannot_be_listened_at():
    assert choose_address("127.0.0.1") == ("127.0.0.1", 0)
    with pytest.raises(ValueError, match="--listen takes one of its own addresses"):
        choose_address("192.0.2.1")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ValueError, match="a free port"),
    ):
        choose_address(f"127.0.0.1:{taken.getsockname()[1]}")


def test_the_invitation_says_the_exact_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "my script.py"
    (tmp_path / "run").mkdir()
    invitation = Invitation(tmp_path / "run", Hosts.read("a:1, b:4"), script)
    invitation.write()
    assert invitation.key.stat().st_mode & 0o777 == 0o600
    assert invitation.open("") == ""
    line = "manyhands join 10.0.0.1:40001 --key-file run/key --as b 'my script.py' --workers 4"
    assert line in invitation.open("tcp://10.0.0.1:40001")
    assert invitation.open("tcp://10.0.0.1:40001") == "", "it is said once"
    assert (tmp_path / "run" / "join").read_text() == f"{line}\n"
    invitation.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_difference_is_named(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("x = 1\n")
    other.write_text("x = 2\n")
    assert difference(facts_of_host(one), facts_of_host(one)) == ""
    words = difference(facts_of_host(one), facts_of_host(other))
    assert words.startswith("its script differs")
    assert "seed is 2 there and 1 on the first host" in difference({"seed": "1"}, {"seed": "2"})


@pytest.mark.parametrize(
    ("script", "search", "found"),
    [
        ("/home/a/train.py", "/home/a", "/data/b"),
        ("/home/a/package/train.py", "/home/a", "/data"),
        ("/home/a/train.py", "/elsewhere", "/data/b"),
        ("/home/a/train.py", "", ""),
    ],
)
def test_modules_are_found_beside_the_own_copy_of_the_script(tmp_path, script, search, found):
    theirs = Origin(script, "", search, (script, "--x"), "job", None)
    mine = _own_origin(theirs, tmp_path.__class__("/data/b/train.py"))
    assert (mine.script, mine.search) == ("/data/b/train.py", found)
    assert mine.argv == ("/data/b/train.py", "--x")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("a:4, b:4", "a:4, b:4"),
        ("node0:2, node1:2", "node0:2, node1:2"),
        ("n-0:2, n-1:2, n-2:2, n-3:2, n-4:1", "n-[0-3]:2, n-4:1"),
        ("s:0, n8:1, n9:1, n10:1, n11:1", "s:0, n[8-11]:1"),
        ("n08:1, n09:1, n10:1, n11:1, n12:1", "n08:1, n09:1, n10:1, n11:1, n12:1"),
        ("n3:1, n2:1, n1:1, n0:1", "n3:1, n2:1, n1:1, n0:1"),
    ],
)
def test_numbered_hosts_are_written_together(text, short):
    hosts = Hosts.read(text)
    assert hosts.short == short
    assert Hosts.read(short) == hosts
