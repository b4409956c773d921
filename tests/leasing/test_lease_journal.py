"""The journal of a virtual coordinator: what it costs with many workers, and what it restores."""

import msgspec
import pytest

from manyhands.leasing.lease_journal import LeaseInput, LeaseJournal
from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.wire.leasing import Ask


@pytest.mark.parametrize("workers", [2, 3000])
def test_snapshots_are_as_long_together_as_the_inputs(workers, monkeypatch):
    leases = Leases(workers * 10, workers, workers, workers * 10)
    service = LeaseService(leases, evaluates=False, lockstep=False)
    names = [f"worker-{rank}" for rank in range(workers)]
    service.open(names)
    sizes = []
    state = service.state

    def measured():
        found = state()
        sizes.append(len(msgspec.msgpack.encode(found)))
        return found

    monkeypatch.setattr(service, "state", measured)
    journal = LeaseJournal(service)
    inputs = 0
    for number in range(3000):
        word = LeaseInput("hear", names[number % workers], Ask())
        inputs += len(msgspec.msgpack.encode(word))
        journal.note(service, word)
        service.hear(word.worker, word.message)
    assert len(sizes) > 1, "it is shortened now and then"
    assert sum(sizes) <= 4 * max(inputs, sizes[-1]) + 16 * 16 * 50
    successor = LeaseService(leases, evaluates=False, lockstep=False)
    monkeypatch.undo()
    journal.replay(successor)
    assert successor.state() == service.state()
