"""Tables of cases, and their figures as files: each with the command and the machine behind it."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: words to the left, numbers to the right.

    >>> print(table(["workers", "accuracy"], [["1", "0.9912"]]))
    | workers | accuracy |
    | ------: | -------: |
    |       1 |   0.9912 |
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(3, *map(len, column)) for column in columns]
    right = [all(cell[:1].isdigit() or cell in ("", "–") for cell in c[1:]) for c in columns]

    def line(cells: Sequence[str]) -> str:
        sized = zip(cells, widths, right, strict=True)
        return f"| {' | '.join(c.rjust(w) if r else c.ljust(w) for c, w, r in sized)} |"

    rules = [
        "-" * (width - 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)
    ]
    return "\n".join([line(header), line(rules), *map(line, rows)])


def keep(case: str, figures: dict[str, object]) -> Path:
    """Store a case's figures in `results`, with this command and machine."""
    script, *options = sys.argv
    words = ["python", str(Path(script).resolve().relative_to(ROOT)), *options]
    told = {
        "case": case,
        "command": shlex.join(words),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[2], 1),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{case}.json"
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.machine())
