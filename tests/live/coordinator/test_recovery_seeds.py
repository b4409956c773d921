"""A coordinator is killed at any instruction that writes or sends; messages are lost meanwhile.

The coordinator, its journal and the reliable channels are the real ones; the connections and the
clock are the test's, so that the same seed is the same run.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest

from manyhands.leasing.journal import PrivateAreas
from manyhands.live.assignment import Leasing
from manyhands.live.coordinator.coordinator import Coordinator
from manyhands.live.coordinator.journal import CoordinatorJournal, Listening
from manyhands.live.coordinator.lease_service import LiveLeaseService
from manyhands.live.coordinator.recovery import ReplayClock, recover
from manyhands.live.member.trace_files import TraceFiles
from manyhands.trace import Recorder, live_header
from manyhands.transport.reliable_channel import ReliableChannel
from manyhands.wire import Beat, Goodbye, Hello, Repeat, Roll
from manyhands.wire.leasing import (
    Ask,
    Commit,
    Evaluate,
    Granted,
    Over,
    Saved,
    Sum,
    Tally,
    Word,
)

if TYPE_CHECKING:
    from pathlib import Path

WORKERS, SAMPLES, BATCH = 3, 24, 6


class Killed(Exception):  # noqa: N818 - an event
    pass


class World:
    """A coordinator, its workers, and connections that lose what is under way."""

    def __init__(self, seed: int, folder: Path, *, journals: bool) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - the same every time
        self.folder = folder
        self.journals = journals
        self.now = 100.0
        self.fuse: int | None = None
        """Writes and sends until the coordinator is killed."""
        self.areas = Areas(self)
        self.evaluates = self.draw.random() < 0.5
        self.loss = self.draw.choice((0.0, 0.05, 0.2))
        self.kills = 0
        self.back: float | None = None
        """When the coordinator is restarted; None while it runs."""
        self.inbox: deque[tuple[str, Any]] = deque()
        self.queued: list[tuple[str, Any]] = []
        """Messages to a coordinator that does not run: ZeroMQ keeps them."""
        self.outgoing: list[tuple[Worker, Any]] = []
        """Messages that the coordinator has sent and ZeroMQ has not yet."""
        self.workers = [Worker(self, rank) for rank in range(WORKERS)]
        self.coordinator = self.begin()

    def burn(self) -> None:
        """The coordinator writes or sends; it may be killed before."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Killed

    def begin(self) -> Coordinator:
        clock = ReplayClock(lambda: self.now)
        journal = CoordinatorJournal(self.areas, clock)
        journal._journal._most = 8
        entries = journal.recover()
        header = live_header("coordinator", 0, clock=clock, wall=time.time, host="here")
        recorder = Recorder(header, bytearray().extend, clock)
        hub: Any = Connections(self)
        numbers = Leasing(SAMPLES, BATCH, 2 * SAMPLES, None, evaluates=self.evaluates)
        service = LiveLeaseService(numbers, WORKERS, hub, recorder, clock, journal.note)
        files = TraceFiles(print, clock)
        about = (hub, WORKERS, self.folder, "here", recorder, clock, service)
        coordinator = Coordinator(*about, files=files, journal=journal if self.journals else None)
        if entries:
            recover(entries, coordinator, recorder, hub, clock)
        else:
            journal.note("", Listening(""))
        return coordinator

    def send(self, name: str, message: Any) -> None:
        """A worker sends to the coordinator."""
        if self.back is not None:
            self.queued.append((name, message))
        elif self.draw.random() >= self.loss or not isinstance(message, Word):
            self.inbox.append((name, message))

    def deliver(self, name: str, message: Any) -> None:
        """The coordinator sends to a worker."""
        rank = name.removesuffix(".leases").removeprefix("worker-")
        if rank.isdigit() and (self.draw.random() >= self.loss or not isinstance(message, Word)):
            self.outgoing.append((self.workers[int(rank)], message))

    def flush(self, count: int) -> None:
        for worker, message in self.outgoing[:count]:
            worker.inbox.append(message)
        self.outgoing.clear()

    def step(self) -> None:
        self.now += 0.05
        for worker in self.workers:
            worker.act()
        if self.back is not None:
            if self.now >= self.back:
                self.restart()
            return
        if self.fuse is None and self.kills < 12 and self.draw.random() < 0.05:
            self.fuse = self.draw.randrange(12)
        try:
            self.coordinator.turn(0.0)
            self.flush(len(self.outgoing))
        except Killed:
            self.die()

    def die(self) -> None:
        self.kills += 1
        self.flush(self.draw.randrange(len(self.outgoing) + 1))
        self.inbox.clear()
        self.back = self.now + self.draw.choice((0.05, 0.5, 2.0))

    def restart(self) -> None:
        self.back = None
        self.inbox.extend(self.queued)
        self.queued.clear()
        try:
            self.coordinator = self.begin()
        except Killed:
            self.die()

    def run(self) -> None:
        for _ in range(20_000):
            if all(worker.has_left for worker in self.workers):
                return
            self.step()
        pytest.fail(f"the run does not end; {[vars(worker) for worker in self.workers]}")


