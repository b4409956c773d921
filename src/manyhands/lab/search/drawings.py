"""The drawings of a search, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.free import Choice, Integer, Uniform
from manyhands.lab.search.trial import short
from manyhands.reports.page.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.free import FreeParameter
    from manyhands.lab.search.methods import SearchPlan
    from manyhands.lab.search.searched import Searched
    from manyhands.lab.search.trial import TrialResult

_WIDTH: Final = 900.0
_HEIGHT: Final = 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 20.0, 14.0, 34.0
_INK: Final = "#24292f"
_FAINT: Final = "#57606a"
_GRID: Final = "#e4e8ec"
_BLUE: Final = "#0072B2"
_ORANGE: Final = "#D55E00"
_WORST: Final = 0.25
"""Scores below this quantile are drawn at the edge: one that diverged would hide the others."""


def _svg(*parts: Markup, height: float = _HEIGHT, label: str = "") -> Markup:
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        class_="drawing",
        role="img",
        aria_label=label,
    )


def _text(x: float, y: float, words: str, anchor: str = "middle", fill: str = _FAINT) -> Markup:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=fill)


def _line(
    points: Sequence[tuple[float, float]], colour: str, width: float, opacity: float
) -> Markup:
    path = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(points))
    return element(
        "path",
        d=path,
        fill="none",
        stroke=colour,
        stroke_width=f"{width:g}",
        stroke_opacity=f"{opacity:.2f}",
    )


def _dot(x: float, y: float, colour: str, title: str, radius: float = 3.5) -> Markup:
    return element(
        "circle",
        element("title", title),
        cx=f"{x:.1f}",
        cy=f"{y:.1f}",
        r=f"{radius:g}",
        fill=colour,
    )


class _Scores:
    """The vertical axis of scores, upwards from the bad to the good end that is worth showing."""

    def __init__(self, found: Searched) -> None:
        scores = sorted(one.score for one in found.results if one.score is not None)
        if found.less_is_better:
            scores.reverse()
        worst = scores[int(_WORST * len(scores))] if len(scores) > 3 else scores[0]
        best = scores[-1]
        margin = 0.25 * (best - worst) or 0.05 * abs(best) or 1.0
        self.worst, self.best = worst - margin, best + 0.2 * margin
        self._less = found.less_is_better

    def at(self, score: float) -> float:
        """The place of a score; of one beyond the worst, the bottom."""
        part = (score - self.worst) / (self.best - self.worst)
        return _HEIGHT - _BOTTOM - min(max(part, 0.0), 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    def axis(self) -> list[Markup]:
        """Lines and figures."""
        parts = []
        for step in range(5):
            score = self.worst + step / 4 * (self.best - self.worst)
            y = self.at(score)
            parts.append(_line([(_LEFT, y), (_WIDTH - _RIGHT, y)], _GRID, 1, 1))
            below = (" or less" if not self._less else " or more") if step == 0 else ""
            parts.append(_text(_LEFT - 6, y + 4, f"{score:.4g}", "end"))
            if below:
                parts.append(_text(_LEFT + 4, y - 4, below.strip(), "start"))
        return parts


def _across(count: int) -> Callable[[int], float]:
    room = _WIDTH - _LEFT - _RIGHT
    return lambda number: _LEFT + (number + 0.5) / max(count, 1) * room


def _titled(one: TrialResult, metric: str) -> str:
    return f"trial {one.trial.number}: {metric} {short(one.score)}, {one.trial.words}"


def progress_chart(found: Searched) -> Markup:
    """The score of every trial, and the best so far of those that were trained to the end."""
    scored = [one for one in found.results if one.score is not None]
    if not scored:
        return element("p", "No trial has a score.")
    scores, x = _Scores(found), _across(len(found.results))
    parts = scores.axis()
    best: TrialResult | None = None
    line: list[tuple[float, float]] = []
    whole = set(found.whole)
    for one in scored:
        if one.trial.number in whole:
            best = found.best_of([one] if best is None else [best, one])
        if best is not None and best.score is not None:
            if line:
                line.append((x(one.trial.number), line[-1][1]))
            line.append((x(one.trial.number), scores.at(best.score)))
    if line:
        parts.append(_line(line, _ORANGE, 2, 1))
    for one in scored:
        colour = _BLUE if one.trial.number in whole else "#9ecae1"
        parts.append(
            _dot(
                x(one.trial.number), scores.at(one.score or 0.0), colour, _titled(one, found.metric)
            )
        )
    parts.append(_text(_WIDTH / 2, _HEIGHT - 6, "trial"))
    parts.append(_text(_LEFT, _HEIGHT - 6, "0", "start"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 6, str(len(found.results) - 1), "end"))
    return _svg(*parts, label=f"{found.metric} of every trial")


def lineage_chart(found: Searched) -> Markup:
    """Lines from every trial to those that came of it."""
    scored = {one.trial.number: one for one in found.results if one.score is not None}
    if not scored:
        return element("p", "No trial has a score.")
    scores, x = _Scores(found), _across(len(found.results))
    parts = scores.axis()
    bold = {one.number for one in found.schedule}
    if found.best is not None:
        step = found.best.trial
        while step.parent is not None and step.parent in scored:
            bold.add(step.parent)
            step = scored[step.parent].trial
    for one in scored.values():
        parent = scored.get(-1 if one.trial.parent is None else one.trial.parent)
        if parent is None or parent.score is None or one.score is None:
            continue
        ends = [
            (x(parent.trial.number), scores.at(parent.score)),
            (x(one.trial.number), scores.at(one.score)),
        ]
        winner = one.trial.number in bold and parent.trial.number in bold
        copied = one.trial.continues and one.trial.values != parent.trial.values
        colour = _ORANGE if copied or winner else _FAINT
        parts.append(_line(ends, colour, 3 if winner else 1, 1 if winner else 0.45))
    for one in scored.values():
        parts.append(
            _dot(
                x(one.trial.number),
                scores.at(one.score or 0.0),
                _ORANGE if one.trial.number in bold else _BLUE,
                f"{_titled(one, found.metric)}; {one.trial.reason}",
                3,
            )
        )
    parts.append(_text(_WIDTH / 2, _HEIGHT - 6, "trial"))
    return _svg(*parts, label="which trial came of which")


def _place(parameter: FreeParameter, value: object) -> float:
    """Where a value is on its axis, from 0 to 1; of a sequence its length."""
    if isinstance(parameter, (Uniform, Integer, Choice)):
        return parameter.position(value)  # type: ignore[arg-type]
    length = len(value) if isinstance(value, list) else 0
    longest, shortest = parameter.longest, parameter.shortest  # type: ignore[attr-defined]
    return float((length - shortest) / (longest - shortest))


def _ends(parameter: FreeParameter) -> tuple[str, str]:
    if isinstance(parameter, (Uniform, Integer)):
        return short(parameter.low), short(parameter.high)
    if isinstance(parameter, Choice):
        return short(parameter.values[0]), short(parameter.values[-1])
    return f"{parameter.shortest} items", f"{parameter.longest} items"  # type: ignore[attr-defined]


def values_chart(found: Searched, plan: SearchPlan) -> Markup:
    """Parallel coordinates: an axis for every parameter, and one for the score."""
    scored = [one for one in found.results if one.score is not None]
    if not scored:
        return element("p", "No trial has a score.")
    scores = _Scores(found)
    names = [*plan.parameters]
    room = _WIDTH - 2 * _LEFT
    x = [_LEFT + at / max(1, len(names)) * room for at in range(len(names) + 1)]
    high, low = _TOP + 16, _HEIGHT - _BOTTOM

    def points(one: TrialResult) -> list[tuple[float, float]]:
        line = [
            (x[at], low - _place(plan.parameters[name], one.trial.values[name]) * (low - high))
            for at, name in enumerate(names)
        ]
        reached = (scores.at(one.score or 0.0) - _TOP) / (low - _TOP)
        return [*line, (x[-1], high + reached * (low - high))]

    parts = []
    order = plan.order(scored)
    for rank, one in enumerate(order):
        part = rank / max(1, len(order) - 1)
        strong = one is found.best
        parts.append(
            _line(
                points(one),
                _ORANGE if strong else _BLUE,
                2.5 if strong else 1,
                1.0 if strong else 0.08 + 0.6 * part**2,
            )
        )
    for at, name in enumerate([*names, found.metric]):
        parts.append(_line([(x[at], high), (x[at], low)], _INK, 1, 0.6))
        parts.append(_text(x[at], high - 16, name, fill=_INK))
        ends = (
            _ends(plan.parameters[name])
            if at < len(names)
            else (f"{scores.worst:.4g}", f"{scores.best:.4g}")
        )
        parts.append(_text(x[at], low + 16, ends[0]))
        parts.append(_text(x[at], high - 4, ends[1]))
    return _svg(*parts, label="the values of every trial")


def schedule_chart(found: Searched, plan: SearchPlan) -> Markup:
    """The values of the winner over its samples, a row for every parameter."""
    steps = found.schedule
    row, names = 64.0, [*plan.parameters]
    height = row * len(names) + 30
    total = max(one.until or 0 for one in steps) or 1
    room = _WIDTH - 2 * _LEFT - 60
    parts = []
    for at, name in enumerate(names):
        bottom, top = at * row + row - 8, at * row + 14
        parts.append(_text(_LEFT + 50, (top + bottom) / 2 + 4, name, "end", _INK))
        parts.append(_line([(_LEFT + 60, bottom), (_LEFT + 60 + room, bottom)], _GRID, 1, 1))
        begun, line = 0, []
        for step in steps:
            y = bottom - _place(plan.parameters[name], step.values[name]) * (bottom - top)
            ends = [_LEFT + 60 + one / total * room for one in (begun, step.until or total)]
            line += [(ends[0], y), (ends[1], y)]
            parts.append(_text((ends[0] + ends[1]) / 2, y - 4, short(step.values[name])))
            begun = step.until or total
        parts.append(_line(line, _ORANGE, 2, 1))
    parts.append(_text(_LEFT + 60, height - 6, "0 samples", "start"))
    parts.append(_text(_LEFT + 60 + room, height - 6, f"{total:,}", "end"))
    return _svg(*parts, height=height, label="the values of the winner over its samples")
