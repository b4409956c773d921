"""The page: one self-contained HTML file."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from manyhands.assumptions import assumed_words
from manyhands.reports.comparison.results import Comparison, RunResult
from manyhands.reports.comparison.standings import Field, Kind, fields, ordered
from manyhands.reports.comparison.sweeps import sweeps
from manyhands.reports.comparison.verdict import Verdict, judge
from manyhands.reports.comparison.verdicts.contests import Contest, Question
from manyhands.reports.formatting import count, listed, plural, size
from manyhands.reports.page.charts import Chart, charts
from manyhands.reports.page.markup import Markup, element, in_script, joined
from manyhands.reports.page.palette import Look, looks
from manyhands.reports.page.sheet import sheet
from manyhands.reports.page.swatch import bands, named
from manyhands.reports.page.sweep_section import sweep_section
from manyhands.reports.page.timelines import timelines
from manyhands.trace import Trace

Traces = Callable[[RunResult], Trace | None]
"""Finds a run's trace, for the timelines; None where it is gone."""

_QUESTIONS: Final[dict[Question, tuple[str, str]]] = {
    "target": ("Reaches the target first", "Soonest at the target"),
    "speed": ("Fastest", "Highest throughput"),
    "end": ("Most accurate in the end", "Best in the end"),
    "budget": ("Most accurate within the budget", "Best within the budget"),
}
"""Titles for a strategy that is ahead of all others, and for one with the best median only."""
_KINDS: Final[dict[Kind, tuple[str, str]]] = {
    "live": ("Live", "Real processes on real hardware; time was measured."),
    "virtual": (
        "Virtual",
        "Real gradients on a virtual cluster; time was simulated and is not ranked with live time.",
    ),
}
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Nothing is loaded from anywhere, whatever a part of the page may try."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The runs of one comparison that are of one kind."""

    number: int
    comparison: Comparison
    kind: Kind
    fields: tuple[Field, ...]
    verdicts: tuple[Verdict, ...]
    traces: Traces


