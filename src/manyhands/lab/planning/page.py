"""A plan as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.lab.planning.timing import MODEL_ERROR
from manyhands.reports.page.markup import Markup, element, joined
from manyhands.reports.page.plain import write_plain_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.assumptions import Assumption
    from manyhands.lab.planning.planned import PlannedStrategy
    from manyhands.lab.planning.ranking import Plan

_STYLE: Final = """
.plan td, .plan th { padding: .3rem .8rem; text-align: left; vertical-align: middle; }
.plan .figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plan .scale { width: 30%; min-width: 9rem; }
.plan .bar { position: relative; height: .8rem; background: #2a78d6; border-radius: 2px; }
.plan .range { position: absolute; top: .35rem; height: .1rem; background: #0b0b0b; }
.plan tr.best td:first-child { font-weight: 600; }
.plan code { white-space: nowrap; }
@media (max-width: 45rem) {
  .plan, .plan tbody, .plan tr, .plan td { display: block; }
  .plan thead { display: none; }
  .plan tr { padding: .6rem 0; border-bottom: 1px solid #ccc; }
  .plan td { padding: .1rem 0; border: 0; }
  .plan td:empty { display: none; }
  .plan .figure { text-align: left; }
  .plan td[data-title]::before { content: attr(data-title) ": "; color: #666; }
  .plan .scale { width: 100%; }
  .plan code { white-space: normal; overflow-wrap: anywhere; }
}
"""


RANGE_WORDS: Final = (
    "From and to: nine of ten real runs are expected there, by the range over repeats and the "
    f"error of earlier predictions ({100 * MODEL_ERROR:.1f} % of the speed, 71 runs)."
)


def limit_words(one: PlannedStrategy) -> str:
    """What limits a strategy, what was assumed of it, and where it has room."""
    words = f"{one.limit}; {', '.join(one.assumed)} assumed" if one.assumed else one.limit
    if one.hosts:
        on = ", ".join(f"{count} on {name}" for name, count in one.hosts)
        words += f"; workers with enough memory: {on}"
    return words


def goodput_words(one: PlannedStrategy) -> str:
    """What failures leave of the speed; empty without failures.

    Args:
        one: the strategy.
    """
    return "" if one.goodput is None else f"{100 * one.goodput.fraction:.4g} %"


def failure_words(plan: Plan) -> str:
    """How often a worker is lost, and what the figures mean; empty without failures.

    Args:
        plan: the plan.
    """
    if plan.failures is None:
        return ""
    return (
        f"A worker is lost {plan.failures}, each on its own. Goodput is what this leaves of the "
        "speed, by which strategies are ranked; samples per second, seconds, from and to are those "
        "without failures. A loss costs so much training; back: all go back to the last checkpoint."
    )


def is_priced(plan: Plan) -> bool:
    """Whether its strategies have a price.

    Args:
        plan: the plan.
    """
    return any(one.price is not None for one in plan.ranking)


def price_words(plan: Plan) -> str:
    """What prices are of, and what is in them; empty without prices.

    Args:
        plan: the plan.
    """
    if plan.samples is None or not is_priced(plan):
        return ""
    of = f"{plan.samples:,} samples" if plan.target is None else f"a run until {plan.target}"
    failing = "" if plan.failures is None else ", failures included"
    return (
        f"Price: of {of}{failing}, from the start on; all workers of every host that is needed are "
        "paid for, and hosts of servers alone."
    )


def tried_words(found: Sequence[Assumption]) -> str:
    """Of which assumed values the best strategy does not depend."""
    steady = [one.name for one in found if one.tried and not one.decides]
    if not steady:
        return "The ranking was not made again at other values."
    return f"The best strategy is the same at half and at twice the {', the '.join(steady)}."


def write_page(plan: Plan, path: Path | str, command: str = "") -> Path:
    """Write a plan as a page; return its path.

    Args:
        plan: the plan.
        path: the file.
        command: the command that runs the winner.
    """
    rests = f"Predicted for {plan.cluster}, from {plan.calibration.source} and a simulated network."
    headings = ("Manyhands plan", plan.verdict, rests)
    title = f"Plan for {plan.cluster}"
    return write_plain_page(Path(path), title, headings, command, _sections(plan), _STYLE)


def _sections(plan: Plan) -> list[Markup]:
    found = [_ranking(plan)]
    about = [words for words in (failure_words(plan), price_words(plan)) if words]
    if about:
        found.append(_listed("Failures and prices", [joined(words) for words in about]))
    if plan.advice:
        found.append(_listed("A larger batch", [joined(f"For {_chosen(plan)}: {plan.advice}.")]))
    if plan.cautions:
        found.append(_listed("Cautions", [joined(words) for words in plan.cautions]))
    if plan.assumptions:
        lines = [joined(one.words) for one in plan.assumptions]
        found.append(_listed("Assumed", [*lines, joined(tried_words(plan.assumptions))]))
    if plan.notes:
        found.append(
            _listed("Without a time to the target", [joined(words) for words in plan.notes])
        )
    if plan.rules:
        lines = [
            joined(element("b", f"{rule.holds}: "), f"{rule.text}. {rule.figures}.")
            for rule in plan.rules
        ]
        found.append(_listed("Rules of thumb, for this job", lines))
    if plan.left_out:
        lines = [joined(element("code", one.strategy), f": {one.why}") for one in plan.left_out]
        found.append(_listed("Left out", lines))
    return found


def _chosen(plan: Plan) -> str:
    return "" if plan.choice is None else plan.choice.strategy


def _listed(title: str, lines: list[Markup]) -> Markup:
    return element(
        "section", element("h2", title), element("ul", *(element("li", line) for line in lines))
    )


def _ranking(plan: Plan) -> Markup:
    by_time = plan.target is not None and any(one.to_target for one in plan.ranking)
    ends = [_ends(one, by_time=by_time)[2] for one in plan.ranking]
    most = max((end for end in ends if end is not None), default=1.0)
    best = plan.best
    what = f"seconds until {plan.target}" if by_time else "samples per second"
    titles = ["strategy", "workers", what, "", "limited by"]
    if by_time:
        titles[3:3] = ["reached in runs", "samples per second"]
    failing = plan.failures is not None
    if failing:
        titles.insert(-2, "goodput")
    priced = is_priced(plan)
    if priced:
        titles.append("price" if by_time or plan.samples is None else f"price of {plan.samples:,}")
    shown = {"by_time": by_time, "priced": priced, "failing": failing}
    rows = [_row(one, most, is_best=one in best, **shown) for one in plan.ranking]
    head = element("tr", *(element("th", title) for title in titles))
    return element(
        "section",
        element("h2", "Strategies in order"),
        element("table", element("thead", head), element("tbody", *rows), class_="plan"),
        element(
            "p",
            f"The bar is the mean, the line on it from and to. {RANGE_WORDS} Strategies in bold "
            "cannot be told apart from the first: their ranges over repeats overlap.",
        ),
    )


def _ends(
    one: PlannedStrategy, *, by_time: bool
) -> tuple[float | None, float | None, float | None]:
    """Mean, low and high of what the plan is ranked by."""
    if not by_time:
        return one.rate, one.least, one.most
    time = one.to_target
    return (None, None, None) if time is None else (time.seconds, one.least, one.most)


def _row(
    one: PlannedStrategy,
    most: float,
    *,
    by_time: bool,
    priced: bool,
    failing: bool,
    is_best: bool,
) -> Markup:
    mean, low, high = _ends(one, by_time=by_time)
    bar: Markup = Markup()
    if mean is not None and low is not None and high is not None:
        inner = element(
            "div",
            class_="range",
            style=f"left: {100 * low / mean:.1f}%; width: {100 * (high - low) / mean:.1f}%",
        )
        bar = element("div", inner, class_="bar", style=f"width: {100 * mean / most:.1f}%")
    form = ",.3g" if by_time else ",.0f"
    figure: Markup = Markup()
    if mean is not None and low is not None and high is not None:
        between = element("small", f" ({low:{form}}–{high:{form}})")
        figure = joined(f"{mean:{form}}", between)
    runs = "" if one.to_target is None else one.to_target.share
    cells = [
        element("td", element("code", one.strategy)),
        element("td", str(one.workers), class_="figure", data_title="workers"),
        element(
            "td", figure, class_="figure", data_title="seconds" if by_time else "samples per second"
        ),
        *([element("td", runs, class_="figure", data_title="reached in runs")] if by_time else []),
        *(
            [element("td", f"{one.rate:,.0f}", class_="figure", data_title="samples per second")]
            if by_time
            else []
        ),
        *(
            [element("td", goodput_words(one), class_="figure", data_title="goodput")]
            if failing
            else []
        ),
        element("td", bar, class_="scale"),
        element(
            "td",
            limit_words(one) + (f"; {one.goodput.words}" if one.goodput else ""),
            data_title="limited by",
        ),
    ]
    if priced:
        price = "" if one.price is None else f"{one.price:.3g}"
        cells.append(element("td", price, class_="figure", data_title="price"))
    return element("tr", *cells, class_="best" if is_best else None)
