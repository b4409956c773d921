"""A pipeline's schedule drawn: a row for every worker, as SVG and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from manyhands.schedules import LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.schedules import Kind, Replay, Table, Timed

_COLOURS: Final[dict[Kind, str]] = {
    "forward": "#0072B2",
    "backward": "#D55E00",
    "input": "#CC79A7",
    "weight": "#009E73",
}
"""Okabe and Ito's, which the colour-blind can tell apart."""
_WORDS: Final[dict[Kind, str]] = {
    "forward": "forward",
    "backward": "backward",
    "input": "gradient of the inputs",
    "weight": "gradient of the parameters",
}

_WIDTH, _LEFT, _RIGHT = 860, 74, 14
_TOP, _ROW, _BOX = 62, 30, 22
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_LEGIBLE: Final = 9
"""Pixels that a box needs for its number."""

_STYLE: Final = """
.paper{fill:#fff}.ink{fill:#24292f}.rail{fill:#eaeef2}.box{stroke:#fff}.number{fill:#fff}
@media(prefers-color-scheme:dark){
.paper{fill:#0d1117}.ink{fill:#e6edf3}.rail{fill:#21262d}.box{stroke:#0d1117}}
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
.title{font-size:15px;font-weight:600}.box{stroke-width:.6}.number{font-size:10px}
"""


def gantt(title: str, table: Table, done: Replay, end: float | None = None) -> str:
    """Who computes which microbatch when, as SVG; the same arguments give the same text.

    Args:
        title: stands above it.
        table: the schedule.
        done: when it happens.
        end: until when it is shown; to its end by default.
    """
    return "\n".join(_picture(title, table, done, end or done.makespan)) + "\n"


def text_rows(table: Table, done: Replay, width: int = 80) -> list[str]:
    r"""The same as text, a line for every worker; all durations must be multiples of 1.

    An action is its letter (`LETTERS`) and the number of its microbatch, from 1; letters of a
    worker's later stages are lower-case. What is wider than `width` goes on below.

    >>> from manyhands.schedules import Durations, one_f_one_b, replay
    >>> table = one_f_one_b(stages=2, microbatches=2, ranks=2)
    >>> print("\n".join(text_rows(table, replay(table, Durations.even(2, 1, 1, 1)))))
    worker 0  F1F2....B1--..B2--
    worker 1  ..F1B1--F2B2--....
    """
    cell = 1 + len(str(table.microbatches))
    margin = len(f"worker {len(done.ranks) - 1}")
    rows = []
    for actions in done.ranks:
        row = ["."] * (round(done.makespan) * cell)
        for timed in actions:
            begin, end = round(timed.start) * cell, round(timed.stop) * cell
            letter = LETTERS[timed.action.kind]
            if timed.action.stage >= len(table.ranks):
                letter = letter.lower()
            label = f"{letter}{timed.action.microbatch + 1}"
            row[begin:end] = list(label.ljust(end - begin, "-")[: end - begin])
        rows.append("".join(row))
    part = max(1, (width - margin - 2) // cell) * cell
    lines = []
    for begin in range(0, len(rows[0]), part):
        lines += [""] if begin else []
        for rank, line in enumerate(rows):
            lines.append(f"{f'worker {rank}'.ljust(margin)}  {line[begin : begin + part]}")
    return lines


def _picture(title: str, table: Table, done: Replay, end: float) -> Iterator[str]:
    height = _TOP + _ROW * len(done.ranks) + 12
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>'
    yield f'<text class="ink title" x="14" y="24">{escape(title)}</text>'
    used = {timed.action.kind for rank in done.ranks for timed in rank}
    yield from _legend([kind for kind in _COLOURS if kind in used])
    for rank, actions in enumerate(done.ranks):
        top = _TOP + _ROW * rank
        yield f'<text class="ink" x="14" y="{top + 16}">worker {rank}</text>'
        yield f'<rect class="rail" x="{_LEFT}" y="{top}" width="{_PLOT}" height="{_BOX}"/>'
        for timed in actions:
            if timed.start < end and timed.stop > timed.start:
                yield from _box(timed, table, top, end)
    yield "</svg>"


def _legend(kinds: list[Kind]) -> Iterator[str]:
    x = _LEFT
    for kind in kinds:
        yield f'<rect x="{x}" y="40" width="18" height="12" fill="{_COLOURS[kind]}"/>'
        yield f'<text class="ink" x="{x + 24}" y="50">{_WORDS[kind]}</text>'
        x += 24 + 7 * len(_WORDS[kind]) + 20


def _box(timed: Timed, table: Table, top: int, end: float) -> Iterator[str]:
    """An action with its microbatch's number; those of a worker's later stages are paler."""
    x = _LEFT + timed.start / end * _PLOT
    width = (min(timed.stop, end) - timed.start) / end * _PLOT
    local = timed.action.stage // len(table.ranks)
    pale = f' fill-opacity="{_number(1 - 0.35 * local / max(1, _local(table) - 1))}"'
    yield (
        f'<rect class="box" x="{_number(x)}" y="{top}" width="{_number(width)}" height="{_BOX}" '
        f'fill="{_COLOURS[timed.action.kind]}"{pale if local else ""}/>'
    )
    if width >= _LEGIBLE:
        yield (
            f'<text class="number" x="{_number(x + width / 2)}" y="{top + 15}" '
            f'text-anchor="middle">{timed.action.microbatch + 1}</text>'
        )


def _local(table: Table) -> int:
    return table.stages // len(table.ranks)


def _number(value: float) -> str:
    """To a hundredth, without superfluous zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
