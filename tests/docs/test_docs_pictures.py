"""The pictures in the docs are what the code draws."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "pictures.py"))


@pytest.mark.parametrize("name", ["synchronous", "gossip_asynchronous"])
def test_drawing_again_gives_the_same_file(name: str) -> None:
    drawn = SCRIPT["draw"](SCRIPT["PICTURES"][name])
    path = DOCS / "strategies" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn, "draw them again: python -m docs.pictures"


def test_every_picture_is_shown_and_small() -> None:
    shown = {
        name
        for page in (DOCS / "strategies").glob("*.md")
        for name in re.findall(r"\(pictures/(\w+)\.svg\)", page.read_text("utf-8"))
    }
    assert set(SCRIPT["PICTURES"]) <= shown
    for name in shown:
        assert (DOCS / "strategies" / "pictures" / f"{name}.svg").stat().st_size < 60_000
