"""Executes the commands on the course's pages: `python -m docs.course.make [part-2 …]`.

A block marked `console` holds a command, after `$`, and what it prints. The command is executed in
a folder that contains `examples`, and what it prints replaces the text below it, so that a page
shows what was really printed; a line near its end has the date and the commit. Pictures are those
that `manyhands export` draws of a page's comparisons. At last every page is written as a notebook
in `docs/course/notebooks`, with the same commands in cells.

    python -m docs.course.make              all pages: about five minutes on two cores
    python -m docs.course.make --notebooks  the notebooks only
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
PAGES = tuple(sorted(path.stem for path in FOLDER.glob("part-*.md")))
WIDTH = 96
_BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_MADE = re.compile(r"^Executed on \d{4}-\d\d-\d\d with commit `[0-9a-f]{7,}`\.\n\n", re.MULTILINE)
"""When the commands of a page were executed."""
_TOLERANCE = 0.1
"""Of figures, which depend in their last digits on the processor; in proportion."""


PICTURES = {
    "part-2": {"course-2/export/accuracy-seconds.svg": "part-2.svg"},
    "part-3": {"course-3/export/accuracy-seconds.svg": "part-3.svg"},
    "part-4": {"gpipe.svg": "gpipe.svg", "pipedream.svg": "pipedream.svg"},
    "part-5": {"course-5/export/accuracy-seconds.svg": "part-5.svg"},
}
"""Pictures of a page: what its commands write, and the file here."""


@dataclass(frozen=True)
class Shown:
    """A command on a page, and what the page says that it prints.

    Attributes:
        command: as it is typed, without line continuations.
        typed: the lines of the command as they stand on the page.
        output: the lines below it.
    """

    command: str
    typed: str
    output: str


def shown(page: str) -> list[Shown]:
    """The commands of a page, in their order."""
    return [_read(match["text"]) for match in _BLOCK.finditer(_path(page).read_text("utf-8"))]


def execute(command: str, folder: Path) -> str:
    """What a command prints, executed in a folder that has `examples`; raises if it fails."""
    examples = folder / "examples"
    if not examples.exists():
        # A copy, not a link: what is printed has no path outside of the folder.
        shutil.copytree(ROOT / "examples", examples)
    done = subprocess.run(  # noqa: S602 - the pages' own commands, as a reader types them
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, **_environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip("\n").split("\n"))


def same(output: str, printed: str) -> bool:
    """Whether two outputs have the same words, and figures that are near each other."""
    words, others = _NUMBER.sub("#", output).split(), _NUMBER.sub("#", printed).split()
    # A line of a table is as wide as its widest figure.
    if [word.strip("─-") for word in words] != [word.strip("─-") for word in others]:
        return False
    figures, found = (
        [float(figure.replace(",", "")) for figure in _NUMBER.findall(text)]
        for text in (output, printed)
    )
    return all(
        abs(one - other) <= max(_TOLERANCE * abs(one), 0.05)
        for one, other in zip(figures, found, strict=True)
    )


def make(page: str, folder: Path) -> None:
    """Execute the commands of a page and write what they print into it."""
    found = shown(page)
    printed = []
    for one in found:
        begun = time.monotonic()
        printed.append(execute(one.command, folder))
        print(f"{page}: {time.monotonic() - begun:.0f} s: {one.command}")
    outputs = iter(zip(found, printed, strict=True))

    def block(_match: re.Match[str]) -> str:
        one, text = next(outputs)
        return f"```console\n{one.typed}{text}```"

    path = _path(page)
    path.write_text(signed(_BLOCK.sub(block, path.read_text("utf-8")), commit()), "utf-8")
    for source, file in PICTURES.get(page, {}).items():
        if "/export/" in source:
            execute(f"manyhands export {source.partition('/')[0]} --format svg", folder)
        shutil.copy(folder / source, FOLDER / "pictures" / file)
    if page == "part-1":
        draw_speedups(FOLDER / "pictures" / "part-1.svg")


def signed(text: str, made_with: str) -> str:
    """A page with today's date and a commit before its last paragraph, which leads to others."""
    body, _, last = _MADE.sub("", text).rstrip("\n").rpartition("\n\n")
    today = datetime.now(UTC).date()
    return f"{body}\n\nExecuted on {today} with commit `{made_with}`.\n\n{last}\n"


