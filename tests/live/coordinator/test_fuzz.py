"""A real coordinator receives mutated and random frames, and continues to coordinate."""

import os
import random
import sys
import time

import pytest
import zmq

from manyhands.live.assignment import Assignment, Leasing
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.wire import Beat, Goodbye, Hello, Pong
from manyhands.wire.control import encode
from manyhands.wire.joining import Disband, Knock, Part
from manyhands.wire.leasing import Ask, Commit, Eject, Fence, Forgo, Granted, Tally
from support import wait_for


def mutations(count):
    """Valid messages with bytes changed, cut or doubled; noise; and messages out of place."""
    draw = random.Random(5)  # noqa: S311 - the same frames every time
    valid = [
        encode(message)
        for message in (
            Hello("worker", 9, "host", 1, "boot"),
            Beat(1.0, 2, 3, 0.5, "compute", "a line"),
            Ask(),
            Commit(3),
            Forgo(2**40),
            Tally(1, (1.0, 2.0)),
            Granted(1, 0, 0, 4, 4),
            Fence("worker-0"),
            Eject("worker-0", "words"),
            Knock("b", 1, {}),
            Part("model.safetensors", 0, 4, b"1234"),
            Disband(failed=True, words="words"),
        )
    ]
    for number in range(count):
        frame = bytearray(draw.choice(valid))
        kind = number % 4
        if kind == 0:
            frame = bytearray(draw.randbytes(draw.randrange(64)))
        elif kind == 1:
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        elif kind == 2:
            del frame[draw.randrange(len(frame)) :]
        yield bytes(frame)


@pytest.mark.parametrize(
    "count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_mutated_frames_do_not_keep_a_coordinator_from_answering(start, tmp_path, count):
    address = f"ipc://{tmp_path}/coordinator"
    (tmp_path / "trace").mkdir()
    assignment = Assignment(
        origin=Origin("", "", "", (), "job", None),
        overrides=Overrides(),
        strategy="asynchronous()",
        workers=1,
        host="localhost",
        folder=str(tmp_path),
        coordinator=address,
        private=str(tmp_path / "private"),
        store_address="",
        store_port=0,
        servers=(),
        leasing=Leasing(100, 10, 100, None, evaluates=False),
        agent=os.getpid(),
        devices=("cpu",),
    )
    assignment.write(tmp_path / "assignment.json")
    started = start(
        sys.executable, "-m", "manyhands.live.coordinator.process", tmp_path / "assignment.json"
    )
    with zmq.Context() as context, Line(address, "worker-0") as friend:
        # A stranger under a member's name and one under none of ours.
        for name in (b"worker-7.leases", b"nobody"):
            stranger = context.socket(zmq.DEALER)
            stranger.setsockopt(zmq.IDENTITY, name)
            stranger.setsockopt(zmq.SNDHWM, 0)
            stranger.connect(address)
            for frame in mutations(count // 2):
                stranger.send(frame)
            stranger.close(linger=30_000)
        answers = []

        def is_answered():
            friend.send(Beat(time.monotonic(), 0, 0, None, "start", ""))
            answers.extend(friend.receive(0.2))
            return any(isinstance(one, Pong) for one in answers)

        wait_for(is_answered, 60, "an answer")
    assert started.process.poll() is None, started.text()
    with Line(address, "agent-0") as agent:
        agent.send(Goodbye(0, 0))
        assert started.finish(20) == 0, started.text()
    assert "Traceback" not in started.text()
