"""Every sample of an epoch is trained on at least once, for any losses of workers."""

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from manyhands.leasing.leases import Lease, Leases
from manyhands.sampling.batches import BatchSizes, EvaluationPoints, deal
from manyhands.sampling.permutation import permutation, shares

WORKERS = st.integers(0, 4).map("worker-{}".format)


def all_of(leases: Leases, worker: str = "worker-0") -> list[Lease]:
    """Every lease, taken and committed one after the other, evaluations included."""
    taken = []
    while (lease := leases.take(worker)) != "over":
        if lease == "evaluate":
            leases.evaluated()
            continue
        assert isinstance(lease, Lease)
        taken.append(lease)
        assert leases.commit(worker, lease.number)
    return taken


class Book(RuleBasedStateMachine):
    """Any interleaving of workers that take, commit, die and evaluate."""

    @initialize(
        samples=st.integers(1, 30),
        batch=st.integers(1, 40),
        workers=st.integers(1, 5),
        epochs=st.integers(1, 3),
        pauses=st.booleans(),
        points=st.builds(EvaluationPoints, st.none() | st.integers(1, 70), st.booleans()),
    )
    def open(
        self,
        samples: int,
        batch: int,
        workers: int,
        epochs: int,
        pauses: bool,
        points: EvaluationPoints,
    ) -> None:
        self.samples, self.budget = samples, samples * epochs
        self.leases = Leases(samples, batch, workers, self.budget, pauses=pauses, points=points)
        self.pauses = pauses
        dealt = deal(samples, batch, self.budget, points)
        self.due = [one.dealt + one.total for one in dealt if one.evaluates]
        self.held: dict[int, tuple[str, Lease]] = {}
        self.trained: Counter[tuple[int, int]] = Counter()
        self.given: Counter[int] = Counter()
        self.evaluations = 0
        self.over = False

    @rule(worker=WORKERS)
    def take(self, worker: str) -> None:
        found = self.leases.take(worker)
        if isinstance(found, Lease):
            assert found.number not in self.held, "a lease is with one worker at a time"
            before = [done for done in self.due if done <= found.dealt]
            assert not self.pauses or len(before) == self.evaluations
            self.held[found.number] = (worker, found)
            self.given[found.number] += 1
        elif found == "wait":
            assert self.held, "there is no worker to wait for"
        else:
            assert not self.held, "an evaluation or the end comes when all is committed"
            done = self.leases.committed
            if found == "over":
                assert done == self.budget
                self.over = True
            else:
                assert self.pauses
                assert done == self.due[self.evaluations]
                self.leases.evaluated()
                self.evaluations += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        worker, lease = self.held.pop(number)
        assert self.leases.commit(worker, number)
        self.trained.update((lease.epoch, at) for at in range(lease.start, lease.stop))

    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        mine = [lease for holder, lease in self.held.values() if holder == worker]
        assert self.leases.give_back(worker) == sum(lease.samples for lease in mine)
        for lease in mine:
            del self.held[lease.number]
            assert not self.leases.commit(worker, lease.number), "it is no longer the dead one's"

    @rule(worker=WORKERS, number=st.integers(0, 200))
    def commit_what_is_not_ones_own(self, worker: str, number: int) -> None:
        if self.held.get(number, ("",))[0] != worker:
            before = self.leases.committed
            assert not self.leases.commit(worker, number)
            assert self.leases.committed == before

    @invariant()
    def the_sums_are_right(self) -> None:
        if not hasattr(self, "leases"):
            return
        assert self.leases.committed == self.trained.total()
        assert self.leases.held == len(self.held)
        again = sum(count - 1 for count in self.given.values())
        assert (self.leases.repeated > 0) == (again > 0)

    def teardown(self) -> None:
        """Whatever happened, the rest can be done, and every sample was trained on."""
        if not hasattr(self, "leases"):
            return
        for worker, lease in self.held.values():
            assert self.leases.commit(worker, lease.number)
            self.trained.update((lease.epoch, at) for at in range(lease.start, lease.stop))
        for lease in all_of(self.leases, "last"):
            self.trained.update((lease.epoch, at) for at in range(lease.start, lease.stop))
        epochs = self.budget // self.samples
        expected = {(epoch, at) for epoch in range(epochs) for at in range(self.samples)}
        assert set(self.trained) == expected
        assert set(self.trained.values()) == {1}, "committed twice"
        assert self.leases.committed == self.budget


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 70),
    workers=st.integers(1, 9),
    budget=st.integers(1, 200),
    pauses=st.booleans(),
)
def test_without_deaths_the_budget_is_met_exactly_and_in_order(
    samples: int, batch: int, workers: int, budget: int, pauses: bool
) -> None:
    leases = Leases(samples, batch, workers, budget, pauses=pauses)
    taken = all_of(leases)
    assert leases.committed == sum(lease.samples for lease in taken) == budget
    assert leases.repeated == 0
    assert [lease.number for lease in taken] == list(range(len(taken)))
    for epoch, of_epoch in groupby(taken, key=lambda lease: lease.epoch):
        at = 0
        for lease in of_epoch:
            assert lease.start == at
            assert lease.samples > 0
            at = lease.stop
        assert at == samples or epoch == taken[-1].epoch


