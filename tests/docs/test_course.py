"""The course: pages show what their commands print, and are notebooks that run."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat import read

from manyhands.strategies import CATALOG
from support import ROOT

COURSE = ROOT / "docs" / "course"
MAKE = runpy.run_path(str(COURSE / "make.py"))
PAGES = MAKE["PAGES"]
EVERY_DAY = ("part-4", "part-5", "part-6")
"""Pages whose first command takes seconds."""
by_page = pytest.mark.parametrize(
    "page",
    [page if page in EVERY_DAY else pytest.param(page, marks=pytest.mark.slow) for page in PAGES],
)


def text(page: str) -> str:
    return (COURSE / f"{page}.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_shows_explains_and_has_exercises(page: str) -> None:
    assert MAKE["shown"](page), "a command"
    for one in MAKE["shown"](page):
        assert one.output, f"run python -m docs.course.make {page}"
        assert "/examples/" not in one.output, "a path of the machine on which it was made"
    assert MAKE["is_signed"](text(page)), "a date and a commit"
    assert "Predict" in text(page)
    assert re.search(r"See why|\*\*Why\.\*\*", text(page))
    assert re.search(r"!\[.+\]\(.+\.svg\)", text(page)), "a picture"
    exercises = text(page).partition("## Exercises")[2]
    asked, _, answers = exercises.partition("<summary>Answers</summary>")
    assert len(re.findall(r"^\d\. ", asked, re.MULTILINE)) == 3
    assert len(re.findall(r"^\d\. ", answers, re.MULTILINE)) == 3


@pytest.mark.timeout(600)
@by_page
def test_the_first_command_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    first = MAKE["shown"](page)[0]
    printed = MAKE["execute"](first.command, tmp_path)
    assert MAKE["same"](first.output, printed), printed


def test_other_words_and_other_figures_are_seen() -> None:
    same = MAKE["same"]
    line = "ssp(staleness=4)   492 (464–506)  43 %, slower\n"
    assert same(line, line.replace("492", "500"))
    assert not same(line, line.replace("492", "692"))
    assert not same(line, line.replace("slower", "best"))
    assert not same(line, line + line)


@pytest.mark.parametrize("page", PAGES)
def test_notebooks_are_those_of_the_pages(page: str) -> None:
    stored = json.loads((COURSE / "notebooks" / f"{page}.ipynb").read_text("utf-8"))
    assert stored == MAKE["notebook"](page), "run python -m docs.course.make --notebooks"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_notebooks_run(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "course" / "notebooks"
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    notebook = read(COURSE / "notebooks" / f"{page}.ipynb", as_version=4)
    shown = [cell.outputs[0].text for cell in notebook.cells if cell.get("outputs")]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute()
    printed = [cell.outputs[0].text for cell in notebook.cells if cell.get("outputs")]
    assert len(shown) == len(printed) > 0
    for one, other in zip(shown, printed, strict=True):
        # A notebook has a terminal for its commands: tables have headings in bold.
        assert MAKE["same"](one, re.sub(r"\x1b\[[\d;]*m", "", other)), other


def test_the_nine_criteria_are_said_of_every_strategy() -> None:
    table = text("part-6").partition("## Nine criteria")[2]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    supports = {strategy.name: strategy.support for strategy in CATALOG}
    assert {row[0].strip("`") for row in rows} == set(supports)
    for row in rows:
        assert len(row) == 10
        assert all(row)
        assert row[-1] == supports[row[0].strip("`")]
