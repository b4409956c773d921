"""Virtual runs of every protocol exchange the payload that its formula states."""

import pytest
from virtual_jobs import a_job

import manyhands as mh
from manyhands.endpoint import Change, Parameters, Push
from manyhands.protocols import ALL
from manyhands.reports import traffic
from manyhands.strategies import strategy
from manyhands.trace import PHASES, SCOPES, Flow
from manyhands.virtual import ProcessHosts
from manyhands.virtual.worker.endpoint import HEAD
from manyhands.wire.envelope import Offer, Reply, SharedBytes, seal

WORKERS = 4
SIZE = 40
"""Bytes of the parameters of `a_job`."""
CASES = {
    "synchronous": ["synchronous()", "synchronous(servers=2)"],
    "central_storage": ["central_storage()"],
    "softsync": ["softsync(wait_for=3)"],
    "ssp": ["ssp(staleness=2)", "ssp(staleness=0, servers=2)"],
    "asynchronous": ["asynchronous(servers=2)", "asynchronous(delay_compensation=0.1)"],
    "hogwild": ["hogwild()"],
    "averaging": ["averaging()", "averaging(every=5)"],
    "local_sgd": ["local_sgd(every=5)"],
    "diloco": [
        "diloco(every=10, servers=2)",
        "diloco(every=10, fragments=2)",
        "diloco(every=10, fragments=2, wait_for=3)",
    ],
    "hierarchical": ["hierarchical(outer=diloco(every=5))", "hierarchical(outer=synchronous())"],
    "easgd": [f"easgd(every=2, order={order})" for order in ("parallel", "asynchronous")]
    + ["easgd(order=round_robin)"],
    "gossip": [f"gossip(graph={graph})" for graph in ("ring", "exponential", "random_pairs")]
    + ["gossip(order=asynchronous)"],
    "push_sum": ["push_sum()", "push_sum(graph=ring)", "push_sum(codec=half())"],
    "broadcast": ["broadcast(codec=none)", "broadcast(codec=half())", "broadcast(codec=topk(0.2))"],
    "ensemble": ["ensemble()"],
}
"""The job has ten steps of every worker, so every interval divides them."""


def with_validation(**changes):
    return a_job(**({"validation": a_job().data} | changes))


def test_every_protocol_takes_part() -> None:
    assert {protocol.name for protocol in ALL} == set(CASES)


def counted(trace: mh.trace.Trace, role: str, scope: str, phase: str = "training") -> Flow:
    """The bytes of all processes of a role."""
    flows = [
        process.totals.traffic.get(f"{phase}/{scope}", Flow())
        for process in trace.processes
        if process.header.role == role
    ]
    return sum(flows, Flow())


@pytest.mark.parametrize("text", [text for texts in CASES.values() for text in texts])
@pytest.mark.parametrize("scope", SCOPES)
def test_training_is_what_the_formula_says(virtually, text, scope) -> None:
    protocol = strategy(text)
    needs = protocol.needs(WORKERS)
    if needs.shared_memory and scope == "between":
        pytest.skip("shared memory needs one host")
    places = None
    if scope == "between":
        places = ProcessHosts.host_each(WORKERS, needs.server_processes, mh.Link(1e6, 1e-4))
    job = with_validation(epochs=None, samples=200)
    trace = virtually(job, protocol, places=places, workers=WORKERS).run.trace
    steps = sum(worker.totals.steps for worker in trace.workers)
    assert steps == 10 * WORKERS
    formula = protocol.step_payload(WORKERS, SIZE)
    # A peer server is a part of its worker's process, and counts in its trace.
    worker = counted(trace, "worker", scope)
    assert worker.payload_sent == formula.sent * steps
    assert worker.payload_received == formula.received * steps
    found = traffic(trace)
    assert found.flow("training", scope).payload_sent == formula.carried * steps
    elsewhere = next(other for other in SCOPES if other != scope)
    for phase in PHASES:
        both = found.flow(phase)
        assert both.payload_sent == both.payload_received, "every message is counted twice"
        assert both.wire_sent == both.wire_received
        assert found.flow(phase, elsewhere) == Flow()
        envelopes = both.wire_sent - both.payload_sent
        assert envelopes % HEAD == 0


def test_what_islands_exchange_with_each_other_is_what_goes_between_hosts(virtually) -> None:
    protocol = strategy("hierarchical(outer=diloco(every=5))")
    hosts = tuple(mh.Host(name, 2, 0) for name in ("a", "b", "outer"))
    cluster = mh.Cluster(hosts, mh.Link(1e6, 1e-4))
    places = ProcessHosts(cluster, ("a", "a", "b", "b"), ("a", "b", "outer"))
    trace = virtually(a_job(epochs=1), protocol, places=places).run.trace
    steps = sum(worker.totals.steps for worker in trace.workers)
    formula = protocol.step_payload(WORKERS, SIZE)
    between, within = (counted(trace, "worker", scope) for scope in ("between", "within"))
    assert between.payload_sent == formula.outer_sent * steps > 0
    assert between.payload_received == formula.outer_received * steps
    assert within.payload_sent == (formula.sent - formula.outer_sent) * steps


def test_starts_and_evaluations_are_counted_apart(virtually) -> None:
    done = virtually(with_validation(epochs=2), strategy("synchronous(servers=2)"))
    found = traffic(done.run.trace)
    assert found.flow("start").payload_sent == WORKERS * SIZE, "everybody's first read"
    assert found.flow("evaluation").payload_sent == 2 * WORKERS * SIZE, "one for every evaluation"
    assert found.flow("idle").payload_sent == 0
    alone = virtually(with_validation(epochs=2), strategy("gossip()"))
    found = traffic(alone.run.trace)
    assert found.flow("start") == Flow(), "a worker reads its own replica in its own process"
    others = WORKERS * (WORKERS - 1)
    assert found.flow("evaluation").payload_sent == 2 * others * SIZE


def test_a_last_synchronisation_after_fewer_steps_is_not_a_step_of_the_formula(virtually) -> None:
    done = virtually(a_job(epochs=1), strategy("averaging(every=4)"))
    found = traffic(done.run.trace)
    # Ten steps: after 4, after 8, and what is left at the end.
    assert found.flow("training").payload_sent == 2 * WORKERS * 2 * SIZE
    assert found.flow("idle").payload_sent == WORKERS * 2 * SIZE


@pytest.mark.parametrize(
    "message",
    [Push(300, 32, 38_400), Push(300, 32, mass=0.25), Change(300), Change(300, "meet")],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_virtual_envelope_is_as_large_as_a_live_one(message, shared) -> None:
    size = 400_000
    scope = SharedBytes(12345, 17, size, size) if shared else None
    offer = Offer(300, 0, 1, size, message, scope, scope, size)
    assert len(seal(offer)) == pytest.approx(HEAD, abs=36)
    reply = Reply(300, 1200, size, Parameters(300), placed=shared, held=0.001)
    assert len(seal(reply)) == pytest.approx(HEAD, abs=20)
