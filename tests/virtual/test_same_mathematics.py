"""Every kind of optimizer under strategies that have to equal a plain loop, or is refused."""

from __future__ import annotations

import pytest

import manyhands as mh
from same_jobs import CASES, by_hand, job_of

STRATEGIES = {
    "allreduce()": 2,
    "synchronous()": 2,
    "synchronous(servers=2)": 2,
    "central_storage()": 2,
    "hierarchical(islands=2, outer=synchronous())": 2,
    "ssp()": 1,
    "asynchronous(servers=2)": 1,
    "averaging(every=2)": 1,
    "diloco(every=2, outer_lr=1, outer_momentum=0)": 1,
    "hogwild()": 1,
}
DIVIDED = {"synchronous(servers=2)", "asynchronous(servers=2)"}


def refusal(name: str, strategy: str) -> str | None:
    """The reason why a case is refused under a strategy."""
    if name == "lbfgs":
        return "LBFGS evaluates the loss several times in a step"
    if name == "hook on all" and strategy in DIVIDED:
        return "needs all parameters together, and 2 servers"
    if "clip" in CASES[name].settings and strategy == "synchronous(servers=2)":
        return "needs the norm of the whole mean gradient"
    return None


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_plain_loop_or_is_refused(name, strategy, tmp_path) -> None:
    workers, reason = STRATEGIES[strategy], refusal(name, strategy)
    about = {"workers": workers, "output": tmp_path / "run"}
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            mh.simulate(job_of(name), strategy, **about)
        return
    found = mh.simulate(job_of(name), strategy, **about).state_dict()
    for key, value in by_hand(name, workers).items():
        assert (found[key] - value).abs().max() <= 1e-9, key