@given(
    samples=st.integers(1, 40),
    sizes=st.tuples(st.integers(1, 50), st.integers(0, 120), st.integers(1, 50)).map(
        lambda drawn: BatchSizes(((0, drawn[0]), drawn[1:]))
    ),
    seed=st.integers(0, 2**40),
    workers=st.integers(1, 5),
    budget=st.integers(1, 120),
)
def test_leases_are_the_parts_that_lockstep_workers_get(
    samples: int, sizes: BatchSizes, seed: int, workers: int, budget: int
) -> None:
    taken = all_of(Leases(samples, sizes, workers, budget))
    ranks = [shares(samples, sizes, seed, rank, workers, budget) for rank in range(workers)]
    dealt = [share for step in zip(*ranks, strict=True) for share in step if share.samples]
    for lease, share in zip(taken, dealt, strict=True):
        order = permutation(samples, seed, lease.epoch)
        assert order[lease.start : lease.stop].tolist() == share.indices.tolist()
        assert (lease.total, lease.dealt) == (share.total, share.dealt)
        assert share.whole == sizes.at(lease.dealt)


def test_what_a_dead_worker_held_is_given_first() -> None:
    leases = Leases(10, 4, 2, 10)
    first = leases.take("dead")
    second = leases.take("alive")
    assert leases.give_back("dead") == 2
    assert leases.repeated == 0, "not before it is given again"
    assert leases.take("alive") == first
    assert leases.repeated == 2
    assert second != first


def test_stopping_gives_nothing_more_and_awaits_what_is_held() -> None:
    leases = Leases(10, 4, 2, 10)
    held = [leases.take("a"), leases.take("b"), leases.take("c")]
    leases.give_back("a")
    leases.stop()
    assert leases.take("b") == "wait"
    for worker, lease in (("b", held[1]), ("c", held[2])):
        assert isinstance(lease, Lease)
        assert leases.commit(worker, lease.number)
    assert leases.take("b") == "over"
    assert (leases.committed, leases.repeated) == (4, 0)


def test_after_the_stop_a_dead_worker_s_samples_are_not_given_again() -> None:
    leases = Leases(10, 4, 2, 10)
    leases.take("a")
    leases.stop()
    assert leases.give_back("a") == 2
    assert leases.take("b") == "over"
    assert leases.repeated == 0


def test_without_a_budget_there_is_always_more() -> None:
    leases = Leases(3, 2, 1, None)
    epochs = [lease.epoch for _ in range(7) if isinstance(lease := leases.take("a"), Lease)]
    assert epochs == [0, 0, 1, 1, 2, 2, 3]


def test_empty_data_is_refused() -> None:
    with pytest.raises(ValueError, match="the data is empty"):
        Leases(0, 4, 1, None)


