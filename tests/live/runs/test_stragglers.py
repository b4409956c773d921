"""A worker that is four times slower: real processes do what theory and the virtual cluster say.

Computing is paced, so that four workers go as fast as four workers even on two cores. The functions
are those of `python -m benchmarks.stragglers`, which prints the figures of all strategies.
"""

import pytest
from benchmarks.stragglers import CASES, Case

from benchmarks import stragglers
from manyhands.protocols import ALL
from manyhands.strategies import strategy as read_strategy

EVERYDAY = [
    case
    for case in CASES
    if case.strategy in ("synchronous()", "softsync(wait_for=3)", "asynchronous()")
]


@pytest.mark.timed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", EVERYDAY, ids=lambda case: case.strategy)
def test_waiting_for_all_for_some_and_for_none(launch, tmp_path, case: Case) -> None:
    found = stragglers.measure(case, tmp_path / "first", epochs=3, launch=launch)
    if not found.plausible:
        # Runs of seconds on a machine whose cores are shared with others: once more, longer.
        found = stragglers.measure(case, tmp_path / "second", epochs=6, launch=launch)
    assert found.plausible, found


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.strategy)
def test_every_strategy_goes_as_fast_as_its_waiting_allows(launch, tmp_path, case: Case) -> None:
    found = stragglers.measure(case, tmp_path, launch=launch)
    print(found)
    assert found.hold, found


def test_what_must_be_shown_is_asked_for() -> None:
    least = {case.strategy: case.least for case in CASES}
    for free in ("asynchronous()", "gossip(order=asynchronous)", "easgd(order=asynchronous)"):
        assert least[free] == 0.95
    assert least["softsync(wait_for=3)"] == 0.85
    waiting = [case.theory for case in CASES if case.least is None]
    assert waiting == pytest.approx([4 * (1 / 4) / (3 + 1 / 4)] * 13)
    tried = {read_strategy(case.strategy).name for case in CASES}
    assert tried == {"allreduce", *(cls.name for cls in ALL)}
