"""`manyhands codecs`: what codecs save and take for a job, and on which networks they pay."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job
from manyhands.lab.break_even import break_even
from manyhands.lab.break_even.codecs import NETWORKS
from manyhands.reports.formatting import listed, plural, size
from manyhands.units import bandwidth_words, seconds_words
from manyhands.verbs.progress import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from manyhands.lab.break_even import BreakEven, CodecFigures

_WIDTH = 100
"""Columns of the table if the output is no terminal."""
_USUAL = 1
"""Index in NETWORKS of the network by which codecs are sorted if none is given: 100 Mbit/s."""


def codecs(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, and measure codecs on its job's gradients."""
    enter(script, arguments)
    _, job, _ = load_job(script, options["job"])
    given = options["network"]
    measured = ["the first gradients"]

    def words() -> str:
        return "" if options["json"] else f"measuring {measured[-1]}"

    try:
        with shown(words):
            found = break_even(
                job,
                options["codec"] or (),
                given or NETWORKS,
                options["workers"] or 4,
                sort_by=0 if given else _USUAL,
                note=measured.append,
            )
    except (TypeError, ValueError) as error:
        leave(f"manyhands: {error}")
    if options["json"]:
        typer.echo(json.dumps(_result(found), indent=2))
    else:
        _show(found, 0 if given else _USUAL)


def _result(found: BreakEven) -> dict[str, Any]:
    return {
        "bytes": found.dense,
        "samples": found.samples,
        "compute": found.compute,
        "workers": found.workers,
        "codecs": [
            {
                "codec": one.text,
                "bytes": one.cost.coded,
                "fixed_size": one.codec.fixed_size,
                "encode": one.cost.encode,
                "decode": one.cost.decode,
                "answer": {"encode": one.answer.encode, "decode": one.answer.decode},
                "pays_below": _finite(one.pays_below),
                "allreduce_pays_below": _finite(one.allreduce_pays_below),
                "memory": {"worker": one.worker_memory, "servers": one.server_memory},
                "networks": [
                    {
                        "bandwidth": at.bandwidth,
                        "latency": at.latency,
                        "saved": at.saved,
                        "push": {"seconds": at.push, "without_codec": at.push_plain},
                        "allreduce": {"seconds": at.allreduce, "without_codec": at.allreduce_plain},
                    }
                    for at in one.networks
                ],
            }
            for one in found.codecs
        ],
    }


def _finite(bandwidth: float) -> float | None:
    """Bytes per second; None for a codec that takes no time, which JSON has no number for."""
    return bandwidth if math.isfinite(bandwidth) else None


def _show(found: BreakEven, sort_by: int) -> None:
    # Not at the top: JSON output needs no table.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    networks = found.codecs[0].networks
    samples = f"{found.samples:,} sample{plural(found.samples)}"
    console.print(f"Codecs for gradients of {size(found.dense)}\n", style="bold")
    table = Table("codec", box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    alone = len(networks) == 1
    shown = [bandwidth_words(one.bandwidth).replace(" ", "\n") for one in networks]
    names = [f"step at\n{bandwidth_words(networks[0].bandwidth)}", "worker\nkeeps", "servers\nkeep"]
    for name in (
        *("sent", "fewer", "encode", "decode", "pays\nbelow"),
        *(("link\nsaves", *names) if alone else shown),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.codecs:
        cost = one.cost
        cells = [size(cost.coded), f"{_digits(one.ratio)}×"]
        cells += [seconds_words(cost.encode), seconds_words(cost.decode), _below(one.pays_below)]
        if alone:
            cells += [seconds_words(one.networks[0].saved), f"{_digits(one.networks[0].gain)}×"]
            cells += [size(one.worker_memory), size(one.server_memory)]
        else:
            cells += [f"{_digits(at.gain)}×" for at in one.networks]
        table.add_row(one.text, *cells)
    console.print(table)
    last = "The column of the step tells" if alone else "The last columns tell"
    console.print(
        "\nsent, encode and decode are of one vector in one direction, medians of the first "
        f"gradients of {samples}. {last} how many times as fast a step is, of "
        f"{seconds_words(found.compute)} of computation here, a push and its answer; sorted by "
        f"{bandwidth_words(networks[sort_by].bandwidth)}. In allreduce among {found.workers} "
        f"workers codecs pay below {_allreduce(found)}. {_memory(found)}"
    )
    console.print("")
    for index in range(len(networks)):
        console.print(_who_pays(found.codecs, index))
    console.print("What a codec does to accuracy is not measured here: manyhands compare shows it.")


def _below(bandwidth: float) -> str:
    if not bandwidth:
        return "never"
    return bandwidth_words(bandwidth) if math.isfinite(bandwidth) else "always"


def _digits(number: float) -> str:
    """Two digits, or three if there are three before the point."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _allreduce(found: BreakEven) -> str:
    """The range of bandwidths below which codecs pay in an allreduce."""
    paying = [one.allreduce_pays_below for one in found.codecs if one.allreduce_pays_below]
    if not paying:
        return "no bandwidth"
    least, most = _below(min(paying)), _below(max(paying))
    return least if least == most else f"{least} to {most}"


def _memory(found: BreakEven) -> str:
    dense, several = size(found.dense), f"{found.workers} worker{plural(found.workers)}"
    return (
        f"Memory: a worker keeps the last answer, {dense}, and as much for error feedback; servers "
        f"keep what each of {several} has, at most {size(found.workers * found.dense)}."
    )


def _who_pays(codecs: Sequence[CodecFigures], index: int) -> str:
    """Which codecs pay on a network, in a sentence."""
    network = bandwidth_words(codecs[0].networks[index].bandwidth)
    paying = [one for one in codecs if one.networks[index].gain > 1]
    others = [one.text for one in codecs if one not in paying]
    if not paying:
        return f"At {network} no codec pays: sending takes less time than encoding and decoding."
    if len(paying) == 1:
        return f"At {network} only {paying[0].text} pays."
    most = max(paying, key=lambda one: one.networks[index].gain).text
    if not others:
        return f"At {network} all of these pay, {most} most."
    if len(others) < len(paying):
        return f"At {network} all pay but {listed(others)}; {most} pays most."
    return f"At {network} {listed([one.text for one in paying])} pay, {most} most."
