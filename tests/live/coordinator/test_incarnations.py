"""What a real coordinator does about workers whose processes are replaced."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from manyhands.live.assignment import Assignment, Leasing
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.wire import Beat, Control, Goodbye, Hello, Roll, Status
from manyhands.wire.joining import Missed
from manyhands.wire.leasing import Ask, Dismiss, Eject, Fence, Granted, Lost, Rejoined, Word

Kind = TypeVar("Kind", bound=Control)


class Talks:
    """Lines to a coordinator, one for each name."""

    def __init__(self, address: str, lines: ExitStack) -> None:
        self._address = address
        self._open = lines
        self._lines: dict[str, Line] = {}

    def __getitem__(self, name: str) -> Line:
        if name not in self._lines:
            self._lines[name] = self._open.enter_context(Line(self._address, name))
        return self._lines[name]

    def hello(self, rank: int, life: int) -> None:
        self[f"worker-{rank}"].send(Hello("worker", rank, "localhost", life, "boot", life=life))

    def expect(self, name: str, kind: type[Kind]) -> Kind:
        """The next message of a kind."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for message in self[name].receive(0.1):
                if isinstance(message, kind):
                    return message
        pytest.fail(f"{name} has heard no {kind.__name__}")


@pytest.fixture
def coordinate(start: Callable[..., object], tmp_path: Path) -> Iterator[Callable[..., Talks]]:
    """Start a coordinator of two workers."""
    address = f"ipc://{tmp_path}/coordinator"
    with ExitStack() as lines:

        def begin(*, peers: bool, takes_back: bool = True) -> Talks:
            (tmp_path / "trace").mkdir()
            assignment = Assignment(
                origin=Origin("", "", "", (), "job", None),
                overrides=Overrides(),
                strategy="gossip()" if peers else "asynchronous()",
                workers=2,
                host="localhost",
                folder=str(tmp_path),
                coordinator=address,
                private=str(tmp_path / "private"),
                store_address="",
                store_port=0,
                servers=(),
                leasing=Leasing(100, 10, 100, None, evaluates=False),
                agent=os.getpid(),
                devices=("cpu", "cpu"),
                peers=peers,
                takes_back=takes_back,
            )
            assignment.write(tmp_path / "assignment.json")
            start(
                sys.executable,
                "-m",
                "manyhands.live.coordinator.process",
                tmp_path / "assignment.json",
            )
            return Talks(address, lines)

        yield begin


def test_a_worker_that_is_lost_before_all_have_joined_is_awaited_again(coordinate) -> None:
    talks = coordinate(peers=True)
    talks.hello(0, 1)
    talks["agent-0"].send(Lost("worker-0", "killed", life=1))
    assert talks.expect("agent-0", Missed) == Missed("worker-0", begun=False)
    talks.hello(1, 1)
    assert not talks.expect("agent-0", Status).started
    talks.hello(0, 2)
    assert talks.expect("worker-1", Roll).epoch == 1
    assert talks.expect("worker-0", Roll).epoch == 1


def test_a_member_of_an_ensemble_that_comes_back_too_late_is_ejected(coordinate) -> None:
    talks = coordinate(peers=True, takes_back=False)
    talks.hello(0, 1)
    talks.hello(1, 1)
    talks.expect("worker-1", Roll)
    talks["agent-0"].send(Lost("worker-0", "killed", life=1))
    assert talks.expect("agent-0", Missed).begun
    talks.hello(0, 2)
    assert talks.expect("agent-0", Eject).name == "worker-0"


