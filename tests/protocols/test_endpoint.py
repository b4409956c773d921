"""What a protocol may rely on: the endpoint's contract, on the virtual cluster."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from manyhands.cluster import Cluster, Host, Link
from manyhands.endpoint import Parameters, Pull, Push
from manyhands.protocols import Answer, Asynchronous, Call, Step, Terms
from manyhands.virtual.log import Logs
from manyhands.virtual.server import Server
from manyhands.virtual.simulator.cores import Cores
from manyhands.virtual.simulator.kernel import Kernel, happens
from manyhands.virtual.simulator.member import Crashed, VirtualProcess
from manyhands.virtual.simulator.network import Network
from manyhands.virtual.worker.endpoint import HEAD, VirtualEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from manyhands.protocols import Action
    from manyhands.protocols.protocol import ServerState


class Shelf:
    """In place of a holder: bytes to which every update is added."""

    def __init__(self) -> None:
        self.bytes = torch.zeros(16, dtype=torch.uint8)
        self.revision = 0
        self.refused: dict[str, int] = {}

    def not_finite(self, update: torch.Tensor) -> str:
        """There are bytes, and no numbers."""
        del update
        return ""

    def step(self, update: torch.Tensor, *_: float) -> None:
        self.bytes += update

    def forget_worker(self, worker: str) -> None:
        """Nothing was remembered."""


@dataclass(frozen=True, repr=False)
class Recording(Asynchronous):
    """Asynchronous, and what its server heard."""

    heard = []  # noqa: RUF012 - emptied by the fixture

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Remember."""
        self.heard.append(call)
        return super().on_message(state, call)


class Stage:
    """A worker, a server and the way between them."""

    def __init__(
        self, folder: Path, latency: float = 0.5, bandwidth: float = 1e9, service: float = 0.0
    ) -> None:
        self.kernel = Kernel()
        hosts = (Host("a", 1, 0), Host("b", 1, 0))
        self.network = Network(self.kernel, Cluster(hosts, Link(bandwidth, latency)), 1e9)
        logs = Logs(folder, 1, self.kernel)
        Recording.heard.clear()
        member = VirtualProcess("server-0", "b")
        self.shelf = Shelf()
        self.server = Server(
            member,
            self.shelf,  # type: ignore[arg-type]
            Recording(),
            Terms(1, 1),
            self.kernel,
            self.network,
            Cores(self.kernel, 1),
            service,
            logs.server(member, 0),
        )
        self.start_server()
        self.worker = VirtualProcess("worker-0", "a")
        self.worker.begin()
        rng = random.Random(1)  # noqa: S311 - nothing secret is drawn
        log = logs.worker(self.worker, 0)
        servers = {"server-0": self.server}
        self.endpoint = VirtualEndpoint(self.worker, servers, self.kernel, self.network, rng, log)

    def start_server(self) -> None:
        self.server.member.begin()
        self.kernel.start(self.server.member, self.server.serve(), lambda: None)

    def kill_server(self) -> None:
        self.server.member.end(self.kernel.now)
        self.kernel.drop(self.server.member)
        self.server._cores.drop(self.server.member)
        self.network.drop(self.server.member)
        self.server.crash()

    def run(self, work: Callable[[VirtualEndpoint], Coroutine[object, object, None]]) -> float:
        self.kernel.start(self.worker, work(self.endpoint), self.kernel.finish)
        self.kernel.run()
        return self.kernel.now


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def ones(value: int = 1) -> torch.Tensor:
    return torch.full((16,), value, dtype=torch.uint8)


def test_posting_never_waits_and_a_payload_is_sent_as_it_was(stage: Stage) -> None:
    into = torch.zeros(16, dtype=torch.uint8)

    async def work(endpoint: VirtualEndpoint) -> None:
        payload = ones(3)
        endpoint.post("server-0", Push(0, 1), payload, into)
        assert endpoint.clock() == 0
        payload.fill_(77)
        assert not into.any(), "nothing is written before the answer arrives"
        assert await endpoint.receive("server-0") == Parameters(1)
        assert endpoint.clock() == pytest.approx(1.0, abs=1e-6)

    stage.run(work)
    assert torch.equal(into, ones(3))
    assert torch.equal(stage.shelf.bytes, ones(3))


