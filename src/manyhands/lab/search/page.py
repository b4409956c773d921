"""A search as one self-contained HTML page: its course, its values, and who came of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.lab.search.drawings import (
    lineage_chart,
    progress_chart,
    schedule_chart,
    values_chart,
)
from manyhands.lab.search.trial import short
from manyhands.reports.page.markup import Markup, element, joined
from manyhands.reports.page.plain import write_plain_page

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.lab.search.methods import SearchPlan
    from manyhands.lab.search.searched import Searched
    from manyhands.lab.search.trial import TrialResult

_MOST: Final = 100
"""Trials in the table."""
_STYLE: Final = """
.trials td, .trials th { padding: .2rem .8rem; text-align: left; white-space: nowrap; }
.trials .figure { text-align: right; font-variant-numeric: tabular-nums; }
.trials tr.best td { font-weight: 600; }
section { margin-top: 2rem; }
header pre { white-space: pre-wrap; }
svg.drawing { width: 100%; height: auto; max-width: 60rem; font: 12px system-ui, sans-serif; }
"""


def write_page(found: Searched, plan: SearchPlan, path: Path) -> Path:
    """Write the page about a search; return its path."""
    failed = sum(1 for one in found.results if not one.is_finished)
    rests = f"{found.method}, {len(found.results)} trials"
    rests += f", {failed} of them failed" if failed else ""
    rests += f", {plan.at_once} at the same time, seed {plan.seed}."
    headings = ("Manyhands search", verdict(found), rests)
    title, sections = f"Search by {found.method}", _sections(found, plan)
    return write_plain_page(path, title, headings, found.command, sections, _STYLE)


def verdict(found: Searched) -> str:
    """The result of a search in one sentence."""
    best = found.best
    if best is None:
        failed = next((one.failure for one in found.results if one.failure), "")
        reason = f": {failed}" if failed else ""
        return f"No trial of {len(found.results)} was trained to the end{reason}"
    return (
        f"Best {found.metric} {short(best.score)}, of trial {best.trial.number}: {best.trial.words}"
    )


def against_constant(found: Searched) -> str:
    """Whether the winner's schedule is better than the best setting that never changed."""
    best = found.best
    if best is None or len(found.schedule) < 2:
        return ""
    constant = [
        one
        for one in found.results
        if one.trial.number in found.whole
        and len({step.trial.words for step in found.lineage(one.trial.number)}) == 1
    ]
    rival = found.best_of(constant)
    if rival is None:
        return "No member kept its values from the first round to the last."
    if rival is best:
        return (
            "The winner has had the same values in all rounds: the search found no schedule that "
            "is better than a constant setting."
        )
    return (
        f"The winner changed its values on the way. The best member that never did is trial "
        f"{rival.trial.number}, with {found.metric} {short(rival.score)} against "
        f"{short(best.score)}."
    )


def _sections(found: Searched, plan: SearchPlan) -> list[Markup]:
    sections = [
        _section(
            f"{found.metric.capitalize()} of the trials",
            progress_chart(found),
            "Each point is a trial, in the order in which they were proposed; the line is the best "
            "so far of those that were trained to the end.",
        )
    ]
    steps = found.schedule
    if len(steps) > 1:
        sections.append(
            _section(
                "The schedule of the winner",
                schedule_chart(found, plan),
                "The values that the winner has had over its samples; a copied member brings those "
                f"of its donor. {against_constant(found)}",
            )
        )
    sections.append(
        _section(
            "The values of all trials",
            values_chart(found, plan),
            "Each line is a trial; the best ones are dark. The last axis is what was reached.",
        )
    )
    if any(one.trial.parent is not None for one in found.results):
        sections.append(
            _section(
                "Who came of whom",
                lineage_chart(found),
                "From left to right: trials in their order, higher is better. A line leads from a "
                "trial to the one that continued it, copied it or was changed from it. The line "
                "of the winner is bold.",
            )
        )
    sections.append(_table(found))
    return sections


def _section(title: str, drawing: Markup, words: str) -> Markup:
    return element("section", element("h2", title), drawing, element("p", words))


def _table(found: Searched) -> Markup:
    best = found.best
    order = found.ranking
    names = [*found.results[0].trial.values] if found.results else []
    titles = ["trial", found.metric, "samples", *names, "came by", ""]
    rows = [_row(one, found, is_best=one is best) for one in order[:_MOST]]
    more = len(order) - len(rows)
    return element(
        "section",
        element("h2", "Trials, the best first"),
        element(
            "table",
            element("thead", element("tr", *(element("th", title) for title in titles))),
            element("tbody", *rows),
            class_="trials",
        ),
        *([element("p", f"{more} more are in trials.jsonl.")] if more > 0 else []),
    )


def _row(one: TrialResult, found: Searched, *, is_best: bool) -> Markup:
    score = "" if one.score is None else short(one.score)
    part = "" if one.trial.number in found.whole else "not to the end"
    cells = [
        element("td", str(one.trial.number), class_="figure"),
        element("td", score, class_="figure"),
        element("td", f"{one.samples:,}" if one.samples else "", class_="figure"),
        *(element("td", short(value), class_="figure") for value in one.trial.values.values()),
        element("td", one.trial.reason),
        element("td", joined(one.failure or part)),
    ]
    return element("tr", *cells, class_="best" if is_best else None)
