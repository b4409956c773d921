"""Hub and Line over a real socket: names, garbage, restarts, and absent peers."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from manyhands.transport.control import Hub, Line, WatchedLine
from manyhands.transport.security import JobKey
from manyhands.wire import Beat, Control, Goodbye, Hello, Pong, TraceChunk, Warn, encode
from manyhands.wire.control import LIMIT

WITHIN = 10.0
"""Seconds in which a message on this machine must have arrived."""


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/hub"


@pytest.fixture
def hub(address: str) -> Iterator[Hub]:
    with Hub(address) as hub:
        yield hub


@pytest.fixture
def stranger(address: str) -> Iterator[zmq.Socket[bytes]]:
    """A peer that speaks ZeroMQ but not our messages."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IDENTITY, b"stranger")
        socket.connect(address)
        yield socket


def heard(hub: Hub, count: int) -> list[tuple[str, Control]]:
    """The next `count` messages that reach the hub."""
    messages: list[tuple[str, Control]] = []
    deadline = time.monotonic() + WITHIN
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count}: {messages}"
        messages += hub.receive(0.05)
    return messages


def until_refused(hub: Hub, count: int) -> list[tuple[str, Control]]:
    """The messages that reach the hub until it has refused `count` frames."""
    messages: list[tuple[str, Control]] = []
    deadline = time.monotonic() + WITHIN
    while hub.refused < count:
        assert time.monotonic() < deadline, f"refused {hub.refused} of {count}"
        messages += hub.receive(0.05)
    return messages


def answer(line: Line) -> Control:
    """The next message that reaches a line."""
    (message,) = line.receive(WITHIN)
    return message


def test_messages_arrive_in_order_under_their_senders_names(hub: Hub, address: str) -> None:
    with Line(address, "worker-0") as first, Line(address, "worker-1") as second:
        for number in range(100):
            assert first.send(Goodbye(number, 0))
            assert second.send(Goodbye(number, 1))
        messages = heard(hub, 200)
    for sender, mark in (("worker-0", 0), ("worker-1", 1)):
        mine = [message for name, message in messages if name == sender]
        assert mine == [Goodbye(number, mark) for number in range(100)]


def test_an_answer_reaches_only_its_peer(hub: Hub, address: str) -> None:
    with Line(address, "worker-0") as first, Line(address, "worker-1") as second:
        for line in (first, second):
            line.send(Hello("worker", 0, "host", 1, "boot"))
        heard(hub, 2)
        hub.send("worker-1", Pong(1.0, 2.0))
        assert answer(second) == Pong(1.0, 2.0)
        hub.send("worker-0", Warn("x"))
        assert answer(first) == Warn("x")
        assert first.receive(0) == second.receive(0) == []


def test_what_was_said_before_anybody_listened_arrives(address: str) -> None:
    with Line(address, "worker-0") as line:
        line.send(Warn("said before anybody listened"))
        with Hub(address) as hub:
            assert heard(hub, 1) == [("worker-0", Warn("said before anybody listened"))]


def test_with_nothing_to_receive_both_ends_return_after_the_timeout(hub: Hub, address: str) -> None:
    with Line(address, "worker-0") as line:
        for end in (hub, line):
            begun = time.monotonic()
            assert end.receive(0.1) == []
            assert 0.09 <= time.monotonic() - begun < WITHIN


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff" * 100],
        [b"\x91" * 100_000],
        [b"not msgpack"],
        [encode(Warn("x"))[:-1]],
        [encode(Warn("abcd")).replace(b"abcd", b"\xff\xff\xff\xff")],
        [b"", encode(Warn("x"))],
        [encode(Warn("x")), encode(Warn("y"))],
        [b"x"] * 100,
    ],
    ids=[
        "empty",
        "binary",
        "nested",
        "text",
        "cut",
        "not utf-8",
        "as from a REQ socket",
        "two in one",
        "a hundred frames",
    ],
)
def test_garbage_is_counted_and_disturbs_no_peer(
    hub: Hub, stranger: zmq.Socket[bytes], address: str, frames: list[bytes]
) -> None:
    with Line(address, "worker-0") as line:
        line.send(Goodbye(1, 1))
        messages = heard(hub, 1)
        stranger.send_multipart(frames)
        messages += until_refused(hub, 1)
        line.send(Goodbye(2, 2))
        messages += heard(hub, 1)
        assert messages == [("worker-0", Goodbye(1, 1)), ("worker-0", Goodbye(2, 2))]
        hub.send("worker-0", Pong(0.0, 1.0))
        assert answer(line) == Pong(0.0, 1.0)
    assert hub.refused == 1


