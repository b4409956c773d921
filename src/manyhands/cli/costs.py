"""`manyhands costs`: times of an allreduce by formula, and work and depth of a job's layers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import typer

from manyhands import units
from manyhands.cli.exit import leave
from manyhands.costs import (
    BETWEEN_WORKERS,
    LinkSpeed,
    fastest,
    fastest_ranges,
    hierarchical_servers,
    lower_bound,
    one_server,
    sharded_servers,
)
from manyhands.reports.formatting import listed, plural, size
from manyhands.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from manyhands.costs import AllreduceCost, FastestRange, NetworkCost, WorkDepth

    _Algorithm = Callable[[float, int], AllreduceCost]

_Number = TypeVar("_Number", int, float)
_WIDTH: Final = 100
"""Columns of the table if the output is no terminal."""
_MOST_ROWS: Final = 100
_MOST_LISTED: Final = 6
"""Numbers of workers that a sentence lists."""
_SIZES: Final = "1KB..1GB"
"""Sizes of a chart if none are given."""
_COLUMNS_PER_OCTAVE: Final = 16
"""Numbers of workers between two powers of two that a chart shows."""


class _Row(NamedTuple):
    """A number of workers and a size."""

    workers: int
    bytes: float


def costs(arguments: list[str], options: Mapping[str, Any]) -> None:
    """Compute and print the times; execute the script up to its main guard if there is one."""
    try:
        link = LinkSpeed(
            units.seconds(options["latency"]),
            units.bandwidth(options["bandwidth"]),
            units.bandwidth(options["reduction"]) if options["reduction"] else math.inf,
        )
        network = _network(arguments, options)
        counts = _steps(options["workers"] or "2..1024", units.count)
        sizes = _sizes(options, network)
        _check_ranges(counts, sizes, options["chart"])
        if options["chart"] is not None:
            _draw(options["chart"], counts, options["bytes"], link)
    except (TypeError, ValueError, ModuleNotFoundError) as error:
        leave(f"manyhands: {error}")
    # A range of both is only drawn; its table is of the largest number of workers.
    rows = [
        _Row(count, each)
        for count in (counts if len(sizes) == 1 else counts[-1:])
        for each in sizes
    ]
    columns = _columns(options["servers"], options["islands"])
    if options["json"]:
        typer.echo(json.dumps(_result(rows, columns, link, network), indent=2))
        return
    _show(rows, columns, link, network)
    if options["chart"] is not None:
        typer.echo(f"\n{options['chart']}: the fastest algorithm over workers and sizes")


def _network(arguments: list[str], options: Mapping[str, Any]) -> NetworkCost | None:
    """The layers of the script's job, if a script is given."""
    if options["script"] is None:
        if arguments:
            raise ValueError(f"arguments are for a script: --script script.py -- {arguments[0]}")
        return None
    # Not at the top: formulas alone need no torch.
    from manyhands.cli.script_job import enter, load_job  # noqa: PLC0415
    from manyhands.placements.forecasts.network_cost import job_network_cost  # noqa: PLC0415

    enter(options["script"], arguments)
    _, job, _ = load_job(options["script"], options["job"])
    return job_network_cost(job, options["batch"])


def _sizes(options: Mapping[str, Any], network: NetworkCost | None) -> list[float]:
    given = [name for name in ("parameters", "bytes", "script") if options[name] is not None]
    if not given or (len(given) > 1 and set(given) != {"bytes", "script"}):
        raise ValueError(
            "expected one of --parameters 25.6M, --bytes 100MB and --script script.py, "
            f"got {listed(['--' + name for name in given]) or 'none of them'}"
        )
    if options["bytes"] is not None:
        return _steps(options["bytes"], units.size)
    if network is not None:
        return [float(options["parameter_bytes"] * network.parameters)]
    return [float(options["parameter_bytes"] * units.count(options["parameters"]))]


def _check_ranges(counts: Sequence[int], sizes: Sequence[float], chart: Path | None) -> None:
    if len(sizes) > 1 and len(counts) > 1 and chart is None:
        raise ValueError(
            "a range of --bytes needs one number of workers, as in --workers 64; ranges of both "
            "are drawn: --chart costs.svg"
        )


