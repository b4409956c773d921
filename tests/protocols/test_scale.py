"""A server's decision costs as much with a thousand workers as with ten."""

import gc
import time

import pytest

from manyhands.endpoint import Pull, Push
from manyhands.protocols import Call, StrategyProtocol, Terms
from manyhands.protocols.parts.persistent_map import PersistentMap
from manyhands.strategies import strategy

PROTOCOLS = [
    "synchronous()",
    "softsync(wait_for=7, damping=root)",
    "ssp(staleness=2)",
    "asynchronous(damping=inverse)",
    "averaging()",
    "local_sgd()",
    "diloco()",
    "easgd()",
]


def microseconds_per_push(protocol: StrategyProtocol, workers: int, pushes: int = 2000) -> float:
    state, number = protocol.begin(Terms(workers, workers)), 1
    names = [f"worker-{rank}.1" for rank in range(workers)]
    for name in names:
        state, _ = protocol.on_message(state, Call(name, number, Pull()))
    begun = 0.0
    for round_ in range(1 + pushes // workers):
        begun = time.process_time() if round_ == 1 else begun
        number += 1
        for name in names:
            call = Call(name, number, Push(state.version, 1))
            assert protocol.early(state, call) <= 0
            state, _ = protocol.on_message(state, call)
    return (time.process_time() - begun) / (pushes // workers * workers) * 1e6


@pytest.mark.timed
@pytest.mark.parametrize("text", PROTOCOLS)
def test_a_decision_costs_as_much_with_a_thousand_workers_as_with_ten(text):
    protocol = strategy(text)
    assert isinstance(protocol, StrategyProtocol)
    gc.disable()  # it would look through all that the tests have loaded, and not for our sake
    try:
        # In turns, so that a slow moment of the machine meets both.
        turns = [
            [microseconds_per_push(protocol, workers) for workers in (10, 1000)] for _ in range(7)
        ]
        few, many = (min(times) for times in zip(*turns, strict=True))
    finally:
        gc.enable()
    # A cost that grows with the workers would be a multiple of ten.
    assert many <= 2 * few, f"{many:.1f} µs with 1,000 workers, {few:.1f} µs with 10"


def test_a_book_keeps_its_older_versions():
    first = PersistentMap.of(["a", "b"], 0)
    second = first.put("a", 1)
    third = second.put("c", 2)
    fourth = third.without("b")
    assert (fourth.values(), third.values()) == ((1, 2), (1, 0, 2))
    assert (first.values(), second.values()) == ((0, 0), (1, 0))
    assert list(third) == ["a", "b", "c"]
    assert second.put("b", 5).values() == (1, 5)
    assert third.values() == (1, 0, 2)


def test_books_are_equal_if_their_contents_are():
    first = PersistentMap.of(["a"], 0)
    same, other = first.put("a", 0), PersistentMap.of(["a"], 0).put("a", 1)
    assert first == same
    assert same == PersistentMap({"a": 0})
    assert other != PersistentMap({"a": 0})
