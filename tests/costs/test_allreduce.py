"""The formulas of allreduce against a simulation of every message, and against the literature."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import costs, units
from manyhands.costs import BETWEEN_WORKERS, AllreduceCost, LinkSpeed

WORKERS = [*range(1, 18), 31, 32, 33]
SIZE = 7 * 720720
"""Bytes; divisible by many numbers of parts."""


@dataclass
class Simulation:
    """Workers with a vector in parts; a part is the multiset of the workers that are in its sum.

    A worker has one message in each direction at a time, and no worker waits for a round to end.
    """

    workers: int
    parts: int
    latency: Fraction
    per_byte: Fraction
    per_added: Fraction
    messages: int = 0
    sent: Fraction = Fraction(0)
    ready: list[Fraction] = field(init=False)
    held: list[list[Counter]] = field(init=False)

    def __post_init__(self) -> None:
        self.ready = [Fraction(0)] * self.workers
        self.held = [[Counter([rank]) for _ in range(self.parts)] for rank in range(self.workers)]

    def exchange(self, messages: list[tuple[int, int, range | list[int], bool]]) -> None:
        """Messages (from, to, parts, whether they are added); each begins when both ends can."""
        before = list(self.ready)
        content = [[Counter(self.held[source][part]) for part in parts]
                   for source, _, parts, _ in messages]  # fmt: skip
        assert len({source for source, *_ in messages}) == len(messages)
        assert len({target for _, target, *_ in messages}) == len(messages)
        for (source, target, parts, adds), vectors in zip(messages, content, strict=True):
            size = Fraction(SIZE) * len(parts) / self.parts
            arrived = max(before[source], before[target]) + self.latency + size * self.per_byte
            self.messages += 1
            self.sent += size
            for part, vector in zip(parts, vectors, strict=True):
                own = self.held[target][part]
                self.held[target][part] = own + vector if adds else vector
            done = arrived + (size * self.per_added if adds else 0)
            self.ready[target] = max(self.ready[target], done)
            self.ready[source] = max(self.ready[source], arrived)

    def check(self) -> None:
        """Every worker has the sum of all, each counted once."""
        whole = Counter(range(self.workers))
        assert all(part == whole for vector in self.held for part in vector)


def run_tree(run: Simulation) -> None:
    distances = [2**k for k in range((run.workers - 1).bit_length())]
    for far in distances:
        for low in range(0, run.workers - far, 2 * far):
            run.exchange([(low + far, low, range(run.parts), True)])
    for far in reversed(distances):
        for low in range(0, run.workers - far, 2 * far):
            run.exchange([(low, low + far, range(run.parts), False)])


def run_ring(run: Simulation) -> None:
    n = run.workers
    for adds in (True, False):
        for turn in range(n - 1):
            shift = turn if adds else turn - 1
            run.exchange([(rank, (rank + 1) % n, [(rank - shift) % n], adds) for rank in range(n)])


def with_remainder(inner: Callable[[Simulation, int], None]) -> Callable[[Simulation], None]:
    def run_all(run: Simulation) -> None:
        power = 2 ** (run.workers.bit_length() - 1)
        beyond = range(power, run.workers)
        run.exchange([(rank, rank - power, range(run.parts), True) for rank in beyond])
        inner(run, power)
        run.exchange([(rank - power, rank, range(run.parts), False) for rank in beyond])

    return run_all


def run_butterfly(run: Simulation, power: int) -> None:
    far = 1
    while far < power:
        run.exchange([(rank, rank ^ far, range(run.parts), True) for rank in range(power)])
        far *= 2


def run_halving(run: Simulation, power: int) -> None:
    def block(rank: int, far: int) -> range:
        """The parts of a rank when workers at distances below `far` still have to exchange."""
        return range(rank // far * far, rank // far * far + far)

    far = power // 2
    while far:
        run.exchange([(rank, rank ^ far, block(rank ^ far, far), True) for rank in range(power)])
        far //= 2
    far = 1
    while far < power:
        run.exchange([(rank, rank ^ far, block(rank, far), False) for rank in range(power)])
        far *= 2


RUNS: dict[str, Callable[[Simulation], None]] = {
    "tree": run_tree,
    "butterfly": with_remainder(run_butterfly),
    "ring": run_ring,
    "halving": with_remainder(run_halving),
}


def simulated(name: str, workers: int, *link: int) -> Simulation:
    parts = {"ring": workers, "halving": 2 ** (workers.bit_length() - 1)}.get(name, 1)
    run = Simulation(workers, parts, *map(Fraction, link))
    RUNS[name](run)
    run.check()
    return run


def test_every_algorithm_is_simulated() -> None:
    assert set(RUNS) == set(BETWEEN_WORKERS)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", BETWEEN_WORKERS)
def test_a_formula_counts_what_the_messages_are(name: str, workers: int) -> None:
    cost = BETWEEN_WORKERS[name](SIZE, workers)
    run = simulated(name, workers, 1, 0, 0)
    assert cost.rounds == max(run.ready)
    assert cost.messages == run.messages
    assert cost.sent == pytest.approx(float(run.sent), rel=1e-12)
    transferred = max(simulated(name, workers, 0, 1, 0).ready)
    assert cost.transferred == pytest.approx(float(transferred), rel=1e-12)
    reduced = max(simulated(name, workers, 0, 0, 1).ready)
    assert cost.reduced == pytest.approx(float(reduced), rel=1e-12)
    link = LinkSpeed(latency=1000.0, bandwidth=1 / 3, reduction=1 / 2)
    seconds = max(simulated(name, workers, 1000, 3, 2).ready)
    assert cost.seconds(link) == pytest.approx(float(seconds), rel=1e-12)


def servers_time(workers: int, servers: int, begin: Fraction, link: tuple[int, int, int]) -> tuple:
    """Workers push parts, each server adds them up and answers: the end, messages and bytes.

    Latencies overlap; a link has one message at a time.
    """
    latency, per_byte, per_added = map(Fraction, link)
    part = Fraction(SIZE) / servers
    most = max(workers, servers)
    moment, messages, sent = begin, 0, Fraction(0)
    for direction in ("push", "answer"):
        free = {("worker", w): moment for w in range(workers)}
        free |= {("server", s): moment for s in range(servers)}
        last = moment
        for turn in range(most):
            for worker in range(workers):
                server = (worker + turn) % most
                if server < servers:
                    ends = ("worker", worker), ("server", server)
                    done = max(free[end] for end in ends) + part * per_byte
                    free |= dict.fromkeys(ends, done)
                    last = max(last, done + latency)
                    messages, sent = messages + 1, sent + part
        moment = last + ((workers - 1) * part * per_added if direction == "push" else 0)
    return moment, messages, sent


@pytest.mark.parametrize("servers", [1, 2, 4, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 12])
def test_servers_take_as_long_as_their_links(workers: int, servers: int) -> None:
    cost = costs.sharded_servers(SIZE, workers, servers)
    moment, messages, sent = servers_time(workers, servers, Fraction(0), (1000, 3, 2))
    link = LinkSpeed(latency=1000.0, bandwidth=1 / 3, reduction=1 / 2)
    assert cost.seconds(link) == pytest.approx(float(moment), rel=1e-12)
    assert (cost.messages, cost.sent) == (messages, pytest.approx(float(sent)))
    if servers == 1:
        assert costs.one_server(SIZE, workers) == cost


@pytest.mark.parametrize(("workers", "islands"), [(4, 2), (12, 3), (16, 4), (16, 1), (9, 9)])
def test_islands_are_servers_of_servers(workers: int, islands: int) -> None:
    inner, outer = (1000, 3, 2), (5000, 7, 2)
    end, messages, sent = servers_time(workers // islands, 1, Fraction(0), inner)
    end, between, sent_between = servers_time(islands, 1, end, outer)
    fast, slow = (LinkSpeed(float(a), 1 / b, 1 / c) for a, b, c in (inner, outer))
    seconds = costs.hierarchical_seconds(SIZE, workers, islands, fast, slow)
    assert seconds == pytest.approx(float(end), rel=1e-12)
    cost = costs.hierarchical_servers(SIZE, workers, islands)
    assert cost.messages == islands * messages + between
    assert cost.sent == pytest.approx(float(islands * sent + sent_between))
    alike = costs.hierarchical_seconds(SIZE, workers, islands, fast, fast)
    assert cost.seconds(fast) == pytest.approx(alike)


def test_islands_of_the_root_are_the_fastest() -> None:
    link = LinkSpeed(0.0, 1.0)
    times = {
        islands: costs.hierarchical_servers(1, 100, islands).seconds(link)
        for islands in range(1, 101)
    }
    assert min(times, key=lambda each: times[each]) == 10
    assert costs.hierarchical_servers(1, 100) == costs.hierarchical_servers(1, 100, 10)


@given(
    st.sampled_from(sorted(BETWEEN_WORKERS)),
    st.integers(0, 10**10),
    st.integers(1, 5000),
    st.floats(0, 1),
    st.floats(1e3, 1e12),
    st.floats(1e3, 1e12) | st.just(math.inf),
)
def test_the_bound_is_below_every_algorithm(name, size, workers, latency, bandwidth, reduction):
    link = LinkSpeed(latency, bandwidth, reduction)
    cost, bound = BETWEEN_WORKERS[name](size, workers), costs.lower_bound(size, workers)
    assert bound.rounds <= cost.rounds
    assert bound.messages <= cost.messages
    for term in ("transferred", "reduced", "sent"):
        assert getattr(bound, term) <= getattr(cost, term) * (1 + 1e-12)
    assert bound.seconds(link) <= cost.seconds(link) * (1 + 1e-12)


@pytest.mark.parametrize("term", ["rounds", "transferred", "reduced", "messages"])
def test_each_term_of_the_bound_is_reached(term: str) -> None:
    costs_of_all = [getattr(each(1e6, 64), term) for each in BETWEEN_WORKERS.values()]
    assert min(costs_of_all) == getattr(costs.lower_bound(1e6, 64), term)


@pytest.mark.parametrize("workers", [2, 4, 64, 1024])
def test_powers_of_two_are_as_published(workers: int) -> None:
    """The forms in Ben-Nun and Hoefler, 2019, and Thakur et al., 2005: L, G, γm and log2 P."""
    latency, gap, amount, log = 50e-6, 0.8e-9, 102.4e6, math.log2(workers)
    link = LinkSpeed(latency, 1 / gap)
    share = 2 * amount * gap * (workers - 1) / workers
    published = {
        costs.tree: 2 * latency * log + 2 * amount * gap * log,
        costs.butterfly: latency * log + amount * gap * log,
        costs.ring: 2 * latency * (workers - 1) + share,
        costs.halving: 2 * latency * log + share,
        costs.lower_bound: latency * log + share,
        costs.one_server: 2 * latency + 2 * workers * amount * gap,
    }
    for algorithm, seconds in published.items():
        assert algorithm(amount, workers).seconds(link) == pytest.approx(seconds)


def test_resnet_on_ten_gigabits() -> None:
    link = LinkSpeed(units.seconds("50us"), units.bandwidth("10gbit"))
    amount = 4 * units.count("25.6M")
    seconds = {name: each(amount, 64).seconds(link) for name, each in BETWEEN_WORKERS.items()}
    assert seconds == pytest.approx(
        {"tree": 0.98364, "butterfly": 0.49182, "ring": 0.16758, "halving": 0.16188}, rel=1e-4
    )
    # 4 servers: T = 2L + 2P·γ(m/S)·G.
    shards = costs.sharded_servers(amount, 64, 4).seconds(link)
    assert shards == pytest.approx(2 * 50e-6 + 2 * 64 * amount / 4 / 1.25e9)


def test_one_worker_exchanges_nothing() -> None:
    for algorithm in (*BETWEEN_WORKERS.values(), costs.lower_bound):
        assert algorithm(1e6, 1) == AllreduceCost(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: costs.ring(100, 0), "workers must be at least 1, got 0"),
        (lambda: costs.tree(-1, 2), "size must be at least 0 bytes, got -1"),
        (lambda: costs.sharded_servers(1, 2, 0), "servers must be at least 1, got 0"),
        (lambda: costs.hierarchical_servers(1, 4, 5), "islands must be from 1 to the 4 workers"),
        (lambda: LinkSpeed(-1.0, 1.0), "latency must be at least 0 seconds, got -1.0"),
        (lambda: LinkSpeed(0.0, 0.0), "bandwidth must be above 0 bytes per second, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