def test_an_answer_is_what_the_server_had_when_it_answered(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    into = torch.zeros(16, dtype=torch.uint8)

    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Push(0, 1), ones(1), into)
        await happens(stage.kernel.timeout(0.9))
        stage.shelf.bytes.fill_(99)
        await endpoint.receive("server-0")

    stage.run(work)
    assert torch.equal(into, ones(1))


def test_calls_to_one_server_are_heard_in_order_and_answered_in_order(stage: Stage) -> None:
    async def work(endpoint: VirtualEndpoint) -> None:
        for value in range(1, 6):
            endpoint.post("server-0", Push(0, value), ones(value), ones())
        versions = [await endpoint.receive("server-0") for _ in range(5)]
        assert versions == [Parameters(version) for version in range(1, 6)]

    stage.run(work)
    assert [call.message.samples for call in Recording.heard] == [1, 2, 3, 4, 5]
    assert [call.number for call in Recording.heard] == [1, 2, 3, 4, 5]


def test_overlap_is_a_post_now_and_a_receive_later(stage: Stage) -> None:
    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Pull(), into=ones())
        await happens(stage.kernel.timeout(30))
        assert await endpoint.receive("server-0") == Parameters(0)
        assert endpoint.clock() == 30

    stage.run(work)


def test_an_answer_that_does_not_come_in_time_can_still_be_received(stage: Stage) -> None:
    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Pull(), into=ones())
        with pytest.raises(TimeoutError, match=r"server-0 did not answer within 0\.4 s"):
            await endpoint.receive("server-0", timeout=0.4)
        assert endpoint.clock() == pytest.approx(0.4)
        assert await endpoint.receive("server-0", timeout=5) == Parameters(0)
        assert endpoint.clock() == pytest.approx(1.0, abs=1e-6)

    stage.run(work)


def test_waiting_for_what_was_never_asked_is_refused(stage: Stage) -> None:
    async def work(endpoint: VirtualEndpoint) -> None:
        with pytest.raises(RuntimeError, match="no call to server-0 is pending"):
            await endpoint.receive("server-0")

    stage.run(work)


@pytest.mark.parametrize("at", [0.0, 0.2, 0.49, 0.7, 0.9, 1.0, 1.2, 1.7, 2.2])
@pytest.mark.parametrize("restart", [0.0, 0.3, 3.4])
def test_each_call_is_carried_out_once_whenever_the_server_dies(
    tmp_path: Path, at: float, restart: float
) -> None:
    stage = Stage(tmp_path, bandwidth=200.0)
    into = torch.zeros(16, dtype=torch.uint8)

    async def work(endpoint: VirtualEndpoint) -> None:
        for value in (1, 2, 4):
            endpoint.post("server-0", Push(0, value), ones(value), into)
        for _ in range(3):
            await endpoint.receive("server-0")
        endpoint.post("server-0", Push(0, 8), ones(8), into)
        assert await endpoint.receive("server-0") == Parameters(4)

    def die() -> None:
        stage.kill_server()
        stage.kernel.after(restart, stage.start_server)

    stage.kernel.after(at, die)
    stage.run(work)
    assert [call.message.samples for call in Recording.heard] == [1, 2, 4, 8]
    assert torch.equal(stage.shelf.bytes, ones(15))
    assert torch.equal(into, ones(15))


def test_an_answer_that_was_lost_is_asked_for_with_a_head_only(tmp_path: Path) -> None:
    whole = HEAD + 16
    stage = Stage(tmp_path, bandwidth=whole)
    stage.network.cut("worker-0", "server-0", 1.6, 1.7)

    async def work(endpoint: VirtualEndpoint) -> None:
        # Heard at 0.5 + 1; the answer leaves until 2.5, which meets the cut.
        endpoint.post("server-0", Push(0, 1), ones(), ones())
        assert await endpoint.receive("server-0") == Parameters(1)

    # Lost at 2, where it should have been taken in; asked again at 3; answered in 1.5.
    assert stage.run(work) == pytest.approx(3 + 0.5 + HEAD / whole + 1.5)
    assert len(Recording.heard) == 1


