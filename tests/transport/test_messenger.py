"""Calls: exactly once, in bounded memory, only for peers with the key."""

import contextlib
import random
import secrets
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from manyhands.endpoint import Parameters, Pull, Push
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.transport import caller as caller_module
from manyhands.transport.caller import Caller, CallRefused
from manyhands.transport.listeners import endpoint, listen
from manyhands.transport.responder import Responder
from manyhands.transport.security import JobKey
from manyhands.transport.shared.memory import Segment, can_share
from manyhands.wire.envelope import CallStatus, Chunk, Grant, Offer, Refusal, open_answer, seal
from support import wait_for

SIZE = 3_000_000
EAGER = 1 << 16


class Adder:
    """A responder in a thread that counts what it carries out and answers with its payload."""

    def __init__(
        self,
        address,
        done=None,
        incarnation=1,
        key=None,
        slots=2,
        mute=0,
        outside=None,
        loses=False,
    ):
        self.responder = Responder(
            address,
            incarnation=incarnation,
            slots=slots,
            size=SIZE,
            eager=EAGER,
            key=key,
            outside=outside,
        )
        self.responder.restore(done or {})
        self.carried_out = []
        self.repeated = 0
        self.payload = memoryview(bytearray(SIZE))
        self._mute = mute
        self._loses = loses
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while not self._stop.is_set():
            call = self.responder.receive(0.02)
            if call is None:
                continue
            if call.repeated:
                self.repeated += 1
            else:
                digest = None if call.payload is None else hash(bytes(call.payload))
                self.carried_out.append((call.sender, call.number, digest))
            if len(self.carried_out) <= self._mute and not call.repeated:
                # As if killed before the answer left: the number is done, the caller unaware.
                self.responder._peers[call.sender].done = call.number
                if self._loses:
                    self.responder._peers[call.sender].answered = (call.number, call.attempt)
                self.responder._drop(call)
                self.responder._peers[call.sender].current = None
                continue
            answer = self.payload[: call.size] if call.size else self.payload
            self.responder.reply(call, Parameters(len(self.carried_out)), answer)

    def close(self):
        self._stop.set()
        self._thread.join()
        self.responder.close()


@pytest.fixture
def ending():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def fast_probes(monkeypatch):
    monkeypatch.setattr(caller_module, "PROBE", 0.1)


def adder(ending, address, **options):
    one = Adder(address, **options)
    ending.callback(one.close)
    return one


def caller(ending, address, name="worker-0", key=None, segment=None):
    addresses = {"server-0": address}
    one = Caller(name, addresses, eager=EAGER, clock=time.monotonic, key=key, segment=segment)
    ending.callback(one.close)
    return one


@pytest.mark.parametrize("size", [0, 1000, EAGER, EAGER + 1, SIZE])
def test_payloads_of_every_size_arrive_and_come_back(ending, tmp_path, size):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    server.payload[:] = secrets.token_bytes(SIZE)
    payload, into = memoryview(secrets.token_bytes(size)), memoryview(bytearray(SIZE))
    for number in range(1, 6):
        one.post("server-0", Push(number, 1), payload if size else None, into)
        assert one.receive("server-0", 10).version == number
    assert server.carried_out == [
        ("worker-0", number, hash(bytes(payload)) if size else None) for number in range(1, 6)
    ]
    expected = size or SIZE
    assert into[:expected] == server.payload[:expected]
    assert_counted(one, server, 5 * size, 5 * expected, "start/within")


def assert_counted(one, server, sent, received, kind):
    """Both sides count the same, each byte of a payload once and the envelopes around it."""
    (ours,) = one.traffic.by_peer().values()
    wait_for(
        lambda: server.responder.traffic.by_peer()["worker-0"].wire_sent >= ours.wire_received,
        5,
        "the count of the last answer",
    )
    (theirs,) = server.responder.traffic.by_peer().values()
    assert (ours.payload_sent, ours.payload_received) == (sent, received)
    assert (theirs.payload_received, theirs.payload_sent) == (sent, received)
    # A probe on a busy machine is some bytes more, whose answer may not have been read.
    assert theirs.wire_received == pytest.approx(ours.wire_sent, abs=1000)
    assert theirs.wire_sent == pytest.approx(ours.wire_received, abs=1000)
    assert 0 < ours.wire_sent - sent < 5000
    assert 0 < ours.wire_received - received < 5000
    assert one.traffic.by_kind().keys() == server.responder.traffic.by_kind().keys() == {kind}