def test_peers_are_told_of_a_successor_when_it_asks_for_samples(coordinate) -> None:
    talks = coordinate(peers=True)
    talks.hello(0, 1)
    talks.hello(1, 1)
    for name in ("worker-0", "worker-1"):
        assert not talks.expect(name, Roll).returns
    talks["worker-0.leases"].send(Word(1, 0, 0, (Ask(),)))
    talks.expect("worker-0.leases", Word)
    talks["agent-0"].send(Lost("worker-0", "killed", life=1))
    fence = Fence("worker-0", 2, 0)
    assert talks.expect("worker-1", Fence) == fence
    talks.hello(0, 2)
    roll = talks.expect("worker-0", Roll)
    assert (roll.returns, roll.notices, roll.noted) == (True, (fence,), 1)
    # A late message of the predecessor does not announce the successor.
    talks["worker-0.leases"].send(Word(1, 1, 0, (Ask(),)))
    talks["worker-1"].send(Beat(0.0, 0, 0, None, "compute", "", fences=0))
    assert talks.expect("worker-1", Fence) == fence
    assert talks.expect("agent-0", Status).returned == ()
    talks["worker-0.leases"].send(Word(2, 0, 0, (Ask(),)))
    back = talks.expect("worker-1", Rejoined)
    assert (back.name, back.life, back.number) == ("worker-0", 2, 1)
    assert back.epoch >= roll.epoch
    # One that has missed it is told again, and a third incarnation is told of the last notice only.
    talks["worker-1"].send(Beat(0.0, 0, 0, None, "compute", "", fences=1))
    assert talks.expect("worker-1", Rejoined) == back
    talks["agent-0"].send(Lost("worker-1", "killed", life=1))
    talks.hello(1, 2)
    roll = talks.expect("worker-1", Roll)
    assert (roll.notices, roll.noted) == ((back, Fence("worker-1", 2, 2)), 3)


def test_a_successor_gets_samples_and_its_predecessor_gets_no_more(coordinate) -> None:
    talks = coordinate(peers=False)
    talks.hello(0, 1)
    talks.hello(1, 1)
    talks.expect("worker-0", Roll)
    talks["worker-0.leases"].send(Word(1, 0, 0, (Ask(),)))
    assert talks.expect("worker-0.leases", Word).life == 1
    talks.hello(0, 2)
    talks.expect("worker-0", Roll)
    talks["worker-0.leases"].send(Word(2, 0, 0, (Ask(),)))
    talks["worker-0.leases"].send(Word(1, 1, 0, (Ask(),)))
    word = talks.expect("worker-0.leases", Word)
    while word.life == 1:
        word = talks.expect("worker-0.leases", Word)
    assert isinstance(word.messages[0], Granted)
    assert word.messages[0].start == 0, "its predecessor's samples are given again"


def serve(talks: Talks, life: int) -> None:
    """A server reports for duty, and has heard of no fence."""
    talks["server-0"].send(Hello("server", 0, "localhost", 900 + life, "boot", life=life))
    talks["server-0"].send(Beat(0.0, 0, 0, None, "serve", "", fences=0))


def test_a_server_that_is_started_again_hears_who_was_lost(coordinate):
    talks = coordinate(peers=False)
    serve(talks, 1)
    for rank in (0, 1):
        talks.hello(rank, 1)
    talks.expect("worker-0", Roll)
    talks["agent-0"].send(Lost("worker-1", "killed", 1))
    lost = Fence("worker-1", 2, 0)
    assert talks.expect("server-0", Fence) == lost
    serve(talks, 2)
    assert talks.expect("server-0", Fence) == lost
    talks["server-0"].send(Beat(0.0, 0, 0, None, "serve", "", fences=1))
    talks["agent-0"].send(Lost("worker-0", "killed", 1))
    assert talks.expect("server-0", Fence) == Fence("worker-0", 2, 1), "confirmed, so not resent"


def test_a_server_that_is_started_again_at_the_end_is_dismissed(coordinate):
    talks = coordinate(peers=False)
    serve(talks, 1)
    for rank in (0, 1):
        talks.hello(rank, 1)
    talks.expect("worker-0", Roll)
    for rank in (0, 1):
        talks[f"worker-{rank}"].send(Goodbye(1, 1))
    talks.expect("server-0", Dismiss)
    serve(talks, 2)
    talks.expect("server-0", Dismiss)
