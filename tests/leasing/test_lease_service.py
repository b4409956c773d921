"""The lease service answers every request, and gives every task to a present worker."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.wire.leasing import Ask, Commit, Evaluate, Granted, Nothing, Over, Saved, Sum, Tally


class Workers:
    """Workers of a lease service, which act when a test asks them to."""

    def __init__(self, count: int, epochs: int, *, evaluates: bool, lockstep: bool = False) -> None:
        samples = 2 * count
        self.book = Leases(
            samples, samples, count, epochs * samples, pauses=evaluates, lockstep=lockstep
        )
        self.service = LeaseService(self.book, evaluates=evaluates, lockstep=lockstep)
        self.told: dict[str, list] = defaultdict(list)
        self.names = [f"worker-{rank}" for rank in range(count)]
        self.service.open(self.names)

    def deliver(self, letters) -> None:
        for worker, message in letters:
            self.told[worker].append(message)

    def say(self, worker: str, *messages) -> None:
        for message in messages:
            self.deliver(self.service.hear(worker, message))

    def lose(self, worker: str) -> None:
        self.told[worker].clear()
        self.deliver(self.service.lose(worker))

    def replace(self, worker: str) -> None:
        self.lose(worker)
        self.deliver(self.service.admit(worker))

    def take(self, worker: str):
        return self.told[worker].pop(0) if self.told[worker] else None

    def train_an_epoch(self) -> None:
        for name in self.names:
            self.say(name, Ask())
        for name in self.names:
            granted = self.take(name)
            assert isinstance(granted, Granted)
            self.say(name, Ask(), Commit(granted.number))


def test_one_worker_stores_the_model_and_the_others_stay_until_it_is_stored():
    workers = Workers(3, 1, evaluates=False)
    workers.train_an_epoch()
    assert workers.told == {"worker-0": [Over(stores=True)], "worker-1": [], "worker-2": []}
    assert not workers.service.is_over
    workers.say("worker-0", Saved())
    assert workers.service.is_over
    assert workers.told["worker-1"] == workers.told["worker-2"] == [Over(stores=False)]


def test_another_stores_the_model_if_the_first_is_lost_while_it_saves():
    workers = Workers(3, 1, evaluates=False)
    workers.train_an_epoch()
    workers.lose("worker-0")
    assert workers.told["worker-1"] == [Over(stores=True)]
    workers.lose("worker-1")
    assert workers.told["worker-2"] == [Over(stores=True)]
    workers.say("worker-1", Saved())
    assert not workers.service.is_over, "a worker that is lost has stored nothing"
    workers.say("worker-2", Saved())
    assert workers.service.is_over


def test_a_successor_stores_the_model_if_no_other_worker_is_left():
    workers = Workers(1, 1, evaluates=False)
    workers.train_an_epoch()
    workers.replace("worker-0")
    workers.say("worker-0", Ask())
    assert workers.told["worker-0"] == [Over(stores=True)]


def test_who_asks_after_the_end_is_told_that_it_is_over():
    workers = Workers(2, 1, evaluates=False)
    workers.train_an_epoch()
    workers.replace("worker-1")
    workers.say("worker-0", Saved())
    workers.say("worker-1", Ask())
    assert workers.told["worker-1"] == [Over(stores=False)]


def test_a_second_loss_during_an_evaluation_does_not_drop_a_successors_request():
    workers = Workers(3, 2, evaluates=True)
    workers.train_an_epoch()
    workers.replace("worker-1")
    workers.say("worker-1", Ask())
    workers.lose("worker-2")
    *_, cut = workers.told["worker-0"]
    assert cut == Evaluate(3, 0, 1, 6)
    workers.say("worker-0", Tally(3, (1.0, 2.0)))
    assert workers.told["worker-0"][-1] == Sum(3, (1.0, 2.0))
    assert isinstance(workers.take("worker-1"), Granted), "it was forgotten"


def test_an_evaluation_goes_on_with_successors_if_all_who_began_it_are_lost():
    workers = Workers(2, 2, evaluates=True)
    workers.train_an_epoch()
    for name in workers.names:
        workers.replace(name)
        workers.say(name, Ask())
    assert workers.take("worker-0") == Evaluate(3, 0, 1, 4)
    workers.say("worker-0", Tally(3, (1.0,)))
    assert workers.take("worker-0") == Sum(3, (1.0,))
    assert isinstance(workers.take("worker-1"), Granted)


def test_what_a_worker_says_that_was_lost_has_no_effect():
    workers = Workers(2, 1, evaluates=False)
    for name in workers.names:
        workers.say(name, Ask())
    first, second = (workers.take(name) for name in workers.names)
    workers.lose("worker-1")
    workers.say("worker-1", Commit(second.number), Ask())
    workers.say("worker-0", Ask(), Commit(first.number))
    again = workers.take("worker-0")
    assert (again.start, again.stop) == (second.start, second.stop)
    workers.say("worker-0", Ask(), Commit(again.number))
    assert workers.take("worker-0") == Over(stores=True), "the lost worker was waited for"


def test_statistics_are_added_in_the_order_of_the_ranks():
    values = {"worker-0": (1e16,), "worker-1": (1.0,), "worker-2": (-1e16,)}
    sums = set()
    for order in (("worker-0", "worker-1", "worker-2"), ("worker-2", "worker-0", "worker-1")):
        workers = Workers(3, 2, evaluates=True)
        workers.train_an_epoch()
        for name in order:
            workers.say(name, Tally(1, values[name]))
        sums.add(workers.told["worker-0"][-1])
    assert len(sums) == 1


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("evaluates", [False, True])
def test_every_run_ends_stored_for_any_losses(evaluates, lockstep):
    for seed in range(300):
        rng = random.Random(seed)  # noqa: S311 - not for secrets
        _run(rng, evaluates=evaluates, lockstep=lockstep)


def _run(rng: random.Random, *, evaluates: bool, lockstep: bool) -> None:
    count, epochs = rng.randint(1, 4), rng.randint(1, 3)
    workers = Workers(count, epochs, evaluates=evaluates, lockstep=lockstep)
    leased: dict[str, list[int]] = defaultdict(list)
    done: set[str] = set()
    for name in workers.names:
        workers.say(name, Ask())
    losses = rng.randint(0, 6)
    for _ in range(2000):
        if workers.service.is_over:
            break
        name = rng.choice(workers.names)
        if losses and rng.random() < 0.1:
            losses -= 1
            leased[name].clear()
            done.discard(name)
            workers.replace(name)
            workers.say(name, Ask())
            continue
        if leased[name] and rng.random() < 0.5:
            workers.say(name, Commit(leased[name].pop(0)))
            continue
        message = workers.take(name)
        match message:
            case Granted(number=number):
                leased[name].append(number)
                if not workers.told[name]:
                    workers.say(name, Ask(rng.choice((1, 1, 3))))
            case Evaluate(round=number):
                assert not any(leased.values()), "a cut while samples were held"
                workers.say(name, Tally(number, (1.0,)))
            case Sum():
                workers.say(name, Ask())
            case Over(stores=True):
                assert not any(leased.values())
                workers.say(name, Saved())
            case Nothing():
                assert lockstep
    assert workers.service.is_over, f"the lease service is stuck: {workers.told}"
    assert workers.book.committed == epochs * 2 * count


def early(first: int, epochs: float) -> Workers:
    """Four workers with four samples each in an epoch, of which so many begin."""
    workers = Workers(4, 2, evaluates=True)
    workers.book = Leases(16, 4, 4, 32, pauses=True)
    workers.service = LeaseService(
        workers.book, evaluates=True, lockstep=False, early=(first, epochs)
    )
    workers.service.open(workers.names)
    for name in workers.names:
        workers.say(name, Ask())
    return workers


def test_few_workers_begin_and_the_others_join_them_later():
    workers = early(2, 0.5)
    for _ in range(3):
        assert not workers.told["worker-2"]
        assert not workers.told["worker-3"]
        for name in ("worker-0", "worker-1"):
            granted = workers.take(name)
            assert isinstance(granted, Granted)
            workers.say(name, Commit(granted.number), Ask())
    # Half of the epoch is leased when the fourth pair is.
    for name in ("worker-0", "worker-1"):
        workers.say(name, Commit(workers.take(name).number), Ask())
    assert all(isinstance(workers.take(f"worker-{rank}"), Granted) for rank in (2, 3))


def test_the_others_begin_if_those_who_began_are_lost():
    workers = early(1, 0.5)
    assert not workers.told["worker-3"]
    workers.lose("worker-0")
    assert all(isinstance(workers.take(f"worker-{rank}"), Granted) for rank in (1, 2, 3))


def test_those_who_wait_to_begin_evaluate():
    workers = early(1, 2.0)
    while isinstance(granted := workers.take("worker-0"), Granted):
        workers.say("worker-0", Commit(granted.number), Ask())
    assert isinstance(granted, Evaluate)
    assert all(isinstance(workers.take(f"worker-{rank}"), Evaluate) for rank in (1, 2, 3))