def test_between_hosts_bytes_are_counted_as_such_and_to_the_caller_s_phase(ending):
    key = JobKey.new()
    server = adder(ending, "tcp://127.0.0.1:*", key=key)
    one = caller(ending, server.responder.address, key=key)
    one.phase = "evaluation"
    for _ in range(2):
        one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
        one.receive("server-0", 10)
    assert_counted(one, server, 0, 2 * SIZE, "evaluation/between")


def test_a_server_in_the_same_process_is_not_counted(ending, tmp_path):
    server = adder(ending, f"ipc://{tmp_path}/s")
    server.responder._own = "worker-0"
    address = {"server-0": f"ipc://{tmp_path}/s"}
    one = Caller("worker-0.3", address, eager=EAGER, clock=time.monotonic, own="server-0")
    ending.callback(one.close)
    one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    assert one.traffic.by_peer() == server.responder.traffic.by_peer() == {}


@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_call_whose_answer_is_lost_is_carried_out_once(ending, tmp_path, size):
    server = adder(ending, f"ipc://{tmp_path}/s", mute=1)
    one = caller(ending, f"ipc://{tmp_path}/s")
    payload, into = memoryview(secrets.token_bytes(size)), memoryview(bytearray(SIZE))
    one.post("server-0", Push(0, 1), payload, into)
    one.receive("server-0", 10)
    assert len(server.carried_out) == 1
    assert server.repeated >= 1


@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_successor_carries_out_what_its_predecessor_did_not(ending, tmp_path, size):
    address = f"ipc://{tmp_path}/s"
    first = Adder(address)
    one = caller(ending, address)
    payload, into = memoryview(secrets.token_bytes(size)), memoryview(bytearray(SIZE))
    one.post("server-0", Push(0, 1), payload, into)
    one.receive("server-0", 10)
    first.close()
    one.post("server-0", Push(1, 1), payload, into)
    with pytest.raises(TimeoutError):
        one.receive("server-0", 0.3)
    done = {sender: number for sender, number, _ in first.carried_out}
    second = adder(ending, address, done=done, incarnation=2)
    one.receive("server-0", 10)
    assert [number for _, number, _ in second.carried_out] == [2]


@pytest.fixture
def segment(ending):
    if not can_share():
        pytest.skip("this system has no memory that can be sealed")
    one = Segment(2 * SIZE)
    ending.callback(one.close)
    return one


@pytest.mark.parametrize("size", [1000, SIZE])
def test_what_lies_in_shared_memory_is_not_sent(ending, tmp_path, segment, size):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s", segment=segment)
    server.payload[:] = secrets.token_bytes(SIZE)
    payload, into = segment.memory[:size], segment.memory[SIZE : SIZE + size]
    for number in range(1, 4):
        payload[:] = secrets.token_bytes(size)
        one.post("server-0", Push(number, 1), payload, into)
        assert one.receive("server-0", 10).version == number
        assert server.carried_out[-1] == ("worker-0", number, hash(bytes(payload)))
        assert into == server.payload[:size]
    assert server.responder._slots._unmade == 2, "no slot was needed"
    # It counts all the same: one process has handed it to another.
    assert_counted(one, server, 3 * size, 3 * size, "start/within")


@pytest.mark.parametrize("size", [1000, SIZE])
def test_an_answer_that_is_wanted_again_is_not_written_over_what_came_of_the_first(
    ending, tmp_path, segment, size
):
    server = adder(ending, f"ipc://{tmp_path}/s", mute=1)
    one = caller(ending, f"ipc://{tmp_path}/s", segment=segment)
    payload, into = segment.memory[:size], segment.memory[SIZE : SIZE + size]
    one.post("server-0", Push(0, 1), payload, into)
    one.receive("server-0", 10)
    assert (len(server.carried_out), server.repeated) == (1, 1)
    answered_again = seal(Offer(1, 1, 0, size, Push(0, 1), None, segment.place(into)))
    into[:] = bytes(size)
    server.payload[:] = bytes([1]) * SIZE
    one._peers["server-0"].socket.send(answered_again)
    wait_for(lambda: server.repeated == 2, 5, "the second answer")
    one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    assert into == bytes(size)


