"""A server's successor continues exactly where its predecessor was, in the middle of a round."""

import contextlib
import errno
import os
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands import lr_schedules
from manyhands.endpoint import Push
from manyhands.job import Job
from manyhands.live.server import journal_storage
from manyhands.live.server.journal import Journal
from manyhands.live.server.journal_storage import FileLog, MemoryLog
from manyhands.parameters import Holder
from manyhands.protocols import Call, Synchronous, Terms, carry_out
from manyhands.sampling.batches import BatchSizes
from manyhands.transport.shared.memory import reserve

JOB = Job(
    model=lambda: nn.Linear(3, 2),
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=TensorDataset(torch.zeros(100, 3), torch.zeros(100, dtype=torch.int64)),
    global_batch={0: 10, 1: 40},
    lr_schedule=lr_schedules.linear(3),
    clip=0.1,
    epochs=3,
)


@pytest.fixture(params=["process", "memory", "power"])
def open_journal(request, tmp_path):
    """Opens the same journal anew, as a successor does."""
    with contextlib.ExitStack() as stack:
        held = reserve()
        stack.callback(os.close, held)

        def make(size):
            if request.param == "memory":
                journal = Journal(MemoryLog(os.getpid(), held, size, 1, 2))
            else:
                durable = request.param == "power"
                log = FileLog(tmp_path, "server-0", size, durable=durable)
                journal = Journal(log, durable=durable)
            stack.callback(journal.close)
            return journal

        yield make


