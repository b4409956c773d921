"""Charts for publication, drawn by matplotlib: SVG and PDF with fonts embedded.

A chart is drawn without pyplot, so that no state of the caller's matplotlib is used or changed. The
same content gives the same bytes: files hold no date.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from manyhands.reports.comparison.chart_content import (
    BarChart,
    HistogramChart,
    LineChart,
    PartsChart,
)
from manyhands.reports.comparison.columns import PART_TITLES
from manyhands.reports.page.palette import PARTS, PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from manyhands.reports.comparison.chart_content import ChartContent, ChartLine
    from manyhands.reports.page.palette import Look

WIDTH: Final = 5.5
"""Inches: the width of a text column."""
HEIGHT: Final = 3.4
_BAR: Final = 0.34
"""Inches for each bar."""
_INK: Final = "#24292f"
_GRID: Final = "#e4e8ec"
_MANY_POINTS: Final = 40
"""Beyond so many points a line has no marks."""
_MARKS: Final = {
    "circle": "o",
    "circle-open": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
}
"""Marks by the names that Plotly has for them."""
_STYLE: Any = {  # a dictionary; matplotlib lists its names in the type
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that all machines have it
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "text.parse_math": False,  # a dollar in a label is a dollar
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType, embedded; type 3 is refused by many journals
    "svg.fonttype": "path",
    "svg.hashsalt": "manyhands",
}
_NO_DATE: Final = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw(
    content: ChartContent, looks: Mapping[str, Look], heading: str, paths: Sequence[Path]
) -> None:
    """Draw a chart to these files, whose names end in .svg or .pdf.

    Args:
        content: what it shows.
        looks: the look of every strategy.
        heading: words that follow its title: the kind of the runs and their workers.
        paths: the files to write.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    with styled_figures() as figures:
        figure = figures(figsize=(WIDTH, _height(content)), layout="constrained")
        axes = figure.add_subplot()
        match content:
            case LineChart():
                _draw_lines(axes, content, looks)
            case PartsChart():
                _draw_parts(axes, content)
            case BarChart():
                _draw_bars(axes, content, looks)
            case HistogramChart():
                _draw_histogram(axes, content, looks)
        axes.set_title(f"{content.title}: {heading}")
        axes.set_xlabel(content.x_title)
        axes.set_ylabel(content.y_title)
        add_legend(figure, axes)
        save_figure(figure, paths)


