"""A real coordinator is killed, and its successor continues from the journal."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

from manyhands.live.assignment import Assignment, Leasing
from manyhands.script.origin import Origin, Overrides
from manyhands.trace import merge
from manyhands.transport.control import Line
from manyhands.transport.reliable_channel import ReliableLine
from manyhands.transport.shared.memory import reserve
from manyhands.wire import Beat, Control, Goodbye, Hello, Repeat, Roll, Status, TraceChunk
from manyhands.wire.joining import Missed
from manyhands.wire.leasing import Ask, Commit, Fence, Granted, Lost, Over, Saved, Word
from support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support import Started

Kind = TypeVar("Kind", bound=Control)


class Run:
    """A coordinator that can be killed and started again, and lines to it."""

    def __init__(
        self, start: Callable[..., Started], folder: Path, lines: ExitStack, *, memory: bool
    ) -> None:
        self._start = start
        self._folder = folder
        self._open = lines
        self._address = f"ipc://{folder}/coordinator"
        self._lines: dict[str, Line] = {}
        self._read: dict[str, list[Control]] = {}
        self._assignment = folder / "assignment.json"
        (folder / "trace").mkdir()
        journal: tuple[int, ...] = ()
        if memory:
            journal = (reserve(), reserve())
            for descriptor in journal:
                lines.callback(os.close, descriptor)
        Assignment(
            origin=Origin("", "", "", (), "job", None),
            overrides=Overrides(),
            strategy="asynchronous()",
            workers=2,
            host="localhost",
            folder=str(folder),
            coordinator=self._address,
            private=str(folder / "private"),
            store_address="",
            store_port=0,
            servers=(),
            leasing=Leasing(8, 4, 16, None, evaluates=False),
            agent=os.getpid(),
            devices=("cpu", "cpu"),
            coordinator_journal=journal,
        ).write(self._assignment)
        self.begin()

    def begin(self) -> None:
        module = "manyhands.live.coordinator.process"
        self.started = self._start(sys.executable, "-m", module, self._assignment)

    def kill(self) -> None:
        """Kill the coordinator and start another, as the agent does."""
        self.started.process.kill()
        self.started.process.wait()
        self.begin()

    def __getitem__(self, name: str) -> Line:
        if name not in self._lines:
            self._lines[name] = self._open.enter_context(Line(self._address, name))
        return self._lines[name]

    def expect(self, name: str, kind: type[Kind], *, beats: bool = False) -> Kind:
        """The next message of a kind; with `beats`, in answer to heartbeats.

        What is sent in the moment of a kill is lost, so a member sends a heartbeat every second.
        """
        deadline, due = time.monotonic() + 20, time.monotonic()
        waiting = self._read.setdefault(name, [])
        while time.monotonic() < deadline:
            if beats and time.monotonic() >= due:
                due += 1.0
                self.beat(name)
            while waiting:
                message = waiting.pop(0)
                if isinstance(message, kind):
                    return message
            waiting += self[name].receive(0.1)
        pytest.fail(f"{name} has heard no {kind.__name__}; {self.started.text()}")

    def hello(self, rank: int, life: int = 1) -> None:
        self[f"worker-{rank}"].send(Hello("worker", rank, "localhost", 10 + rank, "b", life=life))

    def beat(self, name: str) -> None:
        self[name].send(Beat(time.monotonic(), 0, 0, None, "start", ""))

    def say(self, rank: int, number: int, heard: int, *messages: Ask | Commit | Saved) -> None:
        self[f"worker-{rank}.leases"].send(Word(1, number, heard, messages))

    def granted(self, rank: int) -> Granted:
        """The next lease of a worker; it may be sent more than once."""
        while True:
            for message in self.expect(f"worker-{rank}.leases", Word).messages:
                if isinstance(message, Granted):
                    return message

    def open(self) -> None:
        """All workers have joined."""
        for rank in (0, 1):
            self.hello(rank)
        for rank in (0, 1):
            self.expect(f"worker-{rank}", Roll)


@pytest.fixture(params=["memory", "files"])
def run(
    request: pytest.FixtureRequest, start: Callable[..., Started], tmp_path: Path
) -> Iterator[Run]:
    with ExitStack() as lines:
        yield Run(start, tmp_path, lines, memory=request.param == "memory")


def test_leases_go_on_where_they_were(run: Run) -> None:
    run.open()
    run.say(0, 0, 0, Ask())
    assert run.granted(0).number == 0
    run.kill()
    # The answer is not acknowledged, so it is sent again; its samples are not given to another.
    assert run.granted(0).number == 0
    run.say(1, 0, 0, Ask())
    assert run.granted(1).number == 1
    # A message that was received before is received once; one that was not, is new.
    run.say(0, 0, 1, Ask(), Commit(0), Ask())
    lease = run.granted(0)
    assert (lease.number, lease.start) == (2, 4)
    run.kill()
    run.say(0, 1, 2, Commit(0), Ask())
    run.say(0, 3, 2, Commit(2), Ask())
    assert run.granted(0).number == 3
    while run.expect("agent-0", Status).samples < 4:
        run.beat("worker-0")
        run.beat("worker-1")


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_run_ends_though_its_coordinator_is_killed_after_every_message(run: Run) -> None:
    run.open()
    lines = [ReliableLine(run[f"worker-{rank}.leases"], 1) for rank in (0, 1)]

    def hear(rank: int, kind: type[Granted | Over]) -> Granted | Over:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for message in lines[rank].receive(0.1):
                if isinstance(message, kind):
                    return message
        pytest.fail(f"worker {rank} has heard no {kind.__name__}; {run.started.text()}")

    given: list[int] = []
    for rank in (0, 1) * 4:
        lines[rank].send(Ask())
        lease = hear(rank, Granted)
        assert isinstance(lease, Granted)
        run.kill()
        given += range(lease.start, lease.stop)
        lines[rank].send(Commit(lease.number))
    assert sorted(given) == sorted([*range(8), *range(8)])
    for rank in (0, 1):
        lines[rank].send(Ask())
    assert hear(0, Over) == Over(stores=True)
    run.kill()
    lines[0].send(Saved())
    run.kill()
    # What was sent in the moment of a kill is sent again.
    lines[0].receive(0.5)
    assert hear(1, Over) == Over(stores=False)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_what_members_may_have_missed_is_repeated(run: Run) -> None:
    run.hello(0)
    run["server-0"].send(Hello("server", 0, "localhost", 20, "b", life=1))
    run.beat("server-0")
    while run.expect("agent-0", Status).joined < 1:
        run.beat("worker-0")
    run.kill()
    # The second worker's first message was lost: it is asked for it.
    run.expect("worker-1", Repeat, beats=True)
    run.hello(1)
    run.expect("worker-1", Roll)
    run.expect("worker-0", Roll, beats=True)
    run["agent-0"].send(Lost("worker-1", "killed", 1))
    assert run.expect("agent-0", Missed) == Missed("worker-1", begun=True)
    run.kill()
    # The roll is repeated with the first heartbeat, a fence until it is confirmed.
    while run.expect("worker-0", Roll, beats=True).epoch < 2:
        pass  # The first one may have been sent twice.
    assert run.expect("server-0", Fence, beats=True) == Fence("worker-1", 2, 0)
    # An agent that has not received the answer reports the loss again: it is noted once.
    run["agent-0"].send(Lost("worker-1", "killed", 1))
    assert run.expect("agent-0", Missed) == Missed("worker-1", begun=True)
    run["server-0"].send(Beat(0.0, 0, 0, None, "serve", "", fences=0))
    assert run.expect("server-0", Fence).number == 0
    run.hello(1, life=2)
    assert run.expect("worker-1", Roll).epoch == 3


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_its_trace_is_one_trace_with_every_event_once(run: Run, tmp_path: Path) -> None:
    run.open()
    run["worker-0"].send(TraceChunk(b"\n"))
    for _ in range(3):
        while not run.expect("agent-0", Status).started:
            run.beat("worker-0")
        run.kill()
        run.beat("worker-0")
        run.beat("worker-1")
    run["worker-1"].send(Goodbye(1, 1))
    run["worker-0"].send(Goodbye(1, 1))
    run["agent-0"].send(Goodbye(0, 0))
    assert run.started.finish(20) == 0, run.started.text()
    with (tmp_path / "trace" / "coordinator.jsonl").open("rb") as file:
        (process,) = merge([("coordinator", file)]).processes
    events = [event.what for event in process.events]
    assert events.count("epoch-of-members") == 1
    assert events.count("recovered") == 3
    assert events.count("left") == 2


EARLY = """
    import os, signal, sys, time
    from pathlib import Path
    import msgspec
    from manyhands.live.assignment import Assignment
    from manyhands.live.coordinator import process

    path = Path(sys.argv[1])
    assignment = msgspec.structs.replace(Assignment.read(path), agent=os.getpid())
    assignment.write(path)
    Path(assignment.private).mkdir()
    if os.fork() == 0:
        process.open_areas = lambda _: (print("opens its journal", flush=True), time.sleep(60))
        process.main(str(path))
        os._exit(0)
    time.sleep(60)
"""


def test_an_agent_that_is_killed_before_its_coordinator_serves_leaves_no_folder(
    tmp_path, start, run_script
):
    """Its coordinator is about to open the journal, and knows no process yet."""
    with ExitStack() as lines:
        run = Run(start, tmp_path, lines, memory=False)
        run.started.process.kill()
        agent = run_script(EARLY, str(tmp_path / "assignment.json"))
        wait_for(lambda: "opens its journal" in agent.text(), 30, "the coordinator")
        agent.process.kill()
        private = tmp_path / "private"
        wait_for(lambda: not private.exists(), 20, "the coordinator's clean-up")
        wait_for(lambda: "was killed; its coordinator and" in agent.text(), 5, "its words")
