"""Pages use the words of the vocabulary, not those that they replaced."""

import re
from pathlib import Path

import pytest

from support import ROOT

RETIRED = re.compile(
    r"\b(lease desk|desk|nurser(?:y|ies)|newborns?|scouts?|liaison|crew|doors?|errands?|rehears\w+"
    r"|sit as a committee|hosted servers?|somebody|whoever|nobody|everybody|anybody)\b",
    re.IGNORECASE,
)
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
VOCABULARY = (ROOT / "docs" / "vocabulary.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_a_retired_word(page: Path) -> None:
    # What a command prints is quoted as it is.
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert RETIRED.findall(text) == []


def test_every_word_has_a_meaning_and_its_name_elsewhere() -> None:
    rows = re.findall(r"^\| (\*\*.*) \|$", VOCABULARY, re.MULTILINE)
    assert len(rows) > 80
    for row in rows:
        cells = row.split(" | ")
        assert len(cells) == 3, row
        assert all(cell.strip() for cell in cells), row


def test_no_word_has_two_meanings() -> None:
    words = re.findall(r"\*\*([^*]+)\*\*", VOCABULARY)
    assert sorted(words) == sorted(set(words))
