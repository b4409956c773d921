"""Every decision record is linked from what it decides, and every mention names a record."""

import re
from pathlib import Path

import pytest

from support import ROOT

RECORDS = ROOT / "docs" / "decisions"
NAME = r"\d{4}-[\w-]+\.md"
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests", ".ci")
ONE, TWO, THREE = "0001-one.md", "0002-two.md", "0003-three.md"
"""Records of a planted project."""
LINKING = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml")


def linking_files(root: Path) -> list[Path]:
    """The files that may link a record: not the records themselves, nor the list of all changes."""
    found = [path for kind in LINKING for path in root.glob(kind)]
    found += [
        path for folder in FOLDERS for kind in LINKING for path in (root / folder).rglob(kind)
    ]
    records = root / "docs" / "decisions"
    return [path for path in found if records not in path.parents and path.name != "CHANGELOG.md"]


def mentions(root: Path) -> dict[str, list[str]]:
    """By name of a record, the files that link it."""
    found: dict[str, list[str]] = {}
    for path in linking_files(root):
        for name in set(re.findall(rf"decisions/({NAME})", path.read_text("utf-8"))):
            found.setdefault(name, []).append(str(path.relative_to(root)))
    return found


def unlinked(root: Path) -> set[str]:
    """Records that nothing links but other records and the changelog."""
    return {path.name for path in (root / "docs" / "decisions").glob("[0-9]*.md")} - {
        *mentions(root)
    }


def missing(root: Path) -> dict[str, list[str]]:
    """Names of records that do not exist, with the files that mention them."""
    records = root / "docs" / "decisions"
    return {name: where for name, where in mentions(root).items() if not (records / name).is_file()}


def test_every_record_is_linked_from_what_it_decides() -> None:
    found = unlinked(ROOT)
    assert not found, "link each from the module or the page whose design it decides"


def test_every_mention_of_a_record_names_one_that_exists() -> None:
    assert not missing(ROOT)


def test_every_record_is_in_the_list_under_its_own_title() -> None:
    listed = (RECORDS / "README.md").read_text("utf-8")
    rows = dict(re.findall(rf"^- \d{{4}} \[([^\n]+)\]\(({NAME})\)$", listed, re.MULTILINE))
    titles = {
        re.sub(r"^# (?:\d{4}: )?", "", path.read_text("utf-8").splitlines()[0]): path.name
        for path in RECORDS.glob("[0-9]*.md")
    }
    assert rows == titles


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A project with one record, which nothing links that counts."""
    records = tmp_path / "docs" / "decisions"
    records.mkdir(parents=True)
    (records / ONE).write_text("# One\n")
    (records / "README.md").write_text(f"- 0001 [One]({ONE})\n")
    (records / TWO).write_text(f"# Two: see [One](../decisions/{ONE})\n")
    (tmp_path / "CHANGELOG.md").write_text(f"[one](docs/decisions/{ONE})\n")
    source = tmp_path / "src" / "two.py"
    source.parent.mkdir()
    source.write_text(f'"""Two (`docs/decisions/{TWO}`)."""\n')
    return tmp_path


def test_links_of_records_and_of_the_changelog_do_not_count(planted: Path) -> None:
    assert unlinked(planted) == {ONE}
    (planted / "docs" / "page.md").write_text(f"Why: [one](decisions/{ONE}).\n")
    assert not unlinked(planted)


def test_a_mention_of_a_record_that_does_not_exist_is_found(planted: Path) -> None:
    assert not missing(planted)
    (planted / "pyproject.toml").write_text(f"# docs/decisions/{THREE}\n")
    assert missing(planted) == {THREE: ["pyproject.toml"]}