def test_good_messages_among_garbage_of_the_same_sender_count(
    hub: Hub, stranger: zmq.Socket[bytes]
) -> None:
    for number in range(50):
        stranger.send(b"garbage")
        stranger.send(encode(Goodbye(number, 0)))
    messages = heard(hub, 50)
    assert messages == [("stranger", Goodbye(number, 0)) for number in range(50)]
    assert hub.refused == 50


def test_a_name_that_is_not_ascii_is_refused(hub: Hub, address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IDENTITY, "wörker".encode())
        socket.connect(address)
        socket.send(encode(Warn("x")))
        assert until_refused(hub, 1) == []


def test_a_flood_of_garbage_does_not_keep_the_hub_from_returning(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flood:
        """A socket on which there is always more."""

        def recv_multipart(self, _flags: int) -> list[bytes]:
            return [b"stranger", b"garbage"]

    with monkeypatch.context() as patch:
        patch.setattr(hub._listeners, "ready", lambda _timeout: [Flood()])
        assert hub.receive(1.0) == []
    assert hub.refused > 0


def test_a_frame_over_the_limit_never_arrives_and_disturbs_no_other_peer(
    hub: Hub, stranger: zmq.Socket[bytes], address: str
) -> None:
    with Line(address, "worker-0") as line:
        stranger.send(b"x" * (LIMIT + 1))
        line.send(TraceChunk(b"x" * (LIMIT - 1000)))
        ((name, message),) = heard(hub, 1)
        assert (name, type(message)) == ("worker-0", TraceChunk)
        # The connection that it came on is closed, with whatever followed; the next one is heard.
        deadline = time.monotonic() + WITHIN
        while ("stranger", Warn("in short")) not in hub.receive(0.05):
            assert time.monotonic() < deadline
            stranger.send(encode(Warn("in short")))
    assert hub.refused == 0, "it was dropped before it was a frame"


def test_who_comes_back_under_its_name_is_answered_at_its_new_self(hub: Hub, address: str) -> None:
    with Line(address, "worker-0") as former:
        former.send(Goodbye(1, 1))
        heard(hub, 1)
        # The former self is still connected, as one that hangs would be.
        with Line(address, "worker-0") as present:
            present.send(Goodbye(2, 2))
            assert heard(hub, 1) == [("worker-0", Goodbye(2, 2))]
            hub.send("worker-0", Pong(1.0, 2.0))
            assert answer(present) == Pong(1.0, 2.0)
            assert former.receive(0) == []


def test_a_restarted_peer_is_heard_after_its_former_self_left(hub: Hub, address: str) -> None:
    for life in range(5):
        with Line(address, "worker-0") as line:
            line.send(Goodbye(life, 0))
            assert heard(hub, 1) == [("worker-0", Goodbye(life, 0))]
            hub.send("worker-0", Pong(0.0, float(life)))
            assert answer(line) == Pong(0.0, float(life))


def test_words_to_one_who_is_not_there_are_lost_without_an_error(hub: Hub, address: str) -> None:
    hub.send("nobody", Warn("x"))
    with Line(address, "worker-0") as line:
        line.send(Goodbye(0, 0))
        heard(hub, 1)
    for _ in range(20_000):
        hub.send("worker-0", Warn("x"))


def test_sending_never_blocks_and_says_when_the_queue_is_full(address: str) -> None:
    beat = Beat(0.0, 0, 0, None, "", "")
    with Line(address, "worker-0") as line:
        begun = time.monotonic()
        sent = [line.send(beat) for _ in range(10_001)]
        assert time.monotonic() - begun < WITHIN
    assert sent[0]
    assert not sent[-1]
    assert sent == sorted(sent, reverse=True), "once full it stays full"


def test_a_hub_that_comes_back_is_found_again(address: str) -> None:
    with Line(address, "worker-0") as line:
        for number in range(2):
            with Hub(address) as hub:
                wait_until_through(line, hub, number)


def wait_until_through(line: Line, hub: Hub, number: int) -> None:
    """Send until one arrives: what was on its way when a hub ended is lost."""
    deadline = time.monotonic() + WITHIN
    while ("worker-0", Goodbye(number, 0)) not in hub.receive(0.05):
        assert time.monotonic() < deadline
        line.send(Goodbye(number, 0))


@pytest.fixture
def key() -> JobKey:
    return JobKey.new()


@pytest.fixture
def open_hub(address: str, key: JobKey) -> Iterator[Hub]:
    """A hub with a listener for other hosts."""
    with Hub(address, "tcp://127.0.0.1:0", key) as hub:
        yield hub


def test_each_is_answered_at_the_door_it_came_by(open_hub: Hub, address: str, key: JobKey) -> None:
    assert open_hub.outside.startswith("tcp://127.0.0.1:")
    with Line(address, "worker-0") as here, Line(open_hub.outside, "worker-1", key) as there:
        here.send(Goodbye(0, 0))
        there.send(Goodbye(1, 1))
        assert sorted(heard(open_hub, 2)) == [
            ("worker-0", Goodbye(0, 0)),
            ("worker-1", Goodbye(1, 1)),
        ]
        for name in ("worker-0", "worker-1"):
            open_hub.send(name, Warn(name))
        assert answer(here) == Warn("worker-0")
        assert answer(there) == Warn("worker-1")


def test_a_tcp_door_and_a_line_to_it_need_the_key(address: str) -> None:
    with pytest.raises(ValueError, match="requires the job's key"):
        Hub(address, "tcp://127.0.0.1:0")
    with pytest.raises(ValueError, match="requires the job's key"):
        Line("tcp://127.0.0.1:9", "worker-0")


def test_a_wrong_key_is_seen_on_both_sides_and_nothing_is_heard(open_hub: Hub, key: JobKey) -> None:
    refused: list[str] = []
    with WatchedLine(open_hub.outside, "worker-0", JobKey.new()) as stranger:
        stranger.send(Goodbye(0, 0))
        deadline = time.monotonic() + WITHIN
        while not (refused and stranger.is_refused):
            assert time.monotonic() < deadline
            assert open_hub.receive(0.05) == []
            refused += open_hub.take_refused()
        assert not stranger.is_in
    assert set(refused) == {"127.0.0.1"}
    with WatchedLine(open_hub.outside, "worker-0", key) as friend:
        friend.send(Goodbye(1, 1))
        assert heard(open_hub, 1) == [("worker-0", Goodbye(1, 1))]
        assert friend.is_in
        assert not friend.is_refused


def test_a_line_without_a_listener_is_not_refused(key: JobKey) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    with WatchedLine(f"tcp://127.0.0.1:{port}", "worker-0", key) as line:
        assert line.receive(1.0) == []
        assert not line.is_in
        assert not line.is_refused


@pytest.mark.parametrize("end", [lambda address: Line(address, "worker-0"), Hub])
def test_closing_does_not_wait_for_those_who_are_gone(
    end: Callable[[str], Hub | Line], address: str
) -> None:
    begun = time.monotonic()
    with end(address) as one:
        if isinstance(one, Line):
            one.send(Warn("this is not received"))
    assert time.monotonic() - begun < 1.0
