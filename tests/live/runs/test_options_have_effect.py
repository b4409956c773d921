"""Every option of every strategy has an effect on real processes, or is refused.

The pairs are those of `tests/virtual/test_options_have_effect.py`; `tests/option_pairs.py` derives
them from the catalog.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import manyhands as mh
from live_option_runs import apart
from option_effects import Verdict, names_option
from option_pairs import pairs
from support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support import Started

DAILY = (
    "zero(stage=2, bucket_mb=0.001)",
    "hybrid(data=2, shard=2, microbatches=2)",
    "hybrid(data=2, shard=2, outer=averaging(answer_codec=int8()))",
    "gossip(answer_codec=none)",
    "broadcast(early_epochs=3.0)",
    "hybrid(data=2, shard=2, outer=diloco(every=4, outer_lr=0.35))",
)
"""One real comparison, and refusals, which start no process."""

_HERE = "in one process or on one host it changes times alone"
SILENT: dict[tuple[str, str], str] = {
    ("allreduce", "algorithm"): "a live run leaves the algorithm to the engine of the collectives",
    ("allreduce", "shared_memory"): _HERE,
    ("synchronous", "codec=exact.feedback"): "nothing is left that could be sent later",
    ("synchronous", "codec=deflate.feedback"): "nothing is left that could be sent later",
    ("allreduce", "codec=exact.feedback"): "nothing is left that could be sent later",
    ("allreduce", "codec=deflate.feedback"): "nothing is left that could be sent later",
}
"""Options without an effect on what is exact in a live run, with the reason."""
SILENT_VALUES: dict[str, str] = {
    "broadcast(early_workers=2)": "for a quarter of an epoch, which is four updates of 48; with "
    "early_epochs=3.0 it shows",
    "pipeline(schedule=zero_bubble)": "it computes and sends what one_f_one_b does, at other times",
}
"""The same, of single values of options."""


def judged(start: Callable[..., Started], numbers: Sequence[int], seconds: float) -> list[Verdict]:
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    program = ROOT / "tests" / "live_option_runs.py"
    started = start(
        *(sys.executable, program, "found.json", *map(str, numbers)),
        PYTHONPATH=os.pathsep.join(paths),
    )
    assert started.finish(seconds) == 0, started.text()
    lines = (started.folder / "found.json").read_text("utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    return [Verdict(pairs()[at], kind, words) for at, kind, words in read]


def faults_of(found: list[Verdict]) -> list[str]:
    """What contradicts the rule, in words."""
    wrong = []
    for one in found:
        about = (one.pair.strategy, one.pair.option)
        value = one.pair.changed
        same = any(text in value for text in ("feedback=", "answer_codec=none"))
        same = same or value in SILENT_VALUES
        if one.kind == "NONE" and about not in SILENT and not one.pair.because and not same:
            wrong.append(f"{value} is accepted and does nothing")
        if one.kind in ("FAILED", "NO BASE"):
            wrong.append(f"{value}: {one.kind}, {one.words}")
        if one.kind == "REFUSED" and not names_option(one):
            wrong.append(f"{value} is refused without naming the option: {one.words}")
    return wrong


def _report(found: list[Verdict]) -> None:
    kinds = [one.kind for one in found]
    options = {(one.pair.strategy, one.pair.option) for one in found}
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    print(f"\n{len(options)} pairs (option, strategy), {len(found)} live comparisons: {counts}")


@pytest.mark.timeout(150)
def test_options_have_an_effect_or_are_refused(start: Callable[..., Started]) -> None:
    texts = [one.changed for one in pairs()]
    found = judged(start, [texts.index(text) for text in DAILY], 140)
    _report(found)
    assert faults_of(found) == []
    assert [one.kind for one in found] == ["REFUSED"] * (len(DAILY) - 1) + ["EFFECT"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_option_has_an_effect_or_is_refused(start: Callable[..., Started]) -> None:
    order = sorted(range(len(pairs())), key=lambda at: (pairs()[at].without, at))
    found = judged(start, order, 7100)
    _report(found)
    assert faults_of(found) == []


def test_runs_lie_apart_only_if_they_differ_more_than_equal_ones() -> None:
    runs = [(torch.tensor([value]), value) for value in (0.0, 1.0, 2.0, 2.5, 3.5, 4.5, 9.0, 9.5)]
    assert apart(runs[:3], runs[3:6]) == "", "between them is less than within"
    assert apart(runs[:2], runs[:2]) == ""
    assert apart(runs[:3], runs[6:]).startswith("parameters of 3 runs")


def test_the_pairs_are_those_of_the_catalog() -> None:
    assert {one.strategy for one in pairs()} >= {
        name for name in mh.strategies.names() if name not in ("single", "hogwild", "ensemble")
    }