@pytest.mark.parametrize("wrong", ["offset", "size", "descriptor", "process", "negative"])
def test_memory_that_is_not_shared_is_refused(ending, tmp_path, segment, wrong):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    with (tmp_path / "file").open("w+") as file:
        true = segment.place(segment.memory[:1000])
        changes = {
            "offset": {"offset": 2 * SIZE - 999},
            "size": {"size": 2000},
            "descriptor": {"descriptor": file.fileno()},
            "process": {"pid": 1 << 22},
            "negative": {"offset": -1},
        }
        place = msgspec.structs.replace(true, **changes[wrong])
        one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
        one.receive("server-0", 10)
        offer = seal(Offer(2, 0, 0, 1000, Push(0, 1), place, None))
        one._peers["server-0"].socket.send(offer)
        wait_for(lambda: server.responder.refused == 1, 5, "the refusal")
    assert [number for _, number, _ in server.carried_out] == [1]


def test_memory_is_not_looked_into_for_those_who_come_over_tcp(ending, segment):
    key = JobKey.new()
    server = adder(ending, "tcp://127.0.0.1:*", key=key)
    one = caller(ending, server.responder.address, key=key)
    place = segment.place(segment.memory[:1000])
    one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    one._peers["server-0"].socket.send(seal(Offer(2, 0, 0, 1000, Push(0, 1), place, None)))
    wait_for(lambda: server.responder.refused == 1, 5, "the refusal")