def is_signed(text: str) -> bool:
    """Whether a page says when its commands were executed, and with which commit."""
    return len(_MADE.findall(text)) == 1


def commit() -> str:
    """The commit of this checkout, shortened."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the user's git
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def draw_speedups(path: Path) -> None:
    """Draw the speedup of `allreduce()` as a plan predicts it, for two networks on two links."""
    import matplotlib as mpl  # noqa: PLC0415 - only for this picture

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "course"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    axes.plot([1, 2, 4, 8], [1, 2, 4, 8], color="0.7", linestyle=":", label="ideal")
    for job, color in (("dense", "tab:blue"), ("convolutional", "tab:orange")):
        for link, line in (("10gbit", "-"), ("1gbit", "--")):
            rates = _rates(job, link)
            speedups = [rates[count] / rates[1] for count in sorted(rates)]
            label = f"{job}, {link.removesuffix('gbit')} Gbit/s"
            axes.plot(sorted(rates), speedups, line, color=color, marker="o", label=label)
    axes.set(xlabel="workers", ylabel="times one worker", ylim=(0, 8.3))
    axes.set_xticks([1, 2, 4, 8])
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _rates(job: str, link: str) -> dict[int, float]:
    """Predicted samples/s of a job of the course by number of workers."""
    command = (
        f"manyhands plan examples/course.py --job {job} --assume '100 GFLOP/s' --json"
        f" --cluster '8 hosts of 1 worker, {link}' --strategy allreduce"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = json.loads(execute(command, Path(folder)))
    return {one["workers"]: one["rate"] for one in found["ranking"]}


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook: its text, and its commands in cells with what they print."""
    text = _path(page).read_text("utf-8")
    cells: list[dict[str, Any]] = [
        _cell("The commands of this page are executed in the repository's folder.", 0),
        _code("%cd -q ../../..", "", 1),
    ]
    place = 0
    for match in _BLOCK.finditer(text):
        cells.append(_cell(text[place : match.start()], len(cells)))
        one = _read(match["text"])
        command = f"!COLUMNS={WIDTH} {one.typed.removeprefix('$ ').rstrip()} 2>/dev/null"
        cells.append(_code(command, one.output, len(cells)))
        place = match.end()
    cells.append(_cell(text[place:], len(cells)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write_notebooks() -> None:
    """Write the notebook of every page."""
    for page in PAGES:
        path = FOLDER / "notebooks" / f"{page}.ipynb"
        path.write_text(json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _path(page: str) -> Path:
    """The file of a page."""
    return FOLDER / f"{page}.md"


def _environment() -> dict[str, str]:
    """Variables of a command: the width of what it prints, and this interpreter's programs."""
    programs = str(Path(sys.executable).parent)
    return {"COLUMNS": str(WIDTH), "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}


def _read(block: str) -> Shown:
    """The command and the output of a block."""
    lines = block.splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\\n"))
    typed = "".join(lines[: last + 1])
    command = " ".join(typed.removeprefix("$ ").replace("\\\n", " ").split())
    return Shown(command, typed, "".join(lines[last + 1 :]))


def _cell(text: str, number: int) -> dict[str, Any]:
    """A cell of text; its links lead from the folder of the notebooks."""
    # A page's links to other pages, to pictures and to files above.
    moved = re.sub(r"\]\((?!https?:|#)", "](../", text.strip("\n"))
    return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": moved}


def _code(source: str, output: str, number: int) -> dict[str, Any]:
    """A cell of code, with what it prints."""
    outputs = [{"name": "stdout", "output_type": "stream", "text": output}] if output else []
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": outputs,
        "source": source,
    }


def main() -> None:
    """Make the pages that are named, or all, and the notebooks."""
    parser = argparse.ArgumentParser(description="Execute the commands on the course's pages.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}")
    parser.add_argument("--notebooks", action="store_true", help="write the notebooks only")
    chosen = parser.parse_args()
    if not chosen.notebooks:
        with tempfile.TemporaryDirectory() as folder:
            for page in chosen.pages or PAGES:
                make(page, Path(folder))
    write_notebooks()


if __name__ == "__main__":
    main()
