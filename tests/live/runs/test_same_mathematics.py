"""Every kind of optimizer on real processes: as a plain loop, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.files.checkpoint import load_state
from same_jobs import CASES, by_hand, plain_model

SCRIPT = """
    import json, sys
    sys.path.insert(0, sys.argv[2])
    import same_jobs
    import manyhands as mh

    job = same_jobs.job_of(sys.argv[1])

    if __name__ == "__main__":
        results = {}
        for strategy, workers in json.loads(sys.argv[3]).items():
            try:
                run = mh.train(job, strategy, workers=workers, output="run")
                results[strategy] = str(run.folder.resolve())
            except (ValueError, mh.RunFailed) as error:
                results[strategy] = "refused: " + str(error)
        print("RESULTS", json.dumps(results))
"""
PLACED = "place"
STRATEGIES = {
    "allreduce(find_unused=true)": 2,
    "synchronous()": 2,
    "synchronous(servers=2)": 2,
    "zero(stage=1)": 2,
    "fully_sharded()": 2,
    "hybrid(data=2)": 2,
    PLACED: 2,
    "pipeline(microbatches=2)": 2,
    "ssp()": 1,
    "diloco(every=2, outer_lr=1, outer_momentum=0)": 1,
}
WHOLE = (PLACED,)
"""Strategies whose workers compute the same samples: the data decide once what is used."""
TOGETHER = ("synchronous(servers=2)", "pipeline(microbatches=2)", PLACED)
"""Strategies whose workers or servers step different parameters."""
SHARDED = ("zero(stage=1)", "fully_sharded()")
ROUGH = 0.02
"""Muon computes in bfloat16, and tensors that are divided are added up in another order."""


APART = ("fully_sharded()", "hybrid(data=2)")
"""Strategies whose workers must all compute the same modules; a run that does not is ended, with
the reason, when its patience is over."""


def strategies_for(name: str) -> dict[str, int]:
    """The strategies of a case."""
    if "sometimes used" not in name:
        return STRATEGIES
    return {one: workers for one, workers in STRATEGIES.items() if one not in APART}


def text_of(strategy: str, name: str) -> str:
    """The strategy of a case, with the names of the model's modules."""
    if strategy != PLACED:
        return strategy
    first, second = ("0", "2") if CASES[name].model is plain_model else ("first", "last")
    return f'place(["{first} on 0", "{second} on 1"])'


def refusal(name: str, strategy: str) -> str | None:
    """The reason why a case is refused under a strategy."""
    reasons = {
        "LBFGS evaluates the loss several times in a step": name == "lbfgs",
        "it branches on the content of a tensor": "sometimes used" in name
        and strategy.startswith("pipeline"),
        "needs all parameters together": name == "hook on all" and strategy in TOGETHER,
        "use allreduce(find_unused=true)": "used" in name and strategy == "zero(stage=1)",
        "an optimizer that works elementwise": name == "adafactor"
        and strategy in (*SHARDED, "hybrid(data=2)"),
        "needs the norm of the whole mean gradient": "clip" in CASES[name].settings
        and strategy == "synchronous(servers=2)",
    }
    return next((words for words, holds in reasons.items() if holds), None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_plain_loop_or_is_refused(name, run_script) -> None:
    tests = str(Path(__file__).parents[2])
    asked = strategies_for(name)
    workers_of = {text_of(strategy, name): workers for strategy, workers in asked.items()}
    started = run_script(SCRIPT, name, tests, json.dumps(workers_of))
    assert started.finish(800) == 0, started.text()
    results = json.loads(started.text().partition("RESULTS ")[2].splitlines()[0])
    wrong = {}
    for strategy, workers in asked.items():
        said, reason = results[text_of(strategy, name)], refusal(name, strategy)
        if reason is not None or said.startswith("refused"):
            if reason is None or reason not in said:
                wrong[strategy] = said
            continue
        parts = 1 if strategy in WHOLE else workers
        found, wanted = load_state(Path(said) / "model.safetensors"), by_hand(name, parts)
        away = max(float((found[key] - value).abs().max()) for key, value in wanted.items())
        if not away <= (ROUGH if name == "muon" and strategy in SHARDED else 1e-9):
            wrong[strategy] = away
    assert not wrong
