"""Map of the fastest allreduce algorithm over numbers of workers and sizes, as SVG or PDF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.reports.formatting import size
from manyhands.reports.page.palette import looks
from manyhands.reports.publication.drawing import (
    HEIGHT,
    WIDTH,
    add_legend,
    save_figure,
    styled_figures,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from manyhands.costs import FastestRange


def draw_fastest(
    ranges: Mapping[int, Sequence[FastestRange]],
    sizes: tuple[float, float],
    algorithms: Sequence[str],
    heading: str,
    paths: Sequence[Path],
) -> None:
    """Draw which algorithm is the fastest where; needs the extra `figures`.

    Args:
        ranges: the fastest algorithms by the number of workers.
        sizes: the least and the largest size that is shown, in bytes.
        algorithms: all algorithms, each of which has its own colour.
        heading: words that follow the title: the latency and the bandwidth.
        paths: the files to write.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    least, most = sizes
    counts = sorted(ranges)
    colours = looks(algorithms)
    with styled_figures() as figures:
        figure = figures(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        for name in algorithms:
            bars = [
                (count, max(one.begin, least), min(one.end, most))
                for count in counts
                for one in ranges[count]
                if one.algorithm == name and one.begin < most and one.end > least
            ]
            if bars:
                begins = [_edge(counts, count, -1) for count, _, _ in bars]
                ends = [_edge(counts, count, 1) for count, _, _ in bars]
                axes.bar(
                    begins,
                    [high - low for _, low, high in bars],
                    width=[end - begin for begin, end in zip(begins, ends, strict=True)],
                    bottom=[low for _, low, _ in bars],
                    align="edge",
                    color=colours[name].colour,
                    linewidth=0,
                    label=name,
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(_edge(counts, counts[0], -1), _edge(counts, counts[-1], 1))
        axes.set_ylim(least, most)
        powers = [2**k for k in range(counts[-1].bit_length()) if 2**k >= counts[0]]
        axes.set_xticks(powers, labels=[f"{power:,}" for power in powers])
        decades = [10.0**k for k in range(16) if least <= 10**k <= most]
        axes.set_yticks(decades, labels=[size(each).replace(".0", "") for each in decades])
        axes.minorticks_off()
        axes.grid(visible=False)
        axes.set_title(f"Fastest allreduce: {heading}")
        axes.set_xlabel("workers")
        axes.set_ylabel("size")
        add_legend(figure, axes)
        save_figure(figure, paths)


def _edge(counts: Sequence[int], count: int, side: int) -> float:
    """Where the column of a number of workers ends, halfway to its neighbour.

    >>> _edge([2, 4, 8], 4, 1), _edge([2, 4, 8], 8, 1)
    (6.0, 10.0)
    """
    at = counts.index(count)
    beside = at + side
    if 0 <= beside < len(counts):
        return (count + counts[beside]) / 2
    if len(counts) == 1:
        return float(count * 2.0 ** (side / 2))
    return count + (count - counts[at - side]) / 2
