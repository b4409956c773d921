"""The messages of collectives: what they carry to whom, and how many they are."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.collectives import ALLREDUCE, BY_KIND, ExchangeTable, by_hosts, ring_reduce_scatter
from manyhands.costs import BETWEEN_WORKERS, Collective, sent_per_worker

every = pytest.mark.parametrize("name", ALLREDUCE)


def carry_out(exchange: ExchangeTable, vectors: list[list[int]]) -> list[list[int]]:
    """What every worker has after all rounds.

    A worker goes on as far as messages have arrived; if none can, there is a deadlock.
    """
    waiting = [deque(exchange.rounds(rank)) for rank in range(exchange.workers)]
    sent = [False] * exchange.workers
    under_way: dict[tuple[int, int], deque[list[int]]] = {}
    while any(waiting):
        moved = False
        for rank, rounds in enumerate(waiting):
            if not rounds:
                continue
            current, size = rounds[0], len(vectors[rank])
            if current.sends is not None and not sent[rank]:
                begin, end = exchange.bounds(size, current.sends)
                pair = (rank, current.sends.peer)
                under_way.setdefault(pair, deque()).append(vectors[rank][begin:end])
                sent[rank] = moved = True
            if current.receives is not None:
                pair = (current.receives.peer, rank)
                if not under_way.get(pair):
                    continue
                begin, end = exchange.bounds(size, current.receives)
                received = under_way[pair].popleft()
                assert len(received) == end - begin
                own = vectors[rank][begin:end]
                adds = current.receives.adds
                vectors[rank][begin:end] = (
                    [a + b for a, b in zip(own, received, strict=True)] if adds else received
                )
            rounds.popleft()
            sent[rank] = False
            moved = True
        assert moved, "a deadlock"
    assert not any(under_way.values()), "every message is received"
    return vectors


@every
@given(workers=st.integers(1, 17), size=st.integers(0, 40), data=st.data())
def test_an_allreduce_gives_every_worker_the_sum(name, workers, size, data):
    vectors = [
        data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))
        for _ in range(workers)
    ]
    total = [sum(column) for column in zip(*vectors, strict=True)] if size else []
    found = carry_out(ALLREDUCE[name](workers), vectors)
    assert found == [total] * workers


@every
@pytest.mark.parametrize("workers", range(1, 20))
def test_messages_and_bytes_are_those_of_the_formula(name, workers):
    exchange = ALLREDUCE[name](workers)
    size = 5040 * 16
    sent = [
        exchange.bounds(size, one.sends)
        for rank in range(workers)
        for one in exchange.rounds(rank)
        if one.sends is not None
    ]
    cost = BETWEEN_WORKERS[name](size, workers)
    assert len(sent) == cost.messages
    assert sum(end - begin for begin, end in sent) == pytest.approx(cost.sent, rel=1e-3)
    # The longest chain of rounds is that of the worker with the most of them.
    assert max(sum(1 for _ in exchange.rounds(rank)) for rank in range(workers)) == cost.rounds


@pytest.mark.parametrize("kind", BY_KIND)
@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_other_collectives_send_the_bytes_of_their_formula(kind, workers):
    workers = 2 if kind == "send" else workers
    exchange, size = BY_KIND[kind](workers), 840
    sent = 0
    for rank in range(workers):
        for one in exchange.rounds(rank):
            if one.sends is not None:
                begin, end = exchange.bounds(size, one.sends)
                sent += end - begin
    assert sent / workers == sent_per_worker(Collective(kind, size), workers)
    carry_out(exchange, [[0] * size for _ in range(workers)])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_halves_of_the_ring_and_the_tree_do_what_their_names_say(workers):
    size = 5 * workers
    vectors = [[rank + 1] * size for rank in range(workers)]
    total = sum(range(1, workers + 1))
    for scatter, ahead in ((ring_reduce_scatter, 1), (BY_KIND["reduce_scatter"], 0)):
        for rank, vector in enumerate(carry_out(scatter(workers), [[*one] for one in vectors])):
            own = (rank + ahead) % workers
            assert vector[5 * own : 5 * own + 5] == [total] * 5
    parts = [[0] * size for _ in range(workers)]
    for rank, vector in enumerate(parts):
        own = (rank + 1) % workers
        vector[5 * own : 5 * own + 5] = [own] * 5
    gathered = carry_out(BY_KIND["all_gather"](workers), parts)
    assert gathered == [[number for number in range(workers) for _ in range(5)]] * workers
    sent = carry_out(BY_KIND["broadcast"](workers), [[rank] for rank in range(workers)])
    assert sent == [[0]] * workers


def test_numbers_of_workers_that_no_exchange_has_are_refused():
    for make in (*ALLREDUCE.values(), BY_KIND["all_to_all"]):
        with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
            make(0)
    with pytest.raises(ValueError, match="between 2 workers, got 3"):
        BY_KIND["send"](3)


@given(
    hosts=st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
        lambda drawn: st.permutations([*range(drawn[0])] * drawn[1])
    ),
    size=st.integers(0, 40),
    data=st.data(),
)
def test_hosts_that_sum_first_give_every_worker_the_sum(hosts, size, data):
    vectors = [data.draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size)) for _ in hosts]
    total = [sum(column) for column in zip(*vectors, strict=True)] if size else []
    assert carry_out(by_hosts(hosts), vectors) == [total] * len(hosts)


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcabc", "aaabbb", "abba"])
def test_hosts_that_sum_first_send_each_number_once_for_each_host(hosts):
    exchange, size = by_hosts(hosts), 5040
    between = total = 0
    for rank in range(len(hosts)):
        for one in exchange.rounds(rank):
            begin, end = exchange.bounds(size, one.sends)
            total += end - begin
            between += (end - begin) * (hosts[one.sends.peer] != hosts[rank])
    assert total == 2 * size * (len(hosts) - 1)
    assert between == 2 * size * (len(set(hosts)) - 1)


@pytest.mark.parametrize("hosts", ["a", "aaa", "abc", "aab", "aabc"])
def test_other_hosts_are_one_ring(hosts):
    found, wanted = by_hosts(hosts), ALLREDUCE["ring"](len(hosts))
    for rank in range(len(hosts)):
        assert list(found.rounds(rank)) == list(wanted.rounds(rank))
