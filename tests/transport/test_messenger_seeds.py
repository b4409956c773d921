"""The real messenger under seeds: messages that are lost, answers that are lost, restarts.

The virtual endpoint has a numbering of its own. Here the live `Caller` and `Responder` go through
the same kinds of faults: a relay between them loses messages in both directions, and the responder
is replaced by a successor that knows the numbers of its predecessor. A failing seed prints itself.
"""

import contextlib
import random
import threading
import time

import pytest
import zmq

from manyhands.endpoint import Parameters, Pull, Push
from manyhands.transport import caller as caller_module
from manyhands.transport.caller import Caller
from manyhands.transport.responder import Responder

EAGER = 1 << 12
SIZE = 5 << 19
"""Two and a half chunks."""
CALLERS = 2
CALLS = 12
HASTE = 40
"""How much faster the caller's clock runs, so that its patience ends in milliseconds."""


def draws(seed):
    return random.Random(seed)  # noqa: S311 - for faults, not for secrets


class Lossy:
    """A relay that loses whole messages, as a broken connection does."""

    def __init__(self, context, front, back, seed, loss):
        self._rng, self._loss = draws(seed), loss
        self._back, self._context = back, context
        self._front = context.socket(zmq.ROUTER)
        self._front.setsockopt(zmq.LINGER, 0)
        self._front.setsockopt(zmq.SNDHWM, 0)
        self._front.setsockopt(zmq.RCVHWM, 0)
        self._front.bind(front)
        self._backs = {}
        self.lost = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self):
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._stop.is_set():
            for socket, _ in poller.poll(5):
                frames = socket.recv_multipart()
                identity = frames[0] if socket is self._front else self._backs_name(socket)
                if identity not in self._backs:
                    self._backs[identity] = made = self._context.socket(zmq.DEALER)
                    made.setsockopt(zmq.IDENTITY, identity)
                    made.setsockopt(zmq.LINGER, 0)
                    made.setsockopt(zmq.SNDHWM, 0)
                    made.setsockopt(zmq.RCVHWM, 0)
                    made.setsockopt(zmq.RECONNECT_IVL, 5)
                    made.connect(self._back)
                    poller.register(made, zmq.POLLIN)
                if self._rng.random() < self._loss:
                    self.lost += 1
                elif socket is self._front:
                    self._backs[identity].send_multipart(frames[1:])
                else:
                    self._front.send_multipart([identity, *frames])

    def _backs_name(self, socket):
        return next(name for name, back in self._backs.items() if back is socket)

    def close(self):
        self._stop.set()
        self._thread.join()
        for back in self._backs.values():
            back.close()
        self._front.close()


class Counting:
    """A responder that carries calls out and now and then dies, with or without its last answer."""

    def __init__(self, address, seed, deaths):
        self._address, self._rng, self._deaths = address, draws(seed), deaths
        self.carried_out = []
        self._done = {}
        self.incarnation = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _begin(self):
        self.incarnation += 1
        responder = Responder(
            self._address, incarnation=self.incarnation, slots=2, size=SIZE, eager=EAGER
        )
        responder.restore(self._done)
        return responder

    def _serve(self):
        responder = self._begin()
        while not self._stop.is_set():
            call = responder.receive(0.01)
            if call is None:
                continue
            if not call.repeated:
                sent = None if call.payload is None else bytes(call.payload[:8])
                self.carried_out.append((call.sender, call.number, call.size, sent))
                self._done[call.sender] = call.number
            if self._deaths and self._rng.random() < 0.1:
                # Its successor knows which calls were executed, but not whether they were answered.
                self._deaths -= 1
                responder.close()
                responder = self._begin()
                continue
            # By its number and not by time, so that an answer that is wanted again is the same.
            fill = bytes([call.number % 256]) * call.room
            answer = memoryview(bytearray(fill)) if call.room else None
            responder.reply(call, Parameters(call.number), answer)
        responder.close()

    def close(self):
        self._stop.set()
        self._thread.join()


def exchange(caller, name, seed, failures):
    """Calls of all kinds, one after the other; each answer must be that of its call."""
    rng = draws(f"{seed} {name}")
    try:
        for number in range(1, CALLS + 1):
            size = rng.choice([0, 8, EAGER, SIZE // 2, SIZE])
            room = rng.choice([0, 8, EAGER, SIZE])
            payload = memoryview(bytearray(number.to_bytes(8, "little").ljust(size, b"\0")[:size]))
            into = memoryview(bytearray(room))
            message = Push(0, 1) if size else Pull()
            caller.post("server", message, payload if size else None, into if room else None)
            answer = caller.receive("server")
            assert answer == Parameters(number)
            assert bytes(into) == bytes([number % 256]) * room
    except BaseException as error:  # noqa: BLE001 - it is raised again where the test sees it
        failures.append(error)


def run(seed, tmp_path):
    rng = draws(seed)
    front, back = (f"ipc://{tmp_path}/{name}-{seed}" for name in ("front", "back"))
    loss, deaths = rng.choice([0.02, 0.05, 0.1]), rng.choice([0, 0, 2, 4])
    failures = []
    with contextlib.ExitStack() as stack:
        context = zmq.Context()
        stack.callback(context.term)
        server = Counting(back, seed, deaths)
        stack.callback(server.close)
        relay = Lossy(context, front, back, seed, loss)
        stack.callback(relay.close)
        threads = []
        for rank in range(CALLERS):
            caller = Caller(
                f"worker-{rank}.1",
                {"server": front},
                eager=EAGER,
                clock=lambda: HASTE * time.monotonic(),
            )
            stack.callback(caller.close)
            about = (caller, f"worker-{rank}", seed, failures)
            threads.append(threading.Thread(target=exchange, args=about, daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stands = [thread.name for thread in threads if thread.is_alive()]
        assert not stands, f"seed {seed}: {len(stands)} of {CALLERS} callers wait forever"
        if failures:
            raise AssertionError(f"seed {seed}: {failures[0]!r}") from failures[0]
        return server.carried_out, relay.lost


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(caller_module, "PROBE", 0.02)


def check(seed, tmp_path):
    carried_out, lost = run(seed, tmp_path)
    for rank in range(CALLERS):
        mine = [entry for entry in carried_out if entry[0] == f"worker-{rank}.1"]
        numbers = [number for _, number, _, _ in mine]
        assert numbers == list(range(1, CALLS + 1)), f"seed {seed}: carried out {numbers}"
        for _, number, size, sent in mine:
            expected = number.to_bytes(8, "little")[: min(8, size)] if size else None
            assert sent == expected, f"seed {seed}: call {number} brought {sent!r}"
    return lost


def test_every_call_is_carried_out_once_and_answered_under_any_of_these_seeds(hasty, tmp_path):
    assert sum(check(seed, tmp_path) for seed in range(8)) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_and_under_a_thousand_more(hasty, tmp_path):
    assert sum(check(seed, tmp_path) for seed in range(8, 1008)) > 0
