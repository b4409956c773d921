"""docs/results.md names every field of results.json, and nothing that is not in it."""

import re

import pytest

from manyhands.reports import Comparison, Curve, Machine, RunResult, StalenessSummary
from support import ROOT

TEXT = (ROOT / "docs" / "results.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("### The comparison", Comparison),
        ("### `machine`", Machine),
        ("### An entry of `runs`", RunResult),
        ("### A curve", Curve),
        ("### `staleness`", StalenessSummary),
    ],
)
def test_every_field_is_explained(heading, kind) -> None:
    section = TEXT.split(f"{heading}\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(kind.__struct_fields__)
