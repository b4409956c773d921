"""Planted faults: each is found in protocols where it makes a difference."""

from __future__ import annotations

import pytest
from quorum import DampingForgotten, Quorum

from manyhands.protocols import ALL, Asynchronous, Broadcast, StrategyProtocol, Synchronous
from manyhands.testing import MUTATIONS, Law, PureDecisions, WholeSteps, mutants
from manyhands.testing.mutations import RUNTIME_MUTATIONS, runtime_mutants

EXPECTED = {
    "answers are dropped": "Progress",
    "calls are answered twice": "CallsOnce",
    "updates are applied twice": "CallsOnce",
    "losses are ignored": "Progress",
    "weights are wrong": "Weighting",
    "versions are stale": "ReportedVersions",
    "batches are committed twice": "SamplesOnce",
    "batches are never committed": "Progress",
}
UNSEEN = {
    # The weight of a single update is a learning rate: `WholeSteps` looks at it.
    "ssp": {"weights are wrong"},
    "asynchronous": {"weights are wrong"},
    # Masses that do not add up to the number of workers are not seen in any replica.
    "push_sum": {"losses are ignored"},
}
"""What no law that holds for every protocol can find."""


@pytest.mark.parametrize("protocol", [Quorum(), Synchronous()])
def test_every_planted_fault_is_found(protocol: StrategyProtocol) -> None:
    found = mutants(protocol)
    assert {one.fault: one.law for one in found} == EXPECTED
    assert all(one.seeds is not None and one.seeds <= 200 for one in found)


def test_a_fault_that_changes_nothing_is_reported_as_that() -> None:
    ignored = {"losses are ignored": MUTATIONS["losses are ignored"]}
    (report,) = mutants(Asynchronous(), 20, faults=ignored)
    assert report.seeds is None
    assert report.same
    assert str(report) == "losses are ignored: changes nothing in these runs"


def test_the_weight_of_whole_steps_is_found_by_its_law_only() -> None:
    wrong = {"weights are wrong": MUTATIONS["weights are wrong"]}
    (unseen,) = mutants(Asynchronous(), 10, faults=wrong)
    assert str(unseen) == "weights are wrong: NOT FOUND"
    (seen,) = mutants(Asynchronous(), 10, faults=wrong, laws=[WholeSteps])
    assert seen.law == "WholeSteps"


def test_a_fault_of_ones_own_is_planted_in_drawn_protocols_too() -> None:
    (report,) = mutants(
        lambda rng, *_: Quorum(every=rng.choice((1, 2))),
        faults={"damping": lambda right: DampingForgotten(right.wait_for, right.every)},
    )
    assert report.law == "Weighting"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("protocol", ALL, ids=lambda one: one.name)
def test_what_is_not_found_in_a_built_in_protocol_is_known(
    protocol: type[StrategyProtocol],
) -> None:
    found = mutants(Broadcast(codec=None) if protocol is Broadcast else protocol, 100)
    missed = {one.fault for one in found if one.seeds is None and not one.same}
    assert missed == UNSEEN.get(protocol.name, set())


@pytest.mark.parametrize("without", [(), (PureDecisions,)], ids=["all laws", "crashes alone"])
def test_a_journal_that_forgets_the_types_of_keys_is_found(without: tuple[type[Law], ...]) -> None:
    """The state of `ssp` has a dict with numbers as keys, which are strings in JSON."""
    name = "the keys of a stored state have no types"
    (found,) = runtime_mutants("ssp()", faults={name: RUNTIME_MUTATIONS[name]}, without=without)
    assert found.seeds is not None
    assert found.seeds <= 200


def test_a_snapshot_without_the_numbers_of_calls_is_found() -> None:
    name = "snapshots have no numbers of calls"
    (found,) = runtime_mutants("ssp()", faults={name: RUNTIME_MUTATIONS[name]})
    assert found.seeds is not None
