"""Every option of every strategy has an effect on the virtual clock, or is refused."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import manyhands as mh
from manyhands.protocols import Synchronous
from option_effects import Outcome, Verdict, job_for, judge, names_option, outcome
from option_pairs import Pair, pairs

if TYPE_CHECKING:
    from pathlib import Path

_ONE_REPLICA = "one replica computes the numbers of all: there is nothing to compare, or to search"
SILENT: dict[tuple[str, str], str] = {
    ("allreduce", "compare_every"): _ONE_REPLICA,
    ("allreduce", "shared_memory"): "shared memory is faster than connections on one host, and "
    "every virtual worker has a host of its own here",
    ("synchronous", "codec=exact.feedback"): "nothing is left that could be sent later",
    ("synchronous", "codec=deflate.feedback"): "nothing is left that could be sent later",
    ("hybrid", "split_points"): "on the virtual clock all stages take equal times",
    ("pipeline", "split_points"): "on the virtual clock all stages take equal times",
    ("hybrid", "outer=diloco.outer_lr"): "only times are simulated; the live test shows it",
    ("hybrid", "outer=diloco.outer_momentum"): "only times are simulated; the live test shows it",
}
"""Options without an effect on the virtual clock that are not refused there, with the reason."""

SAME: dict[tuple[str, str], str] = {
    ("feedback", "true"): "if_biased, the default, says so of a biased codec",
    ("feedback", "false"): "if_biased, the default, says so of an unbiased codec",
    ("answer_codec", "none"): "without a codec the default, same, encodes no answers either",
}
"""Values that are the default by another name; another value of the option has an effect."""


def simulated(text: str, workers: int, folder: Path) -> Outcome:
    """A short run on links, of workers of which one is slower."""
    one_host = mh.strategy(text).needs(workers).shared_memory if _is_valid(text) else False
    options: dict[str, Any] = {} if one_host else {"bandwidth": "10mbit"}
    if workers > 1:
        options["slow"] = ["1:5x"]
    if text.startswith("hybrid") and "outer=" in text:
        options["time_only"] = True

    def run() -> mh.Run:
        with contextlib.redirect_stderr(io.StringIO()):
            at = folder / str(len([*folder.iterdir()]))
            return mh.simulate(job_for(text), text, workers=workers, output=at, **options)

    return outcome(run)


def _is_valid(text: str) -> bool:
    try:
        mh.strategy(text)
    except ValueError:
        return False
    return True


def verdicts(chosen: list[Pair], folder: Path) -> list[Verdict]:
    known: dict[tuple[str, int], Outcome] = {}

    def made(text: str, workers: int) -> Outcome:
        if (text, workers) not in known:
            known[text, workers] = simulated(text, workers, folder)
        return known[text, workers]

    return [
        judge(pair, made(pair.without, pair.workers_without), made(pair.changed, pair.workers))
        for pair in chosen
    ]


def faults_of(found: list[Verdict], *, silent: dict[tuple[str, str], str] = SILENT) -> list[str]:
    """What contradicts the rule, in words."""
    wrong = []
    by_option: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in found:
        by_option[one.pair.strategy, one.pair.option].append(one)
        if one.kind == "FAILED":
            wrong.append(f"{one.pair.changed} is accepted and fails: {one.words}")
        if one.kind == "NO BASE":
            wrong.append(f"{one.pair.without} is refused: {one.words}")
        if one.kind == "REFUSED" and not names_option(one):
            wrong.append(f"{one.pair.changed} is refused without naming the option: {one.words}")
    for (strategy, option), ones in by_option.items():
        others = any(one.kind != "NONE" for one in ones)
        for one in ones:
            said = (strategy, option) in silent or one.pair.because
            if one.kind == "NONE" and not said and not (others and _is_same(one.pair)):
                wrong.append(f"{one.pair.changed} is accepted and does nothing")
    return wrong


def _is_same(pair: Pair) -> bool:
    option = pair.option.rpartition(".")[2]
    return any(one == option and f"{one}={value}" in pair.changed for one, value in SAME)


def _everyday() -> list[Pair]:
    """Options of strategies, without those of codecs and aggregators, each with its first value."""
    chosen: dict[tuple[str, ...], Pair] = {}
    for pair in pairs():
        flat = "=" not in pair.option or pair.strategy == "hybrid"
        value = pair.changed if pair.strategy in ("hybrid", "zero", "gossip") else ""
        if flat:
            chosen.setdefault((pair.strategy, pair.option, pair.without, value), pair)
    return [*chosen.values()]


def _report(found: list[Verdict]) -> None:
    kinds = [one.kind for one in found]
    options = {(one.pair.strategy, one.pair.option) for one in found}
    print(
        f"\n{len(options)} pairs (option, strategy) in {len(found)} virtual comparisons:", end=" "
    )
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_option_has_an_effect_or_is_refused(tmp_path: Path) -> None:
    found = verdicts([*pairs()], tmp_path)
    _report(found)
    assert faults_of(found) == []


@pytest.mark.timeout(300)
def test_options_have_an_effect_or_are_refused(tmp_path: Path) -> None:
    found = verdicts(_everyday(), tmp_path)
    _report(found)
    assert faults_of(found) == []


def test_an_option_added_without_an_effect_is_found(tmp_path: Path, forgets_names: None) -> None:
    @dataclass(frozen=True, repr=False)
    class Idle(Synchronous):
        """A strategy with an option that nothing reads."""

        name: ClassVar[str] = "idle"
        patience: int = 3
        """Without an effect."""

    mh.register(Idle)
    pairs.cache_clear()
    try:
        new = [one for one in pairs() if (one.strategy, one.option) == ("idle", "patience")]
    finally:
        pairs.cache_clear()
    wrong = faults_of(verdicts(new, tmp_path))
    assert wrong == ["idle(patience=4) is accepted and does nothing"]