def test_the_dead_send_and_receive_nothing(stage: Stage) -> None:
    stage.worker.end(0.0)
    stage.endpoint.post("server-0", Push(0, 1), ones(), ones())
    with pytest.raises(Crashed):
        stage.endpoint.receive("server-0").send(None)
    assert not stage.endpoint._lines
    stage.kernel.after(9, stage.kernel.finish)
    stage.kernel.run()
    assert Recording.heard == []


def test_a_caller_that_is_fenced_is_not_heard(stage: Stage) -> None:
    stage.server.fence("worker-0", 2)
    stage.endpoint.post("server-0", Push(0, 1), ones(), ones())
    stage.kernel.after(9, stage.kernel.finish)
    stage.kernel.run()
    assert Recording.heard == []


def test_a_call_that_overtakes_a_lost_one_is_not_heard_before_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, bandwidth=100.0, service=2.0)
    other = VirtualProcess("worker-1", "a")
    other.begin()

    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Push(0, 1), ones(1), ones())
        await happens(stage.kernel.timeout(1.4))
        # The first is being served. The second waits, behind another's 300 bytes, to leave.
        args = (other, stage.server.member, 300, lambda: None, lambda: None)
        stage.network.send(*args)
        endpoint.post("server-0", Push(0, 2), ones(2), ones())
        for version in (1, 2):
            assert await endpoint.receive("server-0") == Parameters(version)

    # The first is lost with the server; the second leaves when the server is back already.
    stage.kernel.after(2.0, stage.kill_server)
    stage.kernel.after(2.1, stage.start_server)
    stage.run(work)
    assert [call.message.samples for call in Recording.heard] == [1, 2]


def test_a_call_that_was_sent_twice_is_answered_twice_and_received_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, service=3.0)
    # The first is decided at 3.5 and its answer meets the cut; at 5 both are sent again, while
    # the second is being served.
    stage.network.cut("worker-0", "server-0", 3.6, 3.7)
    into = [torch.zeros(16, dtype=torch.uint8) for _ in range(3)]

    async def work(endpoint: VirtualEndpoint) -> None:
        for value in (1, 2):
            endpoint.post("server-0", Push(0, value), ones(value), into[value])
        answers = [await endpoint.receive("server-0") for _ in range(2)]
        assert answers == [Parameters(2), Parameters(2)]
        await happens(stage.kernel.timeout(20))
        with pytest.raises(RuntimeError, match="no call to server-0 is pending"):
            await endpoint.receive("server-0")

    stage.run(work)
    assert len(Recording.heard) == 2
    assert torch.equal(stage.shelf.bytes, ones(3))
    assert torch.equal(into[1], ones(3))


@dataclass(frozen=True, repr=False)
class Patient(Asynchronous):
    """A server that answers a push only when the next one comes, whatever happens in between."""

    held = []  # noqa: RUF012 - emptied by the test

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        """Step now, answer later."""
        state, actions = super().on_message(state, call)
        steps = [action for action in actions if isinstance(action, Step)]
        answers = [action for action in actions if isinstance(action, Answer)]
        late, self.held[:] = list(self.held), answers
        return state, [*steps, *late]


def test_a_call_whose_answer_is_still_to_come_is_not_answered_twice(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    Patient.held.clear()
    stage.server._protocol = Patient()

    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Push(0, 1), ones(1), ones())
        await happens(stage.kernel.timeout(10))
        endpoint.post("server-0", Push(0, 1), ones(2), ones())
        assert await endpoint.receive("server-0") == Parameters(1)
        with pytest.raises(TimeoutError):
            await endpoint.receive("server-0", timeout=60)

    stage.kernel.after(2, stage.kill_server)
    stage.kernel.after(3, stage.start_server)
    stage.run(work)
    assert stage.server.state.version == 2


def test_an_answer_for_which_there_is_no_room_is_an_error(stage: Stage) -> None:
    async def work(endpoint: VirtualEndpoint) -> None:
        endpoint.post("server-0", Push(0, 1), ones())
        await endpoint.receive("server-0")

    with pytest.raises(ValueError, match="expected at most 0 bytes from server-0, got 16"):
        stage.run(work)
