"""What a message costs the coordinator does not grow with the number of workers."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from manyhands.live.assignment import Leasing
from manyhands.live.coordinator.coordinator import Coordinator
from manyhands.live.coordinator.lease_service import LiveLeaseService
from manyhands.live.member.trace_files import TraceFiles
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.trace import Recorder, live_header
from manyhands.transport.control import Hub, Line
from manyhands.transport.reliable_channel import ReliableLine
from manyhands.wire import Beat, Goodbye, Hello, Roll
from manyhands.wire.leasing import Ask, Commit, Dismiss, Granted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FEW, MANY = 10, 160
INCARNATION = 1


class Run:
    """A coordinator in this process, and the lines of its workers."""

    def __init__(self, folder: Path, workers: int, ending: ExitStack) -> None:
        self.now = 100.0
        (folder / "trace").mkdir()
        address = f"ipc://{folder}/hub"
        self.hub = ending.enter_context(Hub(address))
        header = live_header("coordinator", 0, clock=self.clock, wall=time.time, host="here")
        recorder = Recorder(header, bytearray().extend, self.clock)
        numbers = Leasing(10**9, workers, None, None, evaluates=False)
        service = LiveLeaseService(numbers, workers, self.hub, recorder, self.clock)
        about = (self.hub, workers, folder, "here", recorder, self.clock, service)
        self.coordinator = Coordinator(*about, files=TraceFiles(print))
        context: zmq.Context[Any] = zmq.Context()
        ending.callback(context.term)
        self.names = [f"worker-{rank}" for rank in range(workers)]
        self.lines = {
            name: ending.enter_context(Line(address, name, context=context)) for name in self.names
        }
        self.leases = {
            name: ReliableLine(
                ending.enter_context(Line(address, f"{name}.leases", context=context)), INCARNATION
            )
            for name in self.names
        }
        for rank, name in enumerate(self.names):
            self.lines[name].send(Hello("worker", rank, "here", 1, "boot", life=INCARNATION))
        self.until(lambda: self.coordinator.membership.epoch == 1)

    def clock(self) -> float:
        """A clock that the test moves, so that what is done at intervals is done as often."""
        return self.now

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            self.coordinator.turn(0.01)

    def lease(self, name: str) -> None:
        """One worker asks, is granted a lease, beats and commits."""
        leases = self.leases[name]
        leases.send(Ask())
        words: list[Any] = []
        while not words:
            self.coordinator.turn(0.01)
            words += leases.receive(0)
        assert isinstance(words[0], Granted)
        self.lines[name].send(Beat(self.now, 1, 1, None, "compute", "a line"))
        leases.send(Commit(words[0].number))
        before = self.coordinator._lease_service.committed if self.coordinator._lease_service else 0
        self.until(lambda: self.coordinator._lease_service.committed > before)  # type: ignore[union-attr]


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[Callable[[int], Run]]:
    raise_descriptors()
    with ExitStack() as ending:

        def make(workers: int) -> Run:
            folder = tmp_path / str(workers)
            folder.mkdir()
            return Run(folder, workers, ending)

        yield make


def calls_in(work: Callable[[], object]) -> int:
    """How many functions were called, Python's and C's, but for those that wait."""
    count = 0

    def note(frame: Any, event: str, about: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_lease_takes_as_many_calls_with_many_workers_as_with_few(run_of):
    def cost(workers: int) -> float:
        run = run_of(workers)
        for name in run.names:
            run.lease(name)
        # Each turn may wait in vain under load, and counts then: the least is the cost.
        return min(calls_in(lambda: run.lease("worker-3")) for _ in range(20))

    few, many = cost(FEW), cost(MANY)
    print(f"calls of functions per lease: {few} with {FEW} workers, {many} with {MANY}")
    assert many < 1.5 * few


def test_the_roll_of_a_start_does_not_grow_with_the_workers(run_of):
    def roll(workers: int) -> int:
        run = run_of(workers)
        frames: list[Any] = []
        deadline = time.monotonic() + 10
        while not frames and time.monotonic() < deadline:
            frames = [m for m in run.lines["worker-0"].receive(0.1) if isinstance(m, Roll)]
        return len(repr(frames[0]))

    assert roll(MANY) == roll(FEW)


@pytest.mark.slow
def test_no_worker_is_told_that_another_leaves(run_of):
    # The lease service notifies every worker that the run is over; to do so whenever one leaves
    # took messages in the order of half the square of their number.
    run = run_of(MANY)
    for name in run.names[:-1]:
        run.lines[name].send(Goodbye(1, 1))
    run.until(lambda: len(run.coordinator.membership.members) == 1)
    dismissals = 0
    for name in run.names:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            heard = run.lines[name].receive(0.05)
            dismissals += sum(isinstance(message, Dismiss) for message in heard)
            if not heard:
                break
    assert dismissals == 0
