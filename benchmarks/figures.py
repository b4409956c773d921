"""Figures with their spread, and the machine they came from."""

import json
import os
import platform
import random
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "studies" / "live-and-virtual.md"
"""Where the tables of paced runs are shown."""


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "manyhands": version("manyhands"),
    }


def median_interval(values: Sequence[float], rounds: int = 5000) -> tuple[float, float, float]:
    """The median and a 95 % interval for it, by resampling the values."""
    draw = random.Random(0)  # noqa: S311 - statistics, not secrets; the same figures twice
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    return (
        statistics.median(values),
        medians[int(0.025 * rounds)],
        medians[int(0.975 * rounds)],
    )


def report(name: str, figures: dict[str, object]) -> None:
    """The last line: one JSON object."""
    print(json.dumps({"benchmark": name, "figures": figures, "machine": machine()}))


def keep(name: str, figures: dict[str, object]) -> None:
    """Store the figures, and the machine they came from, as the results of a benchmark."""
    RESULTS.mkdir(exist_ok=True)
    kept = {"benchmark": name, "figures": figures, "machine": machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def write_table(name: str, table: str) -> None:
    """Put a table made of stored results where the documentation shows it."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no place for the table of {name}")
    PAGE.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


def kept(name: str) -> dict[str, Any]:
    """What was stored as the results of a benchmark."""
    stored: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return stored
