"""Documentation names only what exists: files, functions, floors, links."""

import re
import tomllib
from pathlib import Path

import pytest

from support import ROOT

SOURCE = ROOT / "src" / "manyhands"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
USERS_SCRIPTS = {"script.py", "train.py", "notebook.py"}
"""Names that stand for a user's own script in examples; the last is written to a run's folder."""


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_python_file_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"[\w./-]*\w\.py\b", page.read_text("utf-8"))) - USERS_SCRIPTS
    missing = {path for path in named if not any((at / path).is_file() for at in (SOURCE, ROOT))}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link, heading in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]+)?\)", page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), link
        if heading and target.suffix == ".md":
            assert heading[1:] in _anchors(target), f"{link}{heading}"


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_walks_name_what_their_files_define() -> None:
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (`[^|]+`) \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) >= 50
    for path, names in rows:
        text = (SOURCE / path).read_text("utf-8")
        for name in (
            part for dotted in re.findall(r"`([\w.]+)`", names) for part in dotted.split(".")
        ):
            defined = rf"^\s*(?:async )?(?:def|class) {name}\b"
            assert re.search(defined, text, re.MULTILINE), f"{path} does not define {name}"


def test_the_signpost_answers_each_question_by_a_file() -> None:
    signpost = ARCHITECTURE.split("## Signpost")[1].split("\n## ")[0]
    answers = re.findall(r"^\| [^|]+\? \| ([^|]+) \|$", signpost, re.MULTILINE)
    assert len(answers) >= 20
    assert all(re.search(r"`[\w/]+(?:\.py|/)`", answer) for answer in answers)


def test_the_picture_shows_the_floors_that_the_linter_checks() -> None:
    picture = ARCHITECTURE.split("## The floors")[1].split("```")[1]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    checked = {
        contract["containers"][0].removeprefix("manyhands").lstrip("."): [
            set(re.split(r" [|:] ", layer)) for layer in contract["layers"]
        ]
        for contract in contracts
        if contract["type"] == "layers"
    }
    assert _floors(picture) == checked


def _floors(picture: str) -> dict[str, list[set[str]]]:
    """The floors of each folder as the picture shows them; those of the package under "".

    A cell names a folder, or one of its inner floors if it is indented further; names on one floor
    are separated by a dot, and an explanation follows after two spaces or more.
    """
    shown: dict[str, list[set[str]]] = {"": []}
    for floor in re.split(r"^[├┌└].*$", picture, flags=re.MULTILINE):
        names: set[str] = set()
        for cells in zip(
            *(line[1:-1].split("│") for line in floor.split("\n") if line), strict=True
        ):
            folder = cells[0].split()[0]
            for cell in filter(str.strip, cells):
                found = set(cell.strip().split("  ")[0].split(" · "))
                if cell.startswith("   "):
                    shown.setdefault(folder, []).append(found)
                else:
                    names |= found
        shown[""] += [names] if names else []
    return shown
