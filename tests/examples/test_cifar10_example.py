"""The script of the page "before and after" is what the page shows, and trains."""

import difflib
import os
import re
import sys
from pathlib import Path

import pytest

from support import ROOT

PLAIN, OURS = (ROOT / "examples" / name for name in ("cifar10_plain.py", "cifar10.py"))
PAGE = (ROOT / "docs" / "before-and-after.md").read_text(encoding="utf-8")


def lines(path: Path) -> list[str]:
    """The code of a script, without its first text and blank lines."""
    text = re.sub(r'^""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for line in text.splitlines() if line.strip()]


def test_the_page_shows_every_line_that_goes_and_every_line_that_comes() -> None:
    changes = list(difflib.ndiff(lines(PLAIN), lines(OURS)))
    gone = [line[2:] for line in changes if line.startswith("- ")]
    come = [line[2:] for line in changes if line.startswith("+ ")]
    shown = [line for line in PAGE.splitlines() if line.strip()]
    imports = [line for line in (*gone, *come) if line.startswith(("import ", "from "))]
    missing = [line for line in (*gone, *come) if line not in shown and line not in imports]
    assert missing == []
    assert len(imports) <= 5
    # What a user writes: one line for each of ten fields, and the call.
    assert len(come) <= 16
    assert len(gone) >= 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains(start) -> None:
    places = ("cifar10/data_batch_1.bin", "cifar-10-batches-bin/data_batch_1.bin")
    folder = Path(os.environ.get("MANYHANDS_DATA", "."))
    if not any((folder / place).exists() for place in places):
        pytest.skip("no CIFAR-10 in MANYHANDS_DATA")
    command = (sys.executable, "-m", "manyhands", "train", OURS, "--samples", "2000")
    started = start(*command, "--strategy", "allreduce()", "--workers", "2")
    assert started.finish(500) == 0, started.text()
    assert "2,000 seen, 0 repeated, 0 lost" in started.text()