def _steps(text: str, read: Callable[[str], _Number]) -> list[_Number]:
    """The values of `4`, `2,3,4` or `2..1024`; a range doubles, and both ends are part of it.

    >>> _steps("2..20", units.count), _steps("3, 5", units.count)
    ([2, 4, 8, 16, 20], [3, 5])
    """
    begin, dots, end = text.partition("..")
    if not dots:
        found = [read(part) for part in text.split(",")]
    else:
        least, most = read(begin), read(end)
        if least > most:
            raise ValueError(f"expected a range from the smaller to the larger end, got {text!r}")
        found = [least]
        while found[-1] < most:
            found.append(min(2 * found[-1], most))
    if len(found) > _MOST_ROWS:
        raise ValueError(f"expected at most {_MOST_ROWS} values, got {len(found)}: {text!r}")
    return found


def _columns(servers: int, islands: int | None) -> dict[str, _Algorithm]:
    """By their titles, all that is shown beside the algorithms between workers."""

    def on_islands(amount: float, workers: int) -> AllreduceCost:
        return hierarchical_servers(
            amount, workers, None if islands is None else min(islands, workers)
        )

    shown: dict[str, _Algorithm] = {**BETWEEN_WORKERS, "bound": lower_bound}
    shown["1 server"] = one_server
    if servers > 1:
        shown[counted(servers, "server")] = partial(sharded_servers, servers=servers)
    shown["islands"] = on_islands
    return shown


def _result(
    rows: Sequence[_Row],
    columns: Mapping[str, _Algorithm],
    link: LinkSpeed,
    network: NetworkCost | None,
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "latency": link.latency,
        "bandwidth": link.bandwidth,
        "reduction": link.reduction if math.isfinite(link.reduction) else None,
        "rows": [
            {
                "workers": row.workers,
                "bytes": row.bytes,
                "fastest": fastest(row.bytes, row.workers, link),
                "algorithms": {
                    name: _figures(algorithm(row.bytes, row.workers), row.workers, link)
                    for name, algorithm in columns.items()
                },
            }
            for row in rows
        ],
        "fastest": [
            {
                "workers": count,
                "ranges": [
                    {
                        "algorithm": one.algorithm,
                        "begin": one.begin,
                        "end": one.end if math.isfinite(one.end) else None,
                    }
                    for one in fastest_ranges(count, link)
                ],
            }
            for count in dict.fromkeys(row.workers for row in rows)
        ],
    }
    if network is not None:
        result["network"] = {
            "parameters": network.parameters,
            **asdict(network.cost),
            "parallelism": network.cost.parallelism,
            "memory": network.memory,
            "assumed": list(network.assumed),
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    **asdict(layer.cost),
                    "parallelism": layer.cost.parallelism,
                    "weights": layer.weights,
                    "weight_gradients": layer.weight_gradients,
                    "outputs": layer.outputs,
                    "output_gradients": layer.output_gradients,
                }
                for layer in network.layers
            ],
        }
    return result


def _figures(cost: AllreduceCost, workers: int, link: LinkSpeed) -> dict[str, float]:
    return {
        "seconds": cost.seconds(link),
        "rounds": cost.rounds,
        "messages": cost.messages,
        "sent": cost.sent,
        "sent_per_worker": cost.sent / workers,
    }


def _show(
    rows: Sequence[_Row],
    columns: Mapping[str, _Algorithm],
    link: LinkSpeed,
    network: NetworkCost | None,
) -> None:
    # Not at the top: JSON output needs no table.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    if network is not None:
        _show_layers(console, network)
    by_size = len({row.workers for row in rows}) == 1 and len(rows) > 1
    what = (
        f"{rows[0].workers:,} worker{plural(rows[0].workers)}" if by_size else size(rows[0].bytes)
    )
    console.print(f"Allreduce: {what}, {_link_words(link)}\n", style="bold")
    first = "bytes" if by_size else "workers"
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in (first, *columns):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        best = fastest(row.bytes, row.workers, link)
        cells = []
        for name, algorithm in columns.items():
            words = units.seconds_words(algorithm(row.bytes, row.workers).seconds(link))
            cells.append(f"{words} *" if name == best else f"{words}  ")
        table.add_row(size(row.bytes) if by_size else f"{row.workers:,}", *cells)
    console.print(table)
    console.print(
        "\n* the fastest of the algorithms between workers; bound: no exchange between workers is "
        "faster. Servers are processes beside the workers, and their messages overlap.\n"
    )
    counts = list(dict.fromkeys(row.workers for row in rows))
    for sentence in _crossovers({count: fastest_ranges(count, link) for count in counts}):
        console.print(sentence)


