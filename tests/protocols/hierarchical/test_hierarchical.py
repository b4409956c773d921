"""A hierarchy of servers: what it may be made of, and what its servers decide."""

from __future__ import annotations

import msgspec
import pytest

from manyhands.endpoint import Change, Parameters, Pull, Push, Terms
from manyhands.protocols import Add, Answer, Call, ServerState, Step
from manyhands.strategies import strategy

SUMS = strategy("hierarchical(outer=synchronous(), islands=2)")


@pytest.mark.parametrize(
    "outer", ["asynchronous()", "softsync()", "ssp()", "hogwild()", "gossip()", "easgd()"]
)
def test_what_does_not_wait_for_all_islands_is_refused_with_what_does(outer: str) -> None:
    with pytest.raises(
        ValueError, match=r"diloco\(\), .* or synchronous\(\), .* sum of its gradients"
    ):
        strategy(f"hierarchical(outer={outer})")


def test_the_server_between_the_islands_is_one() -> None:
    with pytest.raises(ValueError, match="use servers=1, and more islands"):
        strategy("hierarchical(outer=synchronous(servers=2))")


def test_collectives_within_islands_are_refused_with_what_does_the_same() -> None:
    with pytest.raises(ValueError, match=r"mean of all gradients .* use allreduce\(\)"):
        strategy("hierarchical(inner=allreduce(), outer=synchronous())")


class Servers:
    """Two islands of two workers each, and the server between them, without a runtime."""

    def __init__(self) -> None:
        self.states: list[ServerState] = [
            SUMS.begin(Terms(global_batch=8, workers=4, number=number)) for number in range(3)
        ]
        self.calls: dict[tuple[str, int], int] = {}

    def hear(self, server: int, sender: str, message: object) -> dict[str, Parameters]:
        """What is answered, by sender; the state survives being written down."""
        number = self.calls[sender, server] = self.calls.get((sender, server), 0) + 1
        after, self.actions = SUMS.on_message(self.states[server], Call(sender, number, message))
        written = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(after)))
        self.states[server] = msgspec.convert(written, type(after))
        assert self.states[server] == after
        return {
            action.call.sender: action.message
            for action in self.actions
            if isinstance(action, Answer)
        }

    def leave(self, worker: str) -> dict[str, Parameters]:
        told = {}
        for server in range(3):
            self.states[server], actions = SUMS.on_leave(self.states[server], worker)
            told |= {a.call.sender: a.message for a in actions if isinstance(a, Answer)}
        return told


def test_a_lost_carrier_is_replaced_and_its_sum_counts_once() -> None:
    servers = Servers()
    for rank in range(4):
        servers.hear(2, f"worker-{rank}", Pull())
        servers.hear(rank // 2, f"worker-{rank}", Change(0, errand="join"))
    assert servers.hear(0, "worker-0", Push(0, 2)) == {}
    sent = servers.hear(0, "worker-1", Push(0, 3))
    assert sent == {"worker-0": Parameters(0, errand="meet", samples=5, mass=5.0, number=0)}
    assert servers.hear(2, "worker-0", Push(0, 5)) == {}
    again = servers.leave("worker-0")
    assert again == {"worker-1": Parameters(0, errand="meet", samples=5, mass=5.0, number=0)}
    assert servers.hear(2, "worker-1", Push(0, 5)) == {"worker-0": Parameters(0)}
    assert not any(isinstance(action, Add) for action in servers.actions)
    servers.hear(1, "worker-2", Push(0, 2))
    servers.hear(1, "worker-3", Push(0, 1))
    done = servers.hear(2, "worker-2", Push(0, 3))
    assert done == {"worker-1": Parameters(1), "worker-2": Parameters(1)}
    (step,) = (action for action in servers.actions if isinstance(action, Step))
    assert (step.over, step.weight) == (8, 1.0)
    assert servers.hear(0, "worker-1", Change(1, errand="meet")) == {"worker-1": Parameters(1)}


def test_after_a_lost_sum_the_next_worker_reads_again_and_the_lost_one_is_void() -> None:
    servers = Servers()
    for rank in (0, 2, 3):
        servers.hear(2, f"worker-{rank}", Pull())
        servers.hear(rank // 2, f"worker-{rank}", Change(0, errand="join"))
    servers.leave("worker-1")
    servers.hear(0, "worker-0", Push(0, 2))
    servers.hear(2, "worker-1.2", Pull())
    servers.hear(0, "worker-1.2", Change(0, errand="join"))
    servers.states[0], actions = SUMS.on_leave(servers.states[0], "worker-0")
    (told,) = (action.message for action in actions if isinstance(action, Answer))
    assert told == Parameters(0, errand="join", number=1)
    assert servers.hear(2, "worker-1.2", Pull(number=1)) == {"worker-1.2": Parameters(0)}
    here = servers.hear(0, "worker-1.2", Change(0, errand="join", number=1))
    assert here == {"worker-1.2": Parameters(0)}
    # The lost one's call was on its way, and arrives now.
    assert servers.hear(2, "worker-0", Push(0, 2)) == {"worker-0": Parameters(0)}
    assert not any(isinstance(action, Add) for action in servers.actions)