def test_by_rank_no_worker_gets_a_part_of_a_later_batch_before_one_of_an_earlier():
    book = Leases(24, 6, 3, None, lockstep=True, by_rank=True)
    first = [book.take(f"worker-{rank}") for rank in range(3)]
    assert [(lease.start, lease.stop) for lease in first] == [(0, 2), (2, 4), (4, 6)]
    for rank, lease in enumerate(first):
        book.commit(f"worker-{rank}", lease.number)
    ahead = book.take("worker-0")
    assert ahead.start == 6
    book.give_back("worker-2")
    # The second batch was cut; worker 1 takes its own part of it before that of who is gone.
    assert [book.take("worker-1").start for _ in range(2)] == [8, 10]
    assert book.take("worker-1").start == 14


@pytest.mark.parametrize("by_rank", [False, True])
def test_a_pause_comes_after_the_global_batch_that_was_begun(by_rank: bool) -> None:
    leases = Leases(20, 4, 2, 20, pauses=True, lockstep=True, by_rank=by_rank)
    leases.pause()
    first = leases.take("worker-0")
    assert isinstance(first, Lease), "before the first lease there is nothing to evaluate"
    leases.pause()
    assert leases.commit("worker-0", first.number)
    second = leases.take("worker-1")
    assert isinstance(second, Lease)
    assert second.dealt == first.dealt, "the batch is completed first"
    assert leases.take("worker-0") == "wait"
    assert leases.commit("worker-1", second.number)
    assert leases.take("worker-0") == "evaluate"
    leases.evaluated()
    taken = all_of(leases) if not by_rank else []
    assert by_rank or [lease.dealt for lease in taken] == [4, 4, 8, 8, 12, 12, 16, 16]


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("end", [0, 1, 8, 9, 13, 16])
@pytest.mark.parametrize("found_by", [0, 1, 2, 3])
def test_a_stream_is_leased_to_its_end_and_no_further(
    end: int, found_by: int, *, lockstep: bool
) -> None:
    """A worker reads the end at some time; what was leased beyond it counts nothing."""
    leases = Leases(1 << 62, 8, 3, None, lockstep=lockstep)
    held = []
    for number in range(6 if end > 8 else 3):
        lease = leases.take(f"worker-{number % 3}")
        assert isinstance(lease, Lease)
        held.append(lease)
    for lease in held[:found_by]:
        if lease.stop <= end:
            assert leases.commit(f"worker-{lease.number % 3}", lease.number)
    leases.end(end)
    leases.end(end)
    leases.give_back("worker-1")
    while isinstance(lease := leases.take("worker-0"), Lease):
        assert lease.stop <= end
        assert lease.total == min(8, end - lease.dealt) > 0
        leases.commit("worker-0", lease.number)
    for lease in held:
        leases.commit(f"worker-{lease.number % 3}", lease.number)
    assert leases.outlook() == "over"
    assert leases.committed == end
    assert leases.lost == 0
    assert leases.held == 0


def test_parts_follow_the_speeds_that_commits_report() -> None:
    leases = Leases(96, 24, 3, 96 * 10, lockstep=True, by_rank=True, by_speed=True)
    names = [f"worker-{rank}" for rank in range(3)]
    sizes = []
    for step in range(40):
        taken = [leases.take(name) for name in names]
        assert all(isinstance(lease, Lease) for lease in taken)
        # One after the other, without a gap.
        assert [lease.start for lease in taken[1:]] == [lease.stop for lease in taken[:-1]]
        assert sum(lease.samples for lease in taken) == taken[0].total == 24
        sizes.append([lease.samples for lease in taken])
        for rank, lease in enumerate(taken):
            slow = rank == (0 if step < 20 else 2)
            assert leases.commit(names[rank], lease.number, lease.samples * (3 if slow else 1))
        if step == 13:
            # A successor continues with the same shares.
            state, leases = (
                leases.state(),
                Leases(96, 24, 3, 96 * 10, lockstep=True, by_rank=True, by_speed=True),
            )
            leases.restore(state)
    assert sizes[:5] == [[8, 8, 8]] * 5
    assert sizes[5:20] == [[4, 10, 10]] * 15
    assert sizes[30:] == [[10, 10, 4]] * 10
    assert leases.take(names[0]) == "over"
