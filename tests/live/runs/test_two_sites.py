"""Two sites, live in network namespaces and virtual: the same speed on one declared cluster.

The functions are those of `python -m benchmarks.sites`.
"""

from collections.abc import Mapping

import pytest

from benchmarks import sites
from manyhands.lab.networks.namespaces import NotPermitted, check_permitted
from manyhands.strategies import strategy as read_strategy


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_two_sites_live_and_virtual_agree(start, tmp_path) -> None:
    def launch(command: list[str], environment: Mapping[str, str]) -> None:
        started = start(*command, **environment)
        assert started.finish(280) == 0, started.text()

    try:
        check_permitted()
    except NotPermitted as reason:
        pytest.skip(str(reason))
    for found in sites.measure(sites.STRATEGIES, tmp_path, launch).values():
        print(found)
        assert found.agree, found


def test_what_must_be_shown_is_asked_for() -> None:
    named = {read_strategy(text).name for text in sites.STRATEGIES}
    assert named == {"allreduce", "diloco", "hierarchical", "gossip"}
    assert sites.CLUSTER.startswith("2 sites of 2 workers")
    assert sites.APART == 0.1