def test_it_keeps_what_the_rate_and_the_weight_depend_on(open_journal):
    protocol = Synchronous()
    first = protocol.begin(Terms(JOB.batch_sizes, 2))
    holder = Holder(JOB, 0, 1, clip=JOB.clip)
    journal = open_journal(holder.shard.nbytes)
    update = torch.randn(8, generator=torch.Generator().manual_seed(1)).view(torch.uint8)
    calls = [Call(f"worker-{n % 2}", n // 2 + 1, Push(n // 2, 20, 120 + n // 2)) for n in range(6)]
    state = first
    for number, call in enumerate(calls):
        if number == 3:
            journal.snapshot(holder, state, {}, [])
        journal.append(call, update.numpy().data)
        state, actions = protocol.on_message(state, call)
        for action in actions:
            carry_out(holder, action, update)
    journal.settle()

    successor = Holder(JOB, 0, 1, clip=JOB.clip)
    reader = open_journal(holder.shard.nbytes)
    again, _, _ = reader.recover(successor, first)
    assert again.terms.global_batch == BatchSizes(((0, 10), (100, 40)))
    assert (again.weight, again.dealt) == (0.5, 121)
    heard = list(reader.replay())
    assert [one.call for one in heard] == calls[3:]
    for one in heard:
        again, actions = protocol.on_message(again, one.call)
        for action in actions:
            carry_out(successor, action, one.payload)
    assert again == state
    assert torch.equal(successor.bytes, holder.bytes)


def push(number):
    return Call("worker-0.1", number, Push(number - 1, 4))


def test_a_payload_that_was_received_into_the_log_is_written_down_without_a_copy():
    held = reserve()
    try:
        journal = Journal(MemoryLog(os.getpid(), held, 5000, 1, 2))
        place = journal.supply()
        place[:] = b"7" * 5000
        assert journal.append(push(1), place)
        assert not journal.append(push(2), memoryview(bytearray(b"8" * 5000)))
        successor = Journal(MemoryLog(os.getpid(), held, 5000, 1, 2))
        heard = list(successor.replay())
        assert [bytes(one.payload.numpy()[:1]) for one in heard] == [b"7", b"8"]
        # The successor writes behind what it heard, and not over it.
        successor.append(push(3), memoryview(bytearray(b"9" * 5000)))
        assert [bytes(one.payload.numpy()[:1]) for one in heard] == [b"7", b"8"]
        journal.close()
        successor.close()
    finally:
        os.close(held)


def test_snapshots_in_memory_are_written_in_turn_and_a_torn_one_does_not_count():
    held = reserve()
    try:
        holder = Holder(JOB, 0, 1)
        size = holder.shard.nbytes
        state = Synchronous().begin(Terms(JOB.batch_sizes, 2))
        log = MemoryLog(os.getpid(), held, size, 1, 2)
        journal = Journal(log)
        for number in range(3):
            holder.bytes.fill_(number)
            journal.snapshot(holder, state, {"worker-0.1": number}, [])
        expected = holder.bytes.clone()
        # Killed while the fourth is being written: its head is not there.
        log._area(log._next, 4096)[:32] = bytes(32)
        log._area(log._next, 4096)[32:64] = b"x" * 32
        successor = Holder(JOB, 0, 1)
        reader = Journal(MemoryLog(os.getpid(), held, size, 1, 2))
        _, done, _ = reader.recover(successor, state)
        assert done == {"worker-0.1": 2}
        assert torch.equal(successor.bytes, expected)
        journal.close()
        reader.close()
    finally:
        os.close(held)


def test_a_write_that_the_system_cuts_short_is_completed(tmp_path, monkeypatch):
    whole = os.pwrite
    monkeypatch.setattr(
        journal_storage.os, "pwrite", lambda file, data, at: whole(file, data[:1000], at)
    )
    journal = Journal(FileLog(tmp_path, "server-0", 4096))
    payload = bytes(range(256)) * 16
    journal.append(push(1), memoryview(payload))
    journal.settle()
    journal.close()
    reader = Journal(FileLog(tmp_path, "server-0", 4096))
    assert [bytes(one.payload.numpy()) for one in reader.replay()] == [payload]
    reader.close()


def test_a_full_disk_makes_the_server_wait_and_say_so(tmp_path, monkeypatch):
    whole, full, said = os.pwrite, threading.Event(), []
    full.set()

    def pwrite(file, data, at):
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(file, data, at)

    def say(words):
        said.append(words)
        full.clear()

    monkeypatch.setattr(journal_storage.os, "pwrite", pwrite)
    monkeypatch.setattr(journal_storage, "_PAUSE", 0.001)
    journal = Journal(FileLog(tmp_path, "server-0", 4096, say=say))
    journal.append(push(1), memoryview(bytes(4096)))
    journal.settle()
    journal.close()
    assert "No space left on device. The server waits" in said[0]
    assert "can be written again" in said[1]
    reader = Journal(FileLog(tmp_path, "server-0", 4096))
    assert len(list(reader.replay())) == 1
    reader.close()


def test_what_a_loss_of_power_tore_is_not_heard(tmp_path):
    journal = Journal(FileLog(tmp_path, "server-0", 4096, durable=True), durable=True)
    for number in (1, 2):
        journal.append(push(number), memoryview(bytes(4096)))
    journal.settle()
    journal.close()
    file = tmp_path / "journal" / "server-0.log"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    reader = Journal(FileLog(tmp_path, "server-0", 4096, durable=True), durable=True)
    assert [one.call.number for one in reader.replay()] == [1]
    reader.close()


def test_calls_that_are_written_down_together_share_a_synchronisation(tmp_path, monkeypatch):
    syncs = []
    monkeypatch.setattr(journal_storage.os, "fdatasync", syncs.append)
    journal = Journal(FileLog(tmp_path, "server-0", 64, durable=True), durable=True)
    for number in (1, 2, 3):
        journal.append(push(number), memoryview(bytes(64)))
    assert not syncs
    journal.settle()
    journal.settle()
    assert len(syncs) == 1
    journal.close()


def test_snapshots_of_a_large_state_are_taken_seldom(tmp_path):
    update = 1 << 30
    log = FileLog(tmp_path, "server-0", update)
    # Adam: parameters and two moments. Writing snapshots costs at most half of writing calls.
    assert log.limit(3 * update) >= 5
    log.close()
