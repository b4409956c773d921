"""The pages of strategies: titles, links, and pictures that are what the code draws."""

import re
import runpy
from pathlib import Path

import pytest

from manyhands.strategies import CATALOG

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "pictures.py"))


@pytest.mark.parametrize("name", ["synchronous", "gossip_asynchronous"])
def test_drawing_again_gives_the_same_file(name: str) -> None:
    drawn = SCRIPT["draw"](SCRIPT["PICTURES"][name])
    path = DOCS / "strategies" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn, "draw them again: python -m docs.pictures"


@pytest.mark.parametrize("name", SCRIPT["SCHEDULES"])
def test_schedules_are_drawn_as_their_tables_are(name: str) -> None:
    drawn = SCRIPT["draw_schedule"](*SCRIPT["SCHEDULES"][name])
    path = DOCS / "strategies" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn, "draw them again: python -m docs.pictures"


@pytest.mark.parametrize(
    "page", sorted((DOCS / "strategies").glob("[a-z]*.md")), ids=lambda p: p.stem
)
def test_a_page_has_the_signature_for_a_title_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.splitlines()[0] == f"# {CATALOG.describe(page.stem).signature}"
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link


def test_every_picture_is_shown_and_small() -> None:
    shown = {
        name
        for page in (DOCS / "strategies").glob("*.md")
        for name in re.findall(r"\(pictures/(\w+)\.svg\)", page.read_text("utf-8"))
    }
    assert {*SCRIPT["PICTURES"], *SCRIPT["SCHEDULES"]} <= shown
    for name in shown:
        assert (DOCS / "strategies" / "pictures" / f"{name}.svg").stat().st_size < 60_000
