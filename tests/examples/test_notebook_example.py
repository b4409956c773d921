"""The example notebook: real data, every cell, the report below the last one."""

import json
from pathlib import Path

import pytest

from notebooks import execute, html, words
from support import ROOT

EXAMPLE = ROOT / "examples" / "notebook.ipynb"


def test_it_is_stored_without_outputs() -> None:
    cells = json.loads(EXAMPLE.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_cell_runs(start, tmp_path: Path) -> None:
    cells = execute(start, tmp_path, EXAMPLE, 280)
    errors = [one["evalue"] for cell in cells for one in cell if one["output_type"] == "error"]
    assert errors == []
    assert "allreduce() on 2 workers, 1 host: finished" in html(cells[2])
    assert words(cells[3]).startswith("(")
    assert "ssp(staleness=4) on 8 virtual workers" in html(cells[4])
    assert '<iframe sandbox="allow-scripts"' in html(cells[5])