def test_a_place_is_kept_while_there_are_slots_for_all_callers(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    server = adder(ending, address, slots=2)
    payload, into = memoryview(bytes(SIZE)), memoryview(bytearray(SIZE))
    callers = [caller(ending, address, name=f"worker-{rank}") for rank in range(4)]

    def exchange(one):
        one.post("server-0", Push(0, 1), payload, into)
        one.receive("server-0", 10)

    for one in callers[:2]:
        exchange(one)
        assert one._peers["server-0"].credit
    # Now only these two have slots; the other callers are served nevertheless.
    for one in [*callers[2:], *callers, *callers]:
        exchange(one)
    assert len(server.carried_out) == 12
    assert not any(one._peers["server-0"].credit for one in callers)


def test_a_place_is_kept_after_an_answer_without_parameters(ending, tmp_path):
    """So a caller may compute while its next payload is sent: nothing of it has to be granted."""
    responder = Responder(f"ipc://{tmp_path}/s", incarnation=1, slots=2, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    pulls, *pushing = (caller(ending, f"ipc://{tmp_path}/s", f"worker-{rank}") for rank in range(3))
    payload = memoryview(secrets.token_bytes(SIZE))

    def take(*callers):
        for _ in range(1000):
            for one in callers:
                one._sweep(0)
            call = responder.receive(0.01)
            if call is not None:
                return call
        raise TimeoutError("no call came")

    # One that only reads does not count.
    pulls.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
    responder.reply(take(), Parameters(1))
    for one in pushing:
        one.post("server-0", Push(0, 1), payload)
        call = take(one)
        responder.release(call)  # as of a payload that was copied before it is answered
        responder.reply(call, Parameters(1))
        one.receive("server-0", 10)
    for one in pushing:
        one.post("server-0", Push(1, 1), payload)
    for _ in pushing:
        call = take()
        assert call.payload == payload
        responder.reply(call, Parameters(2))
    assert [one.receive("server-0", 10).version for one in pushing] == [2, 2]


def test_a_call_that_was_posted_before_the_answer_has_the_place_that_it_reserves(ending, tmp_path):
    responder = Responder(f"ipc://{tmp_path}/s", incarnation=1, slots=2, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    one = caller(ending, f"ipc://{tmp_path}/s")
    payload, replies = memoryview(secrets.token_bytes(SIZE)), []

    def take(seconds=10.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            one._sweep(0)
            if (call := responder.receive(0.005)) is not None:
                return call
        raise TimeoutError("no call came")

    one.post("server-0", Push(0, 1), payload)
    replies.append(take())
    responder.reply(replies[0], Parameters(1))
    one.post("server-0", Push(1, 1), payload)  # before it has read that answer
    assert take(0.9).payload == payload, "it must not wait for a probe"


def test_a_place_is_kept_for_the_successor_of_a_caller_that_is_gone(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    heard_by_a_predecessor = {f"worker-{rank}.0": 3 for rank in range(5)}
    server = adder(ending, address, slots=2, done=heard_by_a_predecessor)
    payload, into = memoryview(bytes(SIZE)), memoryview(bytearray(SIZE))
    for incarnation in range(1, 5):
        for rank in range(2):
            one = caller(ending, address, name=f"worker-{rank}.{incarnation}")
            for _ in range(2):
                one.post("server-0", Push(0, 1), payload, into)
                one.receive("server-0", 10)
            assert one._peers["server-0"].credit, (rank, incarnation)
            server.responder.fence(f"worker-{rank}.{incarnation}", sys.maxsize)


def test_what_waits_for_a_place_is_answered_with_what_is_there_when_it_has_one(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    responder = Responder(address, incarnation=1, slots=1, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    pushes, pulls, gone = (caller(ending, address, f"worker-{rank}.1") for rank in range(3))
    version, parameters = 1, memoryview(bytearray(b"1" * SIZE))
    into = memoryview(bytearray(SIZE))

    def take():
        for _ in range(1000):
            call = responder.receive(0.01)
            if call is not None:
                return call
            pushes._sweep(0)
        raise TimeoutError("no call came")

    def answer(call):
        responder.reply(
            call, Parameters(version), parameters, lambda: (Parameters(version), parameters)
        )

    pushes.post("server-0", Push(0, 1), memoryview(bytes(SIZE)), memoryview(bytearray(SIZE)))
    push = take()
    for one, room in ((pulls, into), (gone, memoryview(bytearray(SIZE)))):
        one.post("server-0", Pull(), None, room)
        answer(take())
    assert len(responder._unanswered) == 2, "the only place is in use"
    responder.fence("worker-2.1", sys.maxsize)
    version, parameters[:] = 2, b"2" * SIZE
    answer(push)
    pushes.receive("server-0", 10)
    deadline = time.monotonic() + 10
    while responder._unanswered and time.monotonic() < deadline:
        responder.receive(0.01)
    assert pulls.receive("server-0", 10).version == 2
    assert into == parameters
    assert not responder._unanswered


def test_a_large_payload_is_not_sent_before_a_place_is_granted(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    responder = Responder(address, incarnation=1, slots=1, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    callers = [caller(ending, address, f"worker-{rank}") for rank in range(8)]
    payload, into = memoryview(bytes(SIZE)), memoryview(bytearray(SIZE))
    for one in callers:
        one.post("server-0", Push(0, 1), payload, into)
    for _ in range(20):
        assert responder.receive(0.01) is None, "no caller has seen a grant yet"
    for one in callers:
        one._sweep(0)
    sent = [one.traffic.by_peer()["server-0"].payload_sent for one in callers]
    assert sorted(sent) == [0] * 7 + [SIZE], "one place, one payload under way"


def test_a_grant_that_is_lost_is_made_up_for(ending, tmp_path, monkeypatch):
    send, lost = Responder._send, []

    def lose_the_first_grant(self, sender, envelope):
        if isinstance(envelope, Grant) and not lost:
            lost.append(envelope)
        else:
            send(self, sender, envelope)

    monkeypatch.setattr(Responder, "_send", lose_the_first_grant)
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    one.post("server-0", Push(0, 1), memoryview(bytes(SIZE)), memoryview(bytearray(SIZE)))
    assert one.receive("server-0", 30).version == 1
    assert len(lost) == len(server.carried_out) == 1


def test_a_call_without_a_payload_does_not_lose_the_place_that_is_kept(ending, tmp_path):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    payload, into = memoryview(bytes(SIZE)), memoryview(bytearray(SIZE))
    one.post("server-0", Push(0, 1), payload, into)
    one.receive("server-0", 30)
    server.payload = server.payload[:0]
    one.post("server-0", Pull(), None, into)
    one.receive("server-0", 30)
    server.payload = memoryview(bytearray(SIZE))
    one.post("server-0", Push(1, 1), payload, into)
    assert one.receive("server-0", 30).version == 3


@pytest.mark.parametrize("size", [1000, SIZE])
def test_another_attempt_of_a_call_that_is_still_to_be_answered_is_no_other_call(
    ending, tmp_path, size
):
    responder = Responder(f"ipc://{tmp_path}/s", incarnation=1, slots=2, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    one = caller(ending, f"ipc://{tmp_path}/s")
    payload = memoryview(secrets.token_bytes(size))
    one.post("server-0", Push(0, 1), payload)

    def take(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            call = responder.receive(0.01)
            if call is not None:
                return call
            one._sweep(1)
        return None

    call = take(10)
    peer = one._peers["server-0"]
    one._renew("server-0", peer, peer.calls[1])
    assert take(0.5) is None
    assert call.payload == payload
    responder.reply(call, Parameters(7))
    assert one.receive("server-0", 10).version == 7


def test_what_comes_from_an_old_epoch_or_does_not_fit_is_refused(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    server = adder(ending, address)
    one = caller(ending, address)
    one.post("server-0", Pull(), into=memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    server.responder._peers["worker-0"].epoch = 5
    one.post("server-0", Pull(), into=memoryview(bytearray(SIZE)))
    with pytest.raises(CallRefused, match="epoch 0 is over"):
        one.receive("server-0", 10)
    one.epoch = 5
    one.post("server-0", Push(0, 1), memoryview(bytes(SIZE + 1)))
    with pytest.raises(CallRefused, match=f"expected at most {SIZE} bytes, got {SIZE + 1}"):
        one.receive("server-0", 10)


@pytest.mark.parametrize("size", [-1, -(2**63), SIZE + 1, 2**63 - 1])
def test_a_payload_of_an_impossible_size_is_refused(ending, tmp_path, size):
    server = adder(ending, f"ipc://{tmp_path}/s")
    context = zmq.Context()
    ending.callback(context.term)
    raw = context.socket(zmq.DEALER)
    ending.callback(raw.close, linger=0)
    raw.setsockopt(zmq.IDENTITY, b"worker-9")
    raw.connect(f"ipc://{tmp_path}/s")
    raw.send(seal(Offer(1, 0, 0, size, Push(0, 1))))
    assert raw.poll(10_000)
    assert open_answer(raw.recv()) == Refusal(1, f"expected at most {SIZE} bytes, got {size}")
    assert server.carried_out == []


def test_calls_to_a_predecessor_do_not_reach_its_successor(ending, tmp_path):
    address = f"ipc://{tmp_path}/s"
    first = Adder(address)
    one = caller(ending, address)
    one.epoch = 1
    one.post("server-0", Pull(), into=memoryview(bytearray(SIZE)))
    assert one.receive("server-0", 10).version == 1
    first.close()
    second = adder(ending, address, incarnation=2)
    second.responder.least = 3
    payload, into = memoryview(bytes(SIZE)), memoryview(bytearray(SIZE))
    one.post("server-0", Push(0, 1), payload, into)
    with pytest.raises(TimeoutError):
        one.receive("server-0", 1.0)
    assert second.carried_out == []
    one.give_up("server-0")
    one.reconnect("server-0")
    one.epoch = 3
    one.post("server-0", Push(0, 2), payload, into)
    assert one.receive("server-0", 10).version == 1
    assert second.carried_out == [("worker-0", 3, hash(bytes(payload)))]


def mutations(count, seed):
    """Valid frames with bytes changed, cut, doubled; and plain noise."""
    draw = random.Random(seed)  # noqa: S311 - the same frames every time
    valid = [
        seal(Offer(1, 0, 0, 0, Pull())),
        seal(Offer(7, 1, 0, 900, Push(3, 4))),
        seal(Chunk(7, 1, 0)),
        seal(Offer(2**40, 2**40, 2**40, 2**62, Push(2**60, 2**60))),
    ]
    for _ in range(count):
        frame = bytearray(draw.choice(valid))
        kind = draw.randrange(4)
        if kind == 0:
            frame = bytearray(draw.randbytes(draw.randrange(64)))
        elif kind == 1:
            del frame[draw.randrange(len(frame)) :]
        for _ in range(draw.randrange(4)):
            if frame:
                frame[draw.randrange(len(frame))] = draw.randrange(256)
        extra = [draw.randbytes(draw.randrange(200)) for _ in range(draw.randrange(3))]
        yield [bytes(frame), *extra]


def flood_a_responder(ending, folder, frames):
    address = f"ipc://{folder}/s"
    server = adder(ending, address)
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.IDENTITY, b"worker-9")
    raw.setsockopt(zmq.SNDHWM, 0)
    raw.connect(address)
    for parts in mutations(frames, seed=1):
        raw.send_multipart(parts)
    one = caller(ending, address)
    one.post("server-0", Pull(), into=memoryview(bytearray(SIZE)))
    one.receive("server-0", 120)
    # What follows the garbage is read after it, so all of it was read when this is answered.
    raw.send(seal(Offer(2**61, 0, 2**61, 0, Pull())))
    wait_for(lambda: ("worker-9", 2**61, None) in server.carried_out, 60, "all garbage read")
    raw.close(linger=0)
    context.term()
    assert server.responder.refused > frames // 4
    assert server._thread.is_alive()


def flood_a_caller(ending, folder, frames):
    address = f"ipc://{folder}/liar"
    context = zmq.Context()
    liar = context.socket(zmq.ROUTER)
    liar.setsockopt(zmq.SNDHWM, 0)
    liar.bind(address)
    one = caller(ending, address)
    into = memoryview(bytearray(SIZE))
    one.post("server-0", Push(0, 1), memoryview(bytes(SIZE)), into)
    assert liar.poll(5000)
    name = liar.recv_multipart()[0]
    for parts in mutations(frames, seed=2):
        liar.send_multipart([name, *parts])
    with pytest.raises((TimeoutError, CallRefused)):
        one.receive("server-0", 3)
    liar.close(linger=0)
    context.term()


def test_garbage_does_not_disturb_a_responder_or_a_caller(ending, tmp_path):
    flood_a_responder(ending, tmp_path, 5_000)
    flood_a_caller(ending, tmp_path, 5_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_frames_of_garbage_disturb_no_caller(ending, tmp_path):
    flood_a_responder(ending, tmp_path, 50_000)
    flood_a_caller(ending, tmp_path, 50_000)


def test_a_reply_with_more_than_there_is_room_for_is_refused_and_not_written(ending, tmp_path):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    server.payload[:] = b"\xff" * SIZE
    room = bytearray(SIZE)
    one.post("server-0", Pull(), into=memoryview(room)[: SIZE // 2])
    with pytest.raises(CallRefused, match=f"{SIZE} bytes, the buffer has {SIZE // 2}"):
        one.receive("server-0", 10.0)
    assert room[SIZE // 2 :] == bytes(SIZE - SIZE // 2)


def test_over_tcp_the_key_is_needed_and_suffices(ending):
    key, other = JobKey.new(), JobKey.new()
    with pytest.raises(ValueError, match="requires the job's key"):
        Responder("tcp://127.0.0.1:*", incarnation=1, slots=1, size=SIZE, eager=EAGER)
    server = adder(ending, "tcp://127.0.0.1:*", key=key)
    address = server.responder.address
    with pytest.raises(ValueError, match="requires the job's key"):
        Caller("worker-0", {"server-0": address}, eager=EAGER, clock=time.monotonic)
    into = memoryview(bytearray(SIZE))
    stranger = caller(ending, address, "worker-1", key=other)
    stranger.post("server-0", Pull(), into=into)
    friend = caller(ending, address, key=key)
    friend.post("server-0", Push(0, 1), memoryview(secrets.token_bytes(SIZE)), into)
    assert friend.receive("server-0", 10).version == 1
    with pytest.raises(TimeoutError):
        stranger.receive("server-0", 0.5)
    assert [sender for sender, *_ in server.carried_out] == ["worker-0"]


def test_an_answer_that_is_on_its_way_is_not_sent_again(ending, tmp_path):
    server = adder(ending, f"ipc://{tmp_path}/s")
    one = caller(ending, f"ipc://{tmp_path}/s")
    one.post("server-0", Push(0, 1), memoryview(bytes(SIZE)), memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    socket = one._peers["server-0"].socket
    for _ in range(5):
        socket.send(seal(Offer(1, 0, 0, SIZE, Push(0, 1))))
        assert open_answer(socket.recv()) == CallStatus(1, 0, SIZE, 1, answered=True)
    assert server.repeated == 0


@pytest.mark.parametrize("size", [1000, SIZE])
def test_an_answer_that_was_lost_on_its_way_is_asked_for_again(ending, tmp_path, size):
    server = adder(ending, f"ipc://{tmp_path}/s", mute=1, loses=True)
    one = caller(ending, f"ipc://{tmp_path}/s")
    one.post("server-0", Push(0, 1), memoryview(bytes(size)), memoryview(bytearray(SIZE)))
    one._peers["server-0"].calls[1].patience = 0.2
    assert one.receive("server-0", 10).version == 1
    assert (len(server.carried_out), server.repeated) == (1, 1)


def test_a_server_with_two_listeners_shares_memory_at_one_and_receives_at_the_other(
    ending, tmp_path, segment
):
    key, listener = JobKey.new(), listen("127.0.0.1")
    there = endpoint(listener)
    server = adder(ending, f"ipc://{tmp_path}/s", key=key, outside=listener)
    near = caller(ending, f"ipc://{tmp_path}/s", "worker-0", segment=segment)
    far = caller(ending, there, "worker-1", key=key, segment=segment)
    payload, into = segment.memory[:SIZE], segment.memory[SIZE:]
    payload[:] = secrets.token_bytes(SIZE)
    server.payload[:] = secrets.token_bytes(SIZE)
    for number, one in enumerate((near, far, near, far), 1):
        into[:] = bytes(SIZE)
        one.post("server-0", Push(0, 1), payload, into)
        assert one.receive("server-0", 10).version == number
        assert server.carried_out[-1][2] == hash(bytes(payload))
        assert into == server.payload
    assert server.responder._slots._unmade == 1, "only one of them needed a slot"
    offer = seal(Offer(3, 0, 0, SIZE, Push(0, 1), segment.place(payload), None))
    far._peers["server-0"].socket.send(offer)
    wait_for(lambda: server.responder.refused == 1, 5, "that memory is refused to another host")


def test_a_key_is_stored_for_its_owner_alone(tmp_path):
    key = JobKey.new()
    key.write(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert JobKey.read(tmp_path / "key").pair("listening") == key.pair("listening")
    assert key.pair("listening") != key.pair("connecting")


STRANGER_SERVER = """
    import sys, time
    from pathlib import Path
    from manyhands.transport.responder import Responder
    from manyhands.transport.security import JobKey

    key = JobKey.read(Path(sys.argv[1]))
    about = {"incarnation": 1, "slots": 2, "size": 1 << 20, "eager": 4096}
    responder = Responder("tcp://127.0.0.1:*", key=key, **about)
    Path(sys.argv[2]).write_text(responder.address)
    while True:
        call = responder.receive(0.1)
        if call is not None:
            print("CALLED", flush=True)
"""


def test_a_peer_without_the_key_causes_no_growth_even_with_unfinished_messages(
    run_script, tmp_path
):
    JobKey.new().write(tmp_path / "key")
    started = run_script(STRANGER_SERVER, str(tmp_path / "key"), str(tmp_path / "address"))
    at = Path(tmp_path / "address")
    wait_for(lambda: at.exists() and at.read_text(), 30, "the server")
    server = psutil.Process(started.process.pid)
    time.sleep(0.5)
    before = server.memory_info().rss
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.SNDHWM, 0)
    raw.connect(at.read_text())
    for _ in range(100):
        raw.send(bytes(1 << 20), zmq.SNDMORE)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert server.memory_info().rss - before < 16 << 20
        time.sleep(0.1)
    raw.close(linger=0)
    context.term()
    assert "CALLED" not in started.text()
    assert started.process.poll() is None


def test_open_answer_takes_what_seal_gives():
    from manyhands.wire.envelope import Reply

    reply = Reply(3, 4, 5, Parameters(6))
    assert open_answer(seal(reply)) == reply
    assert sys.getsizeof(seal(reply)) < 200


def test_a_call_without_room_says_so_and_is_answered_again_without_a_payload(ending, tmp_path):
    server = adder(ending, f"ipc://{tmp_path}/s", done={"worker-0": 1})
    one = caller(ending, f"ipc://{tmp_path}/s")
    rooms = []
    right = server.responder.reply

    def reply(call, message, payload=None):
        rooms.append(call.room)
        right(call, message, payload if call.room else None)

    server.responder.reply = reply
    one.post("server-0", Push(0, 1), memoryview(bytes(1000)))
    assert one.receive("server-0", 10.0) == Parameters(0)
    assert rooms == [0]
    one.post("server-0", Pull(), into=memoryview(bytearray(SIZE)))
    one.receive("server-0", 10.0)
    assert rooms == [0, SIZE]


def test_a_connection_is_made_by_the_first_call(ending, tmp_path):
    # Workers that are each other's servers know the addresses of all and call a few. ZeroMQ's
    # limit is 1,023 sockets to a context.
    adder(ending, f"ipc://{tmp_path}/s7")
    addresses = {f"server-{number}": f"ipc://{tmp_path}/s{number}" for number in range(2000)}
    before = len(list(Path("/proc/self/fd").iterdir()))
    one = Caller("worker-0", addresses, eager=EAGER, clock=time.monotonic)
    ending.callback(one.close)
    into = memoryview(bytearray(SIZE))
    one.post("server-7", Push(1, 1), None, into)
    assert one.receive("server-7", 10).version == 1
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
    assert one.traffic.by_peer().keys() == {"server-7"}, "counted for those that were called"
    one.give_up("server-8")
    assert one.traffic.by_peer().keys() == {"server-7"}


def test_a_caller_may_have_more_peers_than_zeromq_allows_by_default(ending, tmp_path):
    raise_descriptors()
    addresses = {f"server-{number}": f"ipc://{tmp_path}/s{number}" for number in range(1100)}
    one = Caller("worker-0", addresses, eager=EAGER, clock=time.monotonic)
    ending.callback(one.close)
    for name in addresses:
        one.post(name, Push(1, 1))
    assert len(one.traffic.by_peer()) == 1100


def test_a_call_that_waits_is_asked_about_ever_less_and_without_its_payload(ending, tmp_path):
    # Very many callers of a busy server wait for seconds. If each sent its payload again every
    # second, the server would have more to read the longer they wait.
    address = f"ipc://{tmp_path}/s"
    responder = Responder(address, incarnation=1, slots=2, size=SIZE, eager=EAGER)
    ending.callback(responder.close)
    one = caller(ending, address)
    one.post("server-0", Push(1, 1), memoryview(bytes(1000)), memoryview(bytearray(SIZE)))
    offers = []
    accept = responder._accept
    responder._accept = lambda sender, offer: offers.append(offer) or accept(sender, offer)
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        responder.receive(0.01)
        with contextlib.suppress(TimeoutError):
            one.receive("server-0", 0.01)
    assert 3 <= len(offers) <= 8, "after 0.1, 0.3, 0.7, 1.5 and 2.3 s"
    assert one.traffic.by_peer()["server-0"].payload_sent == 1000


def test_within_a_host_idle_connections_cost_nothing(ending, tmp_path):
    # Heartbeats of ZeroMQ go both ways on every connection: 1,000 workers and 16 servers had 64,000
    # messages a second of them.
    server = adder(ending, f"ipc://{tmp_path}/s", outside=listen("127.0.0.1"), key=JobKey.new())
    one = caller(ending, f"ipc://{tmp_path}/s")
    one.post("server-0", Pull(), None, memoryview(bytearray(SIZE)))
    one.receive("server-0", 10)
    listeners = server.responder._listeners
    inside = listeners.for_peer("worker-0")
    assert one._peers["server-0"].socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
    beats = {
        listener.getsockopt(zmq.HEARTBEAT_IVL)
        for listener in listeners._sockets
        if listener is not inside
    }
    assert inside.getsockopt(zmq.HEARTBEAT_IVL) == 0
    assert beats == {10_000}, "other hosts may vanish without a word"
