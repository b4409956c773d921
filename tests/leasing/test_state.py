"""A lease service that is restored from a state decides as the one that the state was taken of."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases, LeasesState
from manyhands.sampling.batches import BatchSizes, EvaluationPoints
from manyhands.stopping import EarlyStopping, Improvement, ImprovementState
from manyhands.wire.leasing import (
    Ask,
    Commit,
    Enough,
    Evaluate,
    Forgo,
    Granted,
    Over,
    Saved,
    StreamEnded,
    Tally,
)


def stored(state):
    """The state as it is read from a file: through JSON and msgpack."""
    kind = type(state)
    text = msgspec.json.decode(msgspec.json.encode(state), type=kind)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(text), type=kind)


class Pair:
    """Two services that receive the same; the second is replaced by a restored one now and then."""

    def __init__(self, draw: random.Random) -> None:
        self.workers = draw.randint(1, 4)
        self.lockstep = draw.random() < 0.5
        samples = draw.randint(1, 20)
        sizes = draw.choice((draw.randint(1, 8), BatchSizes(((0, 3), (7, draw.randint(1, 9))))))
        points = EvaluationPoints(every=draw.choice((None, draw.randint(1, 10))), epochs=True)
        self.evaluates = draw.random() < 0.6
        self.early = (1, 0.5) if draw.random() < 0.2 else None
        budget, by_rank = draw.randint(1, 4 * samples), draw.random() < 0.4
        how = {"pauses": self.evaluates, "lockstep": self.lockstep, "by_rank": by_rank}
        self.make = lambda: LeaseService(
            Leases(samples, sizes, self.workers, budget, **how, points=points),
            evaluates=self.evaluates,
            lockstep=self.lockstep,
            early=self.early,
        )
        self.services = [self.make(), self.make()]
        self.names = [f"worker-{rank}" for rank in range(self.workers)]
        for service in self.services:
            service.open(self.names)
        self.present = set(self.names)
        self.told: dict[str, list] = {name: [] for name in self.names}
        self.held: dict[str, list[int]] = {name: [] for name in self.names}
        self.asks = dict.fromkeys(self.names, False)

    def both(self, method: str, *words) -> None:
        answers = [getattr(service, method)(*words) for service in self.services]
        assert answers[0] == answers[1]
        for worker, message in answers[0]:
            self.told[worker].append(message)
            if isinstance(message, Granted):
                self.held[worker].append(message.number)
                self.asks[worker] = False
            elif isinstance(message, Evaluate | Over):
                self.asks[worker] = False

    def restore(self) -> None:
        state = stored(self.services[1].state())
        self.services[1] = self.make()
        self.services[1].restore(state)
        assert self.services[1].state() == state
        assert self.services[0].state() == state

    def act(self, draw: random.Random) -> None:
        worker = draw.choice(self.names)
        if worker not in self.present:
            self.present.add(worker)
            self.both("admit", worker)
            return
        kinds = "ask", "ask", "ask", "commit", "commit", "forgo", "tally", "lose", "rare"
        match draw.choice(kinds):
            case "ask" if not self.asks[worker]:
                self.asks[worker] = True
                self.both("hear", worker, Ask())
            case "commit" if self.held[worker]:
                self.both("hear", worker, Commit(self.held[worker].pop(0)))
            case "forgo" if self.held[worker]:
                self.both("hear", worker, Forgo(self.held[worker].pop(0)))
            case "tally":
                rounds = [m.round for m in self.told[worker] if isinstance(m, Evaluate)]
                if rounds:
                    self.both("hear", worker, Tally(rounds[-1], (1.0, float(draw.randint(0, 9)))))
                if Over(stores=True) in self.told[worker]:
                    self.both("hear", worker, Saved())
            case "lose" if draw.random() < 0.3:
                self.present.discard(worker)
                self.told[worker], self.held[worker], self.asks[worker] = [], [], False
                self.both("lose", worker)
            case "rare" if draw.random() < 0.1:
                what = draw.choice(("stop", "pause", "enough", "end"))
                if what in ("stop", "pause"):
                    self.both(what)
                else:
                    message = Enough() if what == "enough" else StreamEnded(draw.randint(1, 30))
                    self.both("hear", worker, message)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_restored_service_gives_the_same_answers(seed):
    draw = random.Random(seed)  # noqa: S311 - the same every time
    pair = Pair(draw)
    for _ in range(120):
        pair.act(draw)
        if draw.random() < 0.2:
            pair.restore()


def drained(leases: Leases, worker: str) -> list[tuple[int, int]]:
    """Positions of the run that a single worker is given until there are no more."""
    found = []
    while not isinstance(lease := leases.take(worker), str):
        found.append((lease.epoch, lease.start, lease.stop))
        leases.commit(worker, lease.number)
        if leases.outlook() == "evaluate":
            leases.evaluated()
    return found


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_from_an_evaluation_another_number_of_workers_continues(lockstep, workers):
    leases = Leases(10, 4, 3, 30, pauses=True, lockstep=lockstep)
    while not isinstance(lease := leases.take("worker-0"), str):
        leases.commit("worker-0", lease.number)
    assert leases.outlook() == "evaluate"
    leases.evaluated()
    successor = Leases(10, 4, workers, 30, pauses=True, lockstep=lockstep)
    successor.restore(stored(leases.state()))
    assert successor.committed == 10
    covered = [
        (epoch, place)
        for epoch, start, stop in drained(successor, "worker-0")
        for place in range(start, stop)
    ]
    assert covered == [(epoch, place) for epoch in (1, 2) for place in range(10)]
    assert successor.committed == 30
    # Its own state holds as well, in the middle of a batch.
    again = Leases(10, 4, workers, 30, pauses=True, lockstep=lockstep)
    again.restore(successor.state())
    assert again.outlook() == "over"


def test_in_the_middle_of_a_batch_the_number_of_workers_must_be_the_same():
    leases = Leases(10, 4, 2, 30)
    leases.take("worker-0")
    state = stored(leases.state())
    assert isinstance(state, LeasesState)
    with pytest.raises(ValueError, match="divided among 2 workers, got 3"):
        Leases(10, 4, 3, 30).restore(state)
    same = Leases(10, 4, 2, 30)
    same.restore(state)
    assert same.is_held("worker-0", 0)
    assert same.take("worker-1") == leases.take("worker-1")


def test_early_stopping_continues_from_its_state():
    rule = EarlyStopping("loss", patience=2)
    first = Improvement(rule)
    assert stored(first.state()) == ImprovementState(None, 0)
    assert [first.is_over({"loss": value}) for value in (1.0, 2.0)] == [False, False]
    second = Improvement(rule)
    second.restore(stored(first.state()))
    assert second.is_over({"loss": 1.5})