def save_figure(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to these files, whose names end in .svg or .pdf."""
    for path in paths:
        kind = path.suffix.removeprefix(".")
        partial = path.with_name(f"{path.name}.part")
        figure.savefig(partial, format=kind, metadata=_NO_DATE[kind])
        partial.replace(path)


@contextlib.contextmanager
def styled_figures() -> Iterator[type[Figure]]:
    """The class of figures, under the style of these charts."""
    try:
        import matplotlib  # noqa: ICN001, PLC0415 - an optional extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "charts as SVG and PDF are drawn by matplotlib, which is not installed: "
            "pip install 'manyhands[figures]'"
        ) from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Figure


def _height(content: ChartContent) -> float:
    if isinstance(content, (PartsChart, BarChart)):
        lines = sum(1.4 if "\n" in _name(each) else 1.0 for each in content.strategies)
        return 1.3 + _BAR * lines
    return HEIGHT


def _draw_lines(axes: Axes, content: LineChart, looks: Mapping[str, Look]) -> None:
    if content.has_ideal:
        ends = [*content.ticks]
        axes.plot(ends, ends, ":", color="#57606a", linewidth=1, label="ideal")
    named: set[str] = set()
    for line in content.lines:
        # A median has the name of its strategy; without one, the first of the repeats.
        is_named = not line.is_beside and line.strategy not in named
        if is_named:
            named.add(line.strategy)
        _draw_line(axes, line, looks[line.strategy], line.strategy if is_named else "")
    if content.is_log:
        axes.set_xscale("log")
    if content.ticks:
        axes.set_xticks([*content.ticks], labels=[*content.ticks.values()])
        axes.minorticks_off()
    else:
        axes.set_xlim(left=0)
    if content.is_from_zero:
        axes.set_ylim(bottom=0)


def _draw_line(axes: Axes, line: ChartLine, look: Look, name: str) -> None:
    is_thin = line.repeat is not None
    is_open = look.symbol == "circle-open"
    values = [float("nan") if value is None else value for value in line.y]
    is_marked = len(values) <= _MANY_POINTS and (not line.is_beside or len(values) == 1)
    style: dict[str, Any] = {
        "color": look.colour,
        "linestyle": _dash(look.dash),
        "linewidth": 0.8 if is_thin else 1.6,
        "alpha": 0.4 if line.is_beside else 1.0,
        "marker": _MARKS[look.symbol] if is_marked else None,
        "markersize": 3 if is_thin else 4.5,
        "markerfacecolor": "white" if is_open else look.colour,
        "label": name or "_nolegend_",
        # Lines with gaps above whole ones: where two coincide, both show.
        "zorder": (3 if is_thin else 4) - look.cover,
    }
    if line.high:
        axes.errorbar(
            line.x, values, yerr=_reach(values, line.low, line.high), capsize=2.5, **style
        )
    else:
        axes.plot(line.x, values, **style)


def _draw_parts(axes: Axes, content: PartsChart) -> None:
    places = range(len(content.strategies))
    before = [0.0] * len(content.strategies)
    longest = max(map(sum, zip(*content.parts.values(), strict=True)), default=0.0)
    for part, lengths in content.parts.items():
        bars = axes.barh(
            places,
            lengths,
            left=before,
            height=0.7,
            color=PARTS[part],
            edgecolor="white",
            linewidth=0.7,
            label=PART_TITLES[part].lower(),
            hatch=PATTERNS[part] * 3,
        )
        # What does not fit into its part is left out.
        words = [
            f"{100 * share:.0f} %" if length >= 0.07 * longest else ""
            for share, length in zip(content.shares(part), lengths, strict=True)
        ]
        axes.bar_label(bars, words, label_type="center", fontsize=7)
        before = [start + length for start, length in zip(before, lengths, strict=True)]
    _name_bars(axes, content.strategies)


def _draw_bars(axes: Axes, content: BarChart, looks: Mapping[str, Look]) -> None:
    bars = axes.barh(
        range(len(content.strategies)),
        content.values,
        xerr=_reach(content.values, content.low, content.high) if content.high else None,
        height=0.62,
        color=[looks[strategy].colour for strategy in content.strategies],
        error_kw={"ecolor": _INK, "elinewidth": 1, "capsize": 3},
    )
    axes.bar_label(bars, content.texts, padding=4, fontsize=7.5)
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    _name_bars(axes, content.strategies)


def _name_bars(axes: Axes, strategies: Sequence[str]) -> None:
    axes.set_yticks(range(len(strategies)), labels=[_name(strategy) for strategy in strategies])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


def _draw_histogram(axes: Axes, content: HistogramChart, looks: Mapping[str, Look]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - an optional extra

    width = 0.8 / len(content.shares)
    for number, (strategy, shares) in enumerate(content.shares.items()):
        shift = (number - (len(content.shares) - 1) / 2) * width
        places = [versions + shift for versions in range(len(shares))]
        axes.bar(places, shares, width, color=looks[strategy].colour, label=strategy)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")


def add_legend(figure: Figure, axes: Axes) -> None:
    """A legend below the axes, in as many columns as there is room for."""
    handles, names = axes.get_legend_handles_labels()
    if names:
        columns = max(1, min(len(names), 86 // (8 + max(map(len, names)))))
        figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7.5)


def _reach(
    values: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> tuple[list[float], list[float]]:
    """How far the ends of intervals are below and above the values."""
    below = [value - end for value, end in zip(values, low, strict=True)]
    above = [end - value for value, end in zip(values, high, strict=True)]
    return below, above


def _dash(pattern: str) -> str | tuple[int, tuple[float, ...]]:
    """A line style, from SVG's stroke-dasharray.

    >>> _dash("7px,3px"), _dash("")
    ((0, (7.0, 3.0)), 'solid')
    """
    lengths = tuple(float(part.removesuffix("px")) for part in pattern.split(",") if part)
    return (0, lengths) if lengths else "solid"


def _name(strategy: str) -> str:
    """A strategy as a label of an axis, in two lines where it is long."""
    return strategy.replace("(", "\n(", 1) if len(strategy) > 18 else strategy
