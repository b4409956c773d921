"""A worker's view of peers that are lost and return."""

import threading
import time
from collections import deque

import pytest

from manyhands.endpoint import MembershipChanged, Parameters, Pull
from manyhands.live.member.peer_calls import PeerCalls
from manyhands.transport.caller import Caller
from manyhands.transport.responder import Responder
from manyhands.wire.leasing import Fence, Rejoined


class Peer:
    """A peer server that answers every call with its incarnation."""

    def __init__(self, address, incarnation, least=0):
        self._responder = Responder(
            address, incarnation=incarnation, slots=1, size=8, eager=8, key=None
        )
        self._responder.least = least
        self._incarnation = incarnation
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while not self._stop.is_set():
            call = self._responder.receive(0.02)
            if call is not None:
                self._responder.reply(call, Parameters(self._incarnation))

    def close(self):
        self._stop.set()
        self._thread.join()
        self._responder.close()


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/server-1"


@pytest.fixture
def caller(address):
    one = Caller("worker-0.1", {"server-1": address}, eager=8, clock=time.monotonic)
    one.epoch = 1
    yield one
    one.close()


def ask(peers, caller):
    """Call the peer; its incarnation."""
    assert peers.begin("server-1")
    caller.post("server-1", Pull())
    peers.check("server-1")
    said = caller.receive("server-1", 10)
    peers.end("server-1")
    return said.version


def test_calls_to_a_lost_peer_raise_once_each_also_after_its_return(address, caller):
    notices, lost = deque(), []
    peers = PeerCalls(caller, notices, "here")
    peers.on_loss = lost.append
    first = Peer(address, 1)
    assert ask(peers, caller) == 1
    first.close()
    assert peers.begin("server-1")
    caller.post("server-1", Pull())
    notices.append(Fence("worker-1", 2, 0))
    assert not peers.reaches("server-1")
    assert not peers.begin("server-1"), "it is not sent"
    second = Peer(address, 2, least=3)
    try:
        notices.append(Rejoined("worker-1", 2, 3, number=1))
        assert peers.reaches("server-1")
        for _ in range(2):
            with pytest.raises(MembershipChanged):
                peers.check("server-1")
        assert ask(peers, caller) == 2
        assert set(lost) == {"server-1"}, "what codecs keep for it is dropped"
    finally:
        second.close()


def test_a_notice_that_a_successor_had_from_the_start_changes_nothing_later(address, caller):
    known = [Rejoined("worker-1", 2, 3), Fence("worker-2", 2, 2)]
    notices = deque()
    caller.epoch = 4
    peers = PeerCalls(caller, notices, "here", known)
    assert peers.reaches("server-1")
    assert not peers.reaches("server-2")
    second = Peer(address, 2, least=3)
    try:
        assert ask(peers, caller) == 2
        assert peers.begin("server-1")
        caller.post("server-1", Pull())
        notices.extend(known)
        peers.check("server-1")
        assert caller.receive("server-1", 10).version == 2, "the call was not dropped"
    finally:
        second.close()
