"""docs/results.md names every field of results.json, and nothing that is not in it."""

import re

import pytest

from manyhands.cluster import Cluster
from manyhands.reports import (
    Comparison,
    Curve,
    DataRecord,
    DesignRecord,
    Machine,
    ModelRecord,
    OptimizerRecord,
    PhaseBytes,
    RunResult,
    ScriptRecord,
    StalenessSummary,
)
from support import ROOT

TEXT = (ROOT / "docs" / "results.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("### The comparison", Comparison),
        ("### `source`", ScriptRecord),
        ("### `model`", ModelRecord),
        ("### `optimizer`", OptimizerRecord),
        ("### `data`", DataRecord),
        ("### `design`", DesignRecord),
        ("### `machine`", Machine),
        ("### An entry of `runs`", RunResult),
        ("### `layout`", Cluster),
        ("### A curve", Curve),
        ("### `traffic`", PhaseBytes),
        ("### `staleness`", StalenessSummary),
    ],
)
def test_every_field_is_explained(heading, kind) -> None:
    section = TEXT.split(f"{heading}\n")[1].split("\n##")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    fields = getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    assert sorted(named) == sorted(fields)
