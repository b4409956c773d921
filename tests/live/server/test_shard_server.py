"""A server that is started again holds what its predecessor had acknowledged, to the bit."""

import os
import time
from pathlib import Path

import pytest
import torch

from manyhands.endpoint import Parameters, Pull, Push
from manyhands.live.assignment import Assignment, eager_limit
from manyhands.live.member.progress import Progress
from manyhands.live.server.shard_server import ShardServer
from manyhands.script.origin import Origin, Overrides
from manyhands.trace import Recorder, live_header
from manyhands.transport import caller as caller_module
from manyhands.transport.caller import Caller
from manyhands.transport.shared.memory import Segment, can_share, reserve

SCRIPT = """
import torch
import manyhands as mh

job = mh.Job(
    model=lambda: torch.nn.Linear(40, 20),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    loss=lambda outputs, targets: outputs.mean(),
    data=torch.utils.data.TensorDataset(torch.zeros(64, 40), torch.zeros(64)),
    global_batch=4,
    epochs=1,
    metrics=(),
)
"""


class Bench:
    """One server, driven by hand, and two workers that call it."""

    def __init__(self, folder: Path, strategy: str, durability: str, inputs: int = 40) -> None:
        script = folder / "job.py"
        script.write_text(SCRIPT.replace("40", str(inputs)))
        self.size = 4 * (inputs * 20 + 20)
        self.held = reserve()
        self.assignment = Assignment(
            origin=Origin(str(script), "", "", (str(script),), "job", None),
            overrides=Overrides(durability=durability),
            strategy=strategy,
            workers=2,
            host="localhost",
            folder=str(folder),
            coordinator="",
            private=str(folder),
            store_address="",
            store_port=0,
            servers=(f"ipc://{folder}/server",),
            leasing=None,
            agent=os.getpid(),
            devices=("cpu",) * 2,
            journals=(self.held,),
        )
        self.server = self.start()
        self.workers = [
            Caller(
                f"worker-{rank}.1",
                {"server-0": self.assignment.servers[0]},
                eager=eager_limit(2),
                clock=time.monotonic,
            )
            for rank in range(2)
        ]

    def start(self) -> ShardServer:
        head = live_header("server", 0, clock=time.monotonic, wall=time.time)
        recorder = Recorder(head, lambda _: None, time.monotonic)
        return ShardServer(self.assignment, 0, recorder, Progress())

    def kill(self) -> None:
        """The end of a process: nothing is told to anybody, and its sockets are gone."""
        self.server._responder.close()
        self.server = self.start()

    def serve(self) -> None:
        """Handle one call."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            incoming = self.server._responder.receive(0.05)
            if incoming is not None:
                self.server._handle(self.server._gather(incoming))
                return
            for worker in self.workers:
                worker._sweep(1)
                worker._probe()
        raise TimeoutError("no call came")

    def call(self, rank: int, message: object, value: float | None = None) -> torch.Tensor:
        into = torch.zeros(self.size, dtype=torch.uint8)
        update = None if value is None else torch.full((self.size // 4,), value).view(torch.uint8)
        payload = None if update is None else update.numpy().data
        self.workers[rank].post("server-0", message, payload, into.numpy().data)
        self.serve()
        self.workers[rank].receive("server-0", 10)
        return into.view(torch.float32)

    @property
    def parameters(self) -> torch.Tensor:
        return self.server._holder.bytes.view(torch.float32).clone()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.server._responder.close()
        self.server._journal.close()
        os.close(self.held)


@pytest.fixture(autouse=True)
def fast_probes(monkeypatch):
    monkeypatch.setattr(caller_module, "PROBE", 0.1)


@pytest.fixture
def bench(tmp_path):
    benches = []

    def make(strategy, durability, inputs=40):
        benches.append(Bench(tmp_path, strategy, durability, inputs))
        return benches[-1]

    yield make
    for one in benches:
        one.close()


@pytest.mark.parametrize("durability", ["process", "power"])
def test_delay_compensation_recovers_what_pulls_have_made_it_remember(bench, durability):
    one = bench("asynchronous(delay_compensation=1.0)", durability)
    one.call(0, Pull())
    one.call(1, Pull())
    one.call(0, Push(0, 2), 0.5)
    before = one.parameters
    one.kill()
    assert torch.equal(one.parameters, before)
    one.call(1, Push(0, 2), 0.25)
    after = one.parameters
    one.kill()
    assert torch.equal(one.parameters, after)
    # The correction was computed from what worker 1 had pulled, before the kill as after it.
    moved = (after - before).abs().max()
    assert moved > 0


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize(
    ("strategy", "inputs"),
    [
        ("asynchronous()", 40),
        # Above what travels with the offer: received in slots, which are the log's own memory.
        ("asynchronous()", 15_000),
        ("synchronous()", 40),
        ("asynchronous(delay_compensation=0.5)", 40),
    ],
)
def test_it_is_killed_in_the_middle_of_rounds(bench, durability, strategy, inputs):
    one = bench(strategy, durability, inputs)
    twin_parameters = []
    for number in range(20):
        for rank in range(2):
            into = torch.zeros(one.size, dtype=torch.uint8)
            update = torch.full((one.size // 4,), 0.01 * (1 + number % 3 + rank))
            payload = update.view(torch.uint8).numpy().data
            message = Push(one.server._state.version, 2, 4 * number)
            one.workers[rank].post("server-0", message, payload, into.numpy().data)
            one.serve()
            if number % 4 == rank:
                before, state = one.parameters, one.server._state
                one.kill()
                assert torch.equal(one.parameters, before)
                assert one.server._state == state
        for rank in range(2):
            while True:
                try:
                    one.workers[rank].receive("server-0", 0.001)
                    break
                except TimeoutError:
                    incoming = one.server._responder.receive(0.01)
                    if incoming is not None:
                        one.server._handle([incoming])
        twin_parameters.append(one.parameters)
    assert one.server._state.version >= 20
    assert not torch.equal(twin_parameters[0], twin_parameters[-1])


def test_an_answer_that_waits_for_a_place_names_the_version_that_it_brings(bench):
    one = bench("asynchronous()", "process", 15_000)
    for rank in (2, 3):
        addresses = {"server-0": one.assignment.servers[0]}
        one.workers.append(
            Caller(f"worker-{rank}.1", addresses, eager=eager_limit(2), clock=time.monotonic)
        )
    rooms = [torch.zeros(one.size, dtype=torch.uint8) for _ in one.workers]
    update = torch.ones(one.size // 4).view(torch.uint8).numpy().data
    by_version = {0: one.parameters}

    def receive():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            incoming = one.server._responder.receive(0.01)
            if incoming is not None:
                return incoming
            for worker in one.workers:
                worker._sweep(1)
        raise TimeoutError("no call came")

    for rank in (0, 1):
        one.workers[rank].post("server-0", Push(0, 2), update, rooms[rank].numpy().data)
    pushes = [receive(), receive()]
    for rank in (2, 3):
        one.workers[rank].post("server-0", Pull(), None, rooms[rank].numpy().data)
        one.server._handle([receive()])
    assert len(one.server._responder._unanswered) == 2, "both places are in use"
    answered = {}
    for push in (*pushes, None):
        if push is not None:
            one.server._handle([push])
            by_version[one.server._state.version] = one.parameters
        deadline = time.monotonic() + 30
        while len(answered) < 3 + (push is None) and time.monotonic() < deadline:
            one.server._responder.receive(0.01)
            for rank in {0, 1, 2, 3} - {*answered}:
                try:
                    answered[rank] = one.workers[rank].receive("server-0", 0.01).version
                except TimeoutError:
                    continue
            if push is not None:
                break
    assert set(answered) == {0, 1, 2, 3}
    assert max(answered[2], answered[3]) > 0, "what was to be seen"
    for rank, version in answered.items():
        assert torch.equal(rooms[rank].view(torch.float32), by_version[version]), rank


def shared_mappings() -> int:
    """Mappings of memory that processes share, in this one."""
    return Path("/proc/self/maps").read_text().count("/memfd:manyhands")


@pytest.mark.skipif(not can_share(), reason="this system has no memory that can be sealed")
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()"])
def test_the_memory_of_a_worker_that_is_lost_is_not_mapped_any_longer(bench, strategy):
    one = bench(strategy, "process", 15_000)
    segment = Segment(2 * one.size)
    here = shared_mappings()
    addresses = {"server-0": one.assignment.servers[0]}
    lost = Caller(
        "worker-0.2", addresses, eager=eager_limit(2), clock=time.monotonic, segment=segment
    )
    one.workers.append(lost)
    # Under `synchronous()` it is not answered: the other worker has not called.
    lost.post("server-0", Push(0, 2), segment.memory[: one.size], segment.memory[one.size :])
    one.serve()
    assert shared_mappings() == here + 1
    one.server._fence("worker-0", 3)
    assert shared_mappings() == here
    segment.close()


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize(
    ("strategy", "inputs"), [("asynchronous()", 40), ("asynchronous()", 15_000)]
)
def test_a_refused_update_is_refused_again(bench, durability, strategy, inputs):
    one = bench(strategy, durability, inputs)
    one.call(0, Pull())
    one.call(0, Push(0, 2), 0.5)
    before = one.parameters
    one.call(1, Push(0, 2), float("nan"))
    assert torch.equal(one.parameters, before)
    one.kill()
    assert torch.equal(one.parameters, before)
    one.call(0, Push(1, 2), 0.25)
    after = one.parameters
    assert not torch.equal(after, before)
    one.kill()
    assert torch.equal(one.parameters, after)


def test_a_round_is_completed_without_it(bench):
    one = bench("synchronous()", "process")
    room = torch.zeros(one.size, dtype=torch.uint8).numpy().data
    first = one.parameters
    bad = torch.full((one.size // 4,), float("nan")).view(torch.uint8).numpy().data
    one.workers[0].post("server-0", Push(0, 2), bad, room)
    one.serve()
    one.kill()
    good = one.call(1, Push(0, 2), 1.0)
    # The mean of one update, with the weight of its samples: 2 of 4, at a rate of 0.1.
    assert torch.allclose(good, first - 0.05)
    for _ in range(100):
        one.workers[0]._sweep(1)
        one.workers[0]._probe()
        incoming = one.server._responder.receive(0.05)
        if incoming is not None:
            one.server._handle(one.server._gather(incoming))
            break
    said = one.workers[0].receive("server-0", 10)
    assert isinstance(said, Parameters)
    assert not said.applied