def document(sources: Sequence[tuple[Comparison, Traces]], plotly: str) -> str:
    """The page of these comparisons, with the text of plotly.js in it."""
    parts = list(_parts(sources))
    look = looks(strategy for comparison, _ in sources for strategy in ordered(comparison))
    title = _title([comparison for comparison, _ in sources])
    drawn: list[Chart] = []
    sections = [_section(part, look, drawn) for part in parts]
    specifications = json.dumps([chart.drawing for chart in drawn], separators=(",", ":"))
    body = element(
        "body",
        element(
            "header",
            element("p", "Manyhands comparison", class_="kicker"),
            element("h1", title),
            *([element("p", about, class_="subtitle")] if (about := _shared(sources)) else []),
        ),
        element(
            "main",
            element(
                "div",
                *(_verdict(part, look, is_told=bool(about)) for part in parts),
                class_="verdicts",
            ),
            *sections,
            _method(sources[0][0]),
        ),
        element("footer", *(_circumstances(comparison) for comparison, _ in sources)),
        element("script", in_script(specifications), type="application/json", id="charts"),
        # Its own text: a library whose licence stands at its head, and which ends no element.
        element("script", Markup(plotly)),
        element("script", Markup(_file("page.js"))),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        element("title", f"{title}: a Manyhands comparison"),
        element("style", Markup(_file("page.css"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _parts(sources: Iterable[tuple[Comparison, Traces]]) -> Iterable[_Part]:
    number = 0
    for kind in _KINDS:
        for comparison, traces in sources:
            of_kind = tuple(field for field in fields(comparison) if field.kind == kind)
            if of_kind:
                number += 1
                judged = tuple(judge(field) for field in of_kind)
                yield _Part(number, comparison, kind, of_kind, judged, traces)


def _title(comparisons: Sequence[Comparison]) -> str:
    strategies = list(dict.fromkeys(s for each in comparisons for s in ordered(each)))
    scripts = list(dict.fromkeys(each.script for each in comparisons if each.script))
    what = f"{len(strategies)} strategies" if len(strategies) > 3 else listed(strategies)
    return f"{what} on {listed(scripts)}" if scripts else f"{what} compared"


def _shared(sources: Sequence[tuple[Comparison, Traces]]) -> str:
    """What can be said of all comparisons on the page; empty if they differ."""
    about = {_subtitle(comparison) for comparison, _ in sources}
    return about.pop() if len(about) == 1 else ""


def _subtitle(comparison: Comparison) -> str:
    told = [
        comparison.created.replace("T", " ").replace("Z", " UTC"),
        comparison.budget and f"{comparison.budget} each",
        f"{comparison.repeats} repeat{plural(comparison.repeats)}",
        comparison.target and f"target {comparison.target}",
        comparison.cluster or comparison.network,
        comparison.paced,
        _faults(comparison) and f"faults: {_faults(comparison)}",
    ]
    return " · ".join(words for words in told if words)


def _faults(comparison: Comparison) -> str:
    """What went wrong on purpose in every run, as text."""
    return comparison.design.faults if comparison.design else ""


def _badge(kind: Kind) -> Markup:
    return element("span", _KINDS[kind][0], class_=f"badge {kind}")


def _verdict(part: _Part, look: Mapping[str, Look], *, is_told: bool) -> Markup:
    verdict = part.verdicts[0]
    about = [] if is_told else [element("small", _subtitle(part.comparison))]
    return element(
        "section",
        element("p", _badge(part.kind), *about, class_="about"),
        element("p", _emphasised(verdict.recommendation, look), class_="words"),
        _reasons(verdict, look),
        element(
            "div",
            *(_answer(contest, look) for contest in verdict.contests.values()),
            class_="answers",
        ),
        class_=f"verdict {part.kind}",
    )


def _reasons(verdict: Verdict, look: Mapping[str, Look]) -> Markup:
    lines = (element("li", _emphasised(line, look)) for line in verdict.reasons)
    return element("ul", *lines, class_="reasons")


def _emphasised(words: str, strategies: Iterable[str]) -> Markup:
    """A sentence in which the names of strategies stand out."""
    longest_first = sorted(strategies, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", words)
    parts = [part.replace(" %", "\N{NO-BREAK SPACE}%") for part in parts]
    return joined(*(element("b", part) if n % 2 else part for n, part in enumerate(parts)))


def _answer(contest: Contest, look: Mapping[str, Look]) -> Markup:
    """A tile: who comes first in one question, and how sure that is."""
    found = contest.best.middle(contest.column)
    figure = contest.column.show(found.value) if found else ""
    best = contest.best
    of_all = contest.question == "target" and best.reached < best.made
    share = [element("p", f"reached by {best.reached} of {best.made} runs")] if of_all else []
    if not contest.differences:
        sure = "alone"
    elif contest.winner:
        sure = "ahead of every other"
    elif contest.open:
        whom = "the others" if contest.is_open else listed(list(contest.open))
        sure = f"not enough runs to tell it from {whom}"
    else:
        sure = f"even with {listed(list(contest.even))}"
    return element(
        "div",
        element("h3", _QUESTIONS[contest.question][0 if contest.winner else 1]),
        element("p", named(contest.best.strategy, look), class_="who"),
        element("p", figure, " ", element("small", contest.column.unit), class_="figure"),
        *share,
        element("p", sure, class_="sure"),
    )


def _section(part: _Part, look: Mapping[str, Look], drawn: list[Chart]) -> Markup:
    field = part.fields[0]
    title, explanation = _KINDS[part.kind]
    others = [
        element(
            "details",
            element("summary", f"On {each.workers} worker{plural(each.workers)}{each.conditions}"),
            element("p", _emphasised(verdict.recommendation, look)),
            _reasons(verdict, look),
            sheet(each, verdict, look),
        )
        for each, verdict in zip(part.fields[1:], part.verdicts[1:], strict=True)
    ]
    strategies = [standing.strategy for standing in field.standings]
    curves = [
        sweep_section(sweep, _badge(part.kind), lambda chart: _drawn(chart, drawn))
        for sweep in sweeps(part.comparison)
        if sweep.kind == part.kind
    ]
    alike = tuple(each for each in part.fields if each.conditions == field.conditions)
    figures = [_drawn(chart, drawn) for chart in charts(alike, look)]
    return element(
        "section",
        *curves,
        element(
            "h2",
            _badge(part.kind),
            f"{title} runs on {field.workers} worker{plural(field.workers)}{field.conditions}",
        ),
        element("p", explanation, class_="note"),
        _failures(part),
        _legend(strategies, look),
        element("div", *figures, class_="charts"),
        _timelines(part, look),
        element("h3", "All figures", class_="figures"),
        sheet(field, part.verdicts[0], look),
        *others,
        class_=f"part {part.kind}",
    )


def _drawn(chart: Chart, drawn: list[Chart]) -> Markup:
    """A chart's figure; the page draws it from the list of all charts."""
    drawn.append(chart)
    return _figure(chart, len(drawn) - 1)


def _figure(chart: Chart, number: int) -> Markup:
    height = chart.drawing["layout"]["height"]
    return element(
        "figure",
        element("figcaption", element("h3", chart.title), element("p", chart.explanation)),
        *([bands(chart.parts, hatched=True)] if chart.parts else []),
        element("div", class_="plot", data_chart=str(number), style=f"min-height:{height}px"),
        class_="chart wide" if chart.wide else "chart",
    )


def _legend(strategies: Iterable[str], look: Mapping[str, Look]) -> Markup:
    return element(
        "div",
        *(
            element(
                "button",
                named(strategy, look),
                type="button",
                data_strategy=strategy,
                aria_pressed="true",
                title="Show or hide this strategy in the charts",
            )
            for strategy in strategies
        ),
        class_="legend",
    )


def _timelines(part: _Part, look: Mapping[str, Look]) -> Markup:
    traces: dict[str, Trace] = {}
    for standing in part.fields[0].finished:
        trace = next(filter(None, map(part.traces, standing.runs)), None)
        if trace is not None:
            traces[standing.strategy] = trace
    drawn = timelines(traces, look)
    if not drawn:
        return Markup("")
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", "The first steps, worker by worker"),
            element(
                "p",
                "One run of each strategy from the beginning of its training, all on one scale of "
                "time. An exchange is shown as waiting, then communicating.",
            ),
        ),
        drawn,
        class_="chart wide",
    )


def _failures(part: _Part) -> Markup:
    runs = part.comparison.runs
    failed = [run for run in runs if run.kind == part.kind and run.status == "failed"]
    if not failed:
        return Markup("")
    return element(
        "div",
        element("h3", f"{len(failed)} run{plural(len(failed))} failed"),
        element(
            "ul",
            *(
                element(
                    "li",
                    element("b", run.label),
                    f", repeat {run.repeat + 1}, seed {run.seed}: ",
                    element("q", run.failure),
                    *([" in ", element("code", run.folder)] if run.folder else []),
                )
                for run in failed
            ),
        ),
        class_="failures",
    )


def _method(comparison: Comparison) -> Markup:
    margin, points = f"{100 * comparison.margin:g} %", 100 * comparison.accuracy_margin
    return element(
        "details",
        element("summary", "How to read this"),
        element(
            "p",
            "Figures are medians over repeats; below stand the lowest and the highest or, from "
            "five repeats on, two values between which the true median lies with at least 90 % "
            "confidence. Strategies are compared repeat by repeat, because runs of one repeat are "
            "neighbours in time; the interval of their ratio has 90 % confidence (Student's t on "
            "the logarithm, the spread taken from all strategies together).",
        ),
        element(
            "p",
            f"“Slower” or “faster” means that the whole interval lies beyond {margin}; "
            f"“no difference larger than {margin}” that all of it lies within; “not enough runs to "
            f"tell” is neither. Of accuracy the margin is {points:g} point{plural(f'{points:g}')}.",
        ),
        class_="method",
    )


def _circumstances(comparison: Comparison) -> Markup:
    assumed = () if comparison.design is None else comparison.design.assumed
    machine = comparison.machine
    processes = comparison.processes_per_core
    seeds = sorted({run.seed for run in comparison.runs})
    told = {
        "Script": comparison.script,
        "Job": ", ".join(f"{name} {value}" for name, value in comparison.job.items()),
        "Budget": comparison.budget,
        "Target": comparison.target or "",
        "Seeds": ", ".join(map(str, seeds[:8])) + (" …" if len(seeds) > 8 else ""),
        "Repeats": str(comparison.repeats),
        "Machine": ", ".join(
            words
            for words in (
                machine.host,
                machine.cpu,
                f"{machine.cores} core{plural(machine.cores)}" if machine.cores else "",
                size(machine.memory) if machine.memory else "",
                *machine.devices,
            )
            if words
        ),
        "Hosts": str(comparison.hosts),
        "Processes per core": count(processes) if processes else "not recorded",
        "Paced": comparison.paced or "nothing",
        "Faults": _faults(comparison) or "none",
        "Cluster": comparison.cluster,
        "Network": comparison.network or "the machine's own",
        "Assumed": assumed_words(assumed),
        "Depends on": "; ".join(one.consequence for one in assumed if one.decides),
        "Price": f"{comparison.price:g} {comparison.currency} per worker and hour".replace(
            "  ", " "
        )
        if comparison.price is not None
        else "",
        "Versions": ", ".join(
            f"{name} {version}"
            for name, version in (
                ("Manyhands", comparison.manyhands),
                ("Python", comparison.python),
                ("torch", comparison.torch),
            )
            if version
        ),
        "Made": comparison.created.replace("T", " ").replace("Z", " UTC"),
    }
    return element(
        "dl",
        *(
            joined(element("dt", term), element("dd", words))
            for term, words in told.items()
            if words
        ),
    )


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")