class Areas(PrivateAreas):
    """A killed coordinator leaves a part of what it was writing."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def append(self, area: int, data: bytes) -> None:
        try:
            self._world.burn()
        except Killed:
            super().append(area, data[: self._world.draw.randrange(len(data) + 1)])
            raise
        super().append(area, data)


class Connections:
    """In the place of `Hub`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_mute = False
        self.outside = ""

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        del timeout
        found = [*self._world.inbox]
        self._world.inbox.clear()
        return found

    def send(self, name: str, message: Any) -> None:
        self.send_all((name,), message)

    def send_all(self, names: Any, message: Any) -> None:
        if not self.is_mute:
            for name in names:
                self._world.burn()
                self._world.deliver(name, message)


class Worker:
    """A worker that trains, evaluates and stores as it is told to."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.name = f"worker-{rank}"
        self.inbox: deque[Any] = deque()
        self.channel = ReliableChannel(
            1, lambda word: world.send(f"{self.name}.leases", word), lambda: world.now
        )
        self.begun = False
        self.has_left = False
        self.busy: tuple[float, Granted] | None = None
        self.trained: list[tuple[int, int]] = []
        """Positions of the run, as often as this worker has trained on them."""
        self.beaten = 0.0
        self.hello()

    def hello(self) -> None:
        self.world.send(self.name, Hello("worker", self.rank, "here", 1, "boot", life=1))

    def act(self) -> None:
        if self.has_left:
            return
        if self.world.now - self.beaten >= 1.0:
            self.beaten = self.world.now
            self.world.send(self.name, Beat(self.world.now, 0, 0, None, "compute", ""))
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Word):
                for one in self.channel.receive(message):
                    self.hear(one)
            elif isinstance(message, Repeat):
                self.hello()
            elif isinstance(message, Roll) and not self.begun:
                self.begun = True
                self.channel.post(Ask())
        if self.busy is not None and self.world.now >= self.busy[0]:
            granted, self.busy = self.busy[1], None
            self.trained += [(granted.epoch, at) for at in range(granted.start, granted.stop)]
            self.channel.post(Commit(granted.number), later=True)
            self.channel.post(Ask())
        self.channel.check_timers()

    def hear(self, message: Any) -> None:
        match message:
            case Granted():
                assert self.busy is None, "one lease at a time"
                self.busy = (self.world.now + self.world.draw.uniform(0.0, 0.4), message)
            case Evaluate(round=number):
                self.channel.post(Tally(number, (1.0,)))
            case Sum(values=values):
                assert values == (float(WORKERS),)
                self.channel.post(Ask())
            case Over(stores=True):
                self.channel.post(Saved())
            case Over():
                self.has_left = True
                self.world.send(self.name, Goodbye(1, 1))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_every_sample_is_trained_once_wherever_the_coordinator_is_killed(first, tmp_path):
    (tmp_path / "trace").mkdir()
    kills = 0
    for seed in range(first, first + 20):
        world = World(seed, tmp_path, journals=True)
        world.run()
        kills += world.kills
        trained = Counter(at for worker in world.workers for at in worker.trained)
        expected = {(epoch, at): 1 for epoch in (0, 1) for at in range(SAMPLES)}
        assert trained == expected, f"seed {seed}"
    assert kills > 20, "too few kills to mean anything"


def test_without_a_journal_it_is_noticed(tmp_path):
    (tmp_path / "trace").mkdir()
    noticed = 0
    for seed in range(20):
        world = World(seed, tmp_path, journals=False)
        try:
            for _ in range(3000):
                if all(worker.has_left for worker in world.workers):
                    break
                world.step()
        except AssertionError:
            noticed += 1
            continue
        trained = Counter(at for worker in world.workers for at in worker.trained)
        expected = {(epoch, at): 1 for epoch in (0, 1) for at in range(SAMPLES)}
        noticed += trained != expected
    assert noticed >= 15
