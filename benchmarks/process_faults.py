"""Every kind of process fails in every way, under ten strategies, on one host and on two.

    python -m benchmarks.process_faults                  # all of it: about an hour on two cores
    python -m benchmarks.process_faults --hosts 1 --strategies "allreduce(); asynchronous()"
    python -m benchmarks.process_faults --keep           # and writes the tables of docs/faults.md

With `--keep`, each run is stored when it has ended, and what is not measured stays as it was.

A run suffers one fault after the other, each when it has got over the one before. Of each the
seconds are measured until the process is gone, and until all workers train again. A fault passes if
the process is named, if it is gone, and replaced, within the patience and 5 s, if the terminal is
never silent for longer than 30 s, and if the run that had it ends with its model written and every
sample counted once. What ends the run (the loss of the first agent) has to say so, with a remedy.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import keep, kept, report
from benchmarks.process_faults_trial import PATIENCE, Cell, impossible, line_of, suffered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STRATEGIES = (
    *("allreduce()", "synchronous()", "ssp(staleness=2)", "asynchronous()", "diloco(every=4)"),
    *("gossip()", "fully_sharded()", "zero()", "tensor()", "pipeline()"),
)
FAULTS = ("kill", "stop", "exit0", "sleep", "gil")
PROCESSES = ("worker", "loader", "server", "fork server", "coordinator", "agent")
PAGE = Path(__file__).parents[1] / "docs" / "faults.md"


def pairs_of(processes: Iterable[str], faults: Iterable[str]) -> list[tuple[str, str]]:
    """The faults of a run, those of agents last, which may end it."""
    chosen = [*faults]
    # A fork server that was killed has a successor that loads torch for a while.
    order = {"fork server": sorted(chosen, key=lambda fault: fault != "stop")}
    return [(process, fault) for process in processes for fault in order.get(process, chosen)]


def table(cells: list[Cell], hosts: int) -> str:
    """The seconds as a table: until the process is gone, and until all workers train again."""
    known = {(one.strategy, one.process, one.fault): one for one in cells if one.hosts == hosts}
    names = [name for name in STRATEGIES if any(key[0] == name for key in known)]
    head = ["process", "fault", *(f"`{name.partition('(')[0]}`" for name in names)]
    rows = [head, ["---"] * len(head)]
    for process, fault in pairs_of(PROCESSES, FAULTS):
        row = [process, fault]
        for name in names:
            cell = known.get((name, process, fault))
            if impossible(name, hosts, process, fault):
                row.append("–")
            elif cell is None:
                row.append("")  # not measured
            elif not cell.passed:
                row.append("**failed**")
            else:
                row.append(f"{cell.gone} / {'ends' if cell.on is None else cell.on}")
        if any(text not in ("–", "") for text in row[2:]):
            rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_page(cells: list[Cell], page: Path = PAGE) -> None:
    """Write the tables into the page, between its markers."""
    text = page.read_text(encoding="utf-8")
    for hosts in (1, 2):
        marker = f"process faults on {hosts}"
        begin, end = f"<!-- {marker} -->", f"<!-- end of {marker} -->"
        if begin in text and any(one.hosts == hosts for one in cells):
            before, _, rest = text.partition(begin)
            after = rest.partition(end)[2]
            text = f"{before}{begin}\n\n{table(cells, hosts)}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def store(cells: list[Cell]) -> None:
    """Store cells, beside those of other runs that were not measured again."""
    stored = kept("process_faults")["figures"]["cells"]
    known = {_place(cell): cell for cell in (Cell(**one) for one in stored)}
    known |= {_place(cell): replace(cell, words=_anywhere(cell.words)) for cell in cells}
    every = [known[place] for place in sorted(known)]
    passed = sum(cell.passed for cell in every)
    told = {"patience": PATIENCE, "cells": [asdict(cell) for cell in every], "passed": passed}
    keep("process_faults", told)
    write_page(every)


def _anywhere(words: str) -> str:
    """Words whose paths begin at the checkout, or at the library: results are not of one machine.

    >>> _anywhere("it was at /home/me/manyhands/benchmarks/job.py:70 in loss")
    'it was at benchmarks/job.py:70 in loss'
    """
    return re.sub(r"/\S*/(?=(?:benchmarks|src|tests|lib/python[\d.]+)/)", "", words)


def _place(cell: Cell) -> tuple[int, str, str, str]:
    return cell.hosts, cell.strategy, cell.process, cell.fault


def main() -> None:
    """Measure, report and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default="; ".join(STRATEGIES))
    parser.add_argument("--processes", default="; ".join(PROCESSES))
    parser.add_argument("--faults", default="; ".join(FAULTS))
    parser.add_argument("--hosts", default="1; 2")
    parser.add_argument("--at-once", type=int, default=3, help="runs side by side")
    parser.add_argument("--keep", action="store_true", help="store the figures and the tables")
    asked = parser.parse_args()
    split: Callable[[str], list[str]] = lambda text: [one.strip() for one in text.split(";")]  # noqa: E731
    pairs = pairs_of(split(asked.processes), split(asked.faults))
    runs = [(name, int(hosts)) for hosts in split(asked.hosts) for name in split(asked.strategies)]
    begun, storing = time.monotonic(), threading.Lock()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(asked.at_once) as pool:

        def measure(at: int) -> list[Cell]:
            strategy, hosts = runs[at]
            cells = [*suffered(strategy, hosts, pairs, Path(name) / str(at))]
            if asked.keep:
                with storing:
                    store(cells)
            return cells

        cells = [cell for found in pool.map(measure, range(len(runs))) for cell in found]
    failed = [cell for cell in cells if not cell.passed]
    for cell in failed:
        print(line_of(cell))
    told: dict[str, object] = {
        "passed": len(cells) - len(failed),
        "failed": len(failed),
        "do not exist": sum(bool(impossible(*run, *pair)) for run in runs for pair in pairs),
        "seconds": round(time.monotonic() - begun),
    }
    report("process_faults", told)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