def _show_layers(console: Console, network: NetworkCost) -> None:
    from rich.table import Table  # noqa: PLC0415 - JSON output needs no table

    console.print("Layers: forward pass of a batch\n", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in ("layer", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("W", "D", "W/D", "weights", "outputs", "gradients"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in network.layers:
        gradients = layer.weight_gradients + layer.output_gradients
        table.add_row(
            layer.name or "(model)",
            layer.kind,
            *_work(layer.cost),
            *(size(layer.weights), size(layer.outputs), size(gradients)),
        )
    totals = (
        sum(layer.weights for layer in network.layers),
        sum(layer.outputs for layer in network.layers),
        sum(layer.weight_gradients + layer.output_gradients for layer in network.layers),
    )
    table.add_section()
    table.add_row(
        *("network", ""),
        *_work(network.cost),
        *map(size, totals),
    )
    console.print(table)
    console.print(
        f"\n{network.parameters:,} parameters. W: operations; D: the longest chain of them; W/D: "
        "average parallelism. D of the network is that of its longest path."
    )
    if network.assumed:
        names = listed(list(network.assumed))
        console.print(f"No formula for {names}: counted as one operation for each element.")
    console.print("")


def _work(cost: WorkDepth) -> tuple[str, str, str]:
    return _short(cost.work), f"{cost.depth:,}", _short(cost.parallelism)


def _short(number: float) -> str:
    """A number of operations, in at most four digits beyond a million.

    >>> _short(349525.3), _short(2_466_119_680), _short(2.0477e15)
    ('349,525', '2.5 G', '2,047.7 T')
    """
    if number < 1e6:
        return f"{number:,.0f}"
    for unit, scale in (("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if number < 1000 * scale or unit == "T":
            break
    return f"{number / scale:,.1f} {unit}"


def _link_words(link: LinkSpeed) -> str:
    words = f"{units.seconds_words(link.latency)}, {units.bandwidth_words(link.bandwidth)}"
    if math.isfinite(link.reduction):
        words += f", {size(link.reduction)}/s added up"
    return words


def _crossovers(found: Mapping[int, Sequence[FastestRange]]) -> list[str]:
    """Sentences on the sizes up to which algorithms are the fastest."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for count in sorted(found):
        alike.setdefault(tuple(one.algorithm for one in found[count]), []).append(count)
    sentences = []
    for order, counts in alike.items():
        texts = [f"{count:,}" for count in counts]
        many = len(texts) > _MOST_LISTED
        shown = f"{texts[0]}, {texts[1]}, …, {texts[-1]}" if many else listed(texts)
        where = f"On {shown} worker{plural(texts[-1])}"
        if len(order) == 1:
            sentences.append(f"{where}: {order[0]} for all sizes.")
            continue
        parts = []
        for at, name in enumerate(order[:-1]):
            ends = [found[count][at].end for count in counts]
            least, most = size(min(ends)), size(max(ends))
            limit = least if least == most else f"a size between {least} and {most}"
            parts.append(f"{name} up to {limit}")
        sentences.append(f"{where}: {', '.join(parts)}, then {order[-1]}.")
    return sentences


def _draw(path: Path, counts: Sequence[int], sizes: str | None, link: LinkSpeed) -> None:
    from manyhands.reports.publication import FORMATS  # noqa: PLC0415 - formulas need no charts
    from manyhands.reports.publication.fastest_map import draw_fastest  # noqa: PLC0415

    if path.suffix.removeprefix(".") not in FORMATS:
        raise ValueError(f"a chart is drawn as SVG or PDF: use {path.with_suffix('.svg')}")
    shown = _steps(sizes if sizes and ".." in sizes else _SIZES, units.size)
    ranges = {count: fastest_ranges(count, link) for count in _counts_between(counts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_fastest(ranges, (shown[0], shown[-1]), tuple(BETWEEN_WORKERS), _link_words(link), [path])


def _counts_between(counts: Sequence[int]) -> list[int]:
    """All numbers of workers of a chart: every one while they are small, then 16 per octave.

    >>> len(_counts_between([2, 1024])), _counts_between([2, 5])
    (111, [2, 3, 4, 5])
    """
    least, most = min(counts), max(counts)
    found = [least]
    while found[-1] < most:
        step = max(1, 2 ** (found[-1].bit_length() - 1) // _COLUMNS_PER_OCTAVE)
        found.append(min(found[-1] + step, most))
    return found
