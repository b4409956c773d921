"""Messages of a reliable channel arrive once and in order, though the connection breaks."""

from __future__ import annotations

import random
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from manyhands.transport.control import Hub, Line
from manyhands.transport.reliable_channel import ReliableChannel, ReliableLine
from manyhands.transport.security import JobKey
from manyhands.wire.leasing import Commit, Granted, Word

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = 30


class Lossy:
    """Two sides, and between them words that are under way, some of which get lost."""

    def __init__(self, seed: int, loss: float) -> None:
        self.now = 0.0
        self._rng = random.Random(seed)  # noqa: S311 - for a test
        self._loss = loss
        self.sides = [
            ReliableChannel(7, lambda word: self._send(1, word), lambda: self.now),
            ReliableChannel(7, lambda word: self._send(0, word), lambda: self.now),
        ]
        self.heard: list[list[int]] = [[], []]
        self.sent = 0
        self._under_way: list[tuple[int, Word]] = []

    def _send(self, to: int, word: Word) -> None:
        self.sent += 1
        if self._rng.random() >= self._loss:
            self._under_way.append((to, word))

    def tick(self) -> None:
        """A tenth of a second passes; what is under way arrives, in order."""
        self.now += 0.1
        arriving, self._under_way = self._under_way, []
        for to, word in arriving:
            heard = self.sides[to].receive(word)
            self.heard[to] += [one.number for one in heard if isinstance(one, Commit)]
        for side in self.sides:
            side.check_timers()


@pytest.mark.parametrize("seed", range(50))
def test_every_word_arrives_once_and_in_order(seed):
    lossy = Lossy(seed, loss=0.5)
    for number in range(WORDS):
        lossy.sides[seed % 2].post(Commit(number), later=number % 5 in (1, 2))
        if number % 3 == 0:
            lossy.sides[1 - seed % 2].post(Commit(number))
        lossy.tick()
    for _ in range(5_000):
        lossy.tick()
    assert lossy.heard[1 - seed % 2] == list(range(WORDS))
    assert lossy.heard[seed % 2] == list(range(0, WORDS, 3))


def test_where_nothing_is_lost_nothing_is_said_twice():
    lossy = Lossy(0, loss=0.0)
    for number in range(WORDS):
        lossy.sides[number % 2].post(Commit(number))
        lossy.tick()
    assert lossy.sent == WORDS
    for _ in range(1_000):
        lossy.tick()
    # The receiver of the last message had nothing to send: it was resent and acknowledged.
    assert lossy.sent == WORDS + 2


def test_what_can_wait_travels_with_the_next_message():
    lossy = Lossy(0, loss=0.0)
    worker = lossy.sides[0]
    for number in range(WORDS):
        worker.post(Commit(number), later=number % 2 == 0)
    lossy.tick()
    assert lossy.sent == WORDS // 2
    assert lossy.heard[1] == list(range(WORDS))
    worker.post(Commit(WORDS), later=True)
    lossy.tick()
    assert lossy.heard[1] == list(range(WORDS))
    worker.flush()
    lossy.tick()
    assert lossy.heard[1] == list(range(WORDS + 1))


def test_very_many_that_wait_are_sent_in_words_of_bounded_size():
    lossy = Lossy(0, loss=0.0)
    for number in range(1_000):
        lossy.sides[0].post(Commit(number), later=True)
    lossy.sides[0].flush()
    lossy.tick()
    assert lossy.heard[1] == list(range(1_000))
    assert lossy.sent == -(-1_000 // 32)


class Breaking:
    """A relay of TCP connections that can break them all, and with them what is under way."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self.deaf = False
        """Whether what comes is swallowed."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                if not self.deaf:
                    other.sendall(data)
        except OSError:
            pass

    def break_all(self) -> None:
        """End every connection."""
        ends, self._ends = self._ends, []
        for end in ends:
            with end:
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End, with all that goes through it."""
        self._listener.close()
        for end in self._ends:
            end.close()


@pytest.fixture
def reliable(tmp_path: Path) -> Iterator[tuple[Hub, Breaking, ReliableLine]]:
    """The coordinator's end, and a worker's that comes through a relay."""
    key = JobKey.new()
    with Hub(f"ipc://{tmp_path}/hub", "tcp://127.0.0.1:0", key) as hub:
        assert hub.outside is not None
        relay = Breaking(("127.0.0.1", int(hub.outside.rpartition(":")[2])))
        with Line(f"tcp://127.0.0.1:{relay.port}", "worker-0.leases", key) as line:
            yield hub, relay, ReliableLine(line, 1)
        relay.close()


@pytest.mark.timeout(60)
def test_nothing_is_lost_with_a_connection(reliable):
    hub, relay, worker = reliable
    asked, given = [], []
    channel = None

    def turn() -> None:
        nonlocal channel
        for name, word in hub.receive(0.02):
            assert name == "worker-0.leases"
            assert isinstance(word, Word)
            if channel is None:
                channel = ReliableChannel(word.life, partial(hub.send, name), time.monotonic)
            for message in channel.receive(word):
                assert isinstance(message, Commit)
                asked.append(message.number)
                channel.post(Granted(message.number, 0, 0, 1, 1))
        if channel is not None:
            channel.check_timers()
        given.extend(one.number for one in worker.receive(0.02) if isinstance(one, Granted))

    def until(count: int) -> None:
        deadline = time.monotonic() + 20
        while len(given) < count:
            assert time.monotonic() < deadline, (asked, given)
            turn()

    for number in range(4):
        worker.send(Commit(2 * number))
        until(2 * number + 1)
        # The next one, or its answer, is swallowed on the way, and then the connection breaks.
        if number % 2:
            relay.deaf = True
        worker.send(Commit(2 * number + 1))
        if number % 2 == 0:
            turn()
            relay.deaf = True
            turn()
        time.sleep(0.1)
        relay.break_all()
        relay.deaf = False
        until(2 * number + 2)
    assert asked == given == list(range(8))
