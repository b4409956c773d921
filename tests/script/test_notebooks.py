"""Notebooks, executed by nbclient: runs are started from cells."""

import re
import textwrap
from pathlib import Path

import pytest

from manyhands.reports import Run
from notebooks import JOB, execute, html, words, write

CELLS = textwrap.dedent(JOB)
RATE = """
from dataclasses import replace
job = replace(job, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr))
"""
WARM = """
first = run.state_dict()
def warm_model():
    model = Net()
    model.load_state_dict(first)
    return model
warm = replace(job, model=warm_model)
"""


@pytest.mark.timeout(240)
def test_cells_train_and_show_their_runs(start, tmp_path: Path) -> None:
    notebook = write(
        tmp_path / "given.ipynb",
        [
            CELLS,
            "raise ValueError('a cell that fails')",
            # What a worker must not repeat, and what it needs from a cell that failed later.
            "print('seen once'); lr = 0.05\nopen('count.txt', 'a').write('x')\nlr = 1 / 0",
            RATE,
            "run = mh.train(job, 'allreduce()', workers=2, output='first')\nrun",
            "found = run.metrics['loss']\nprint('loss', found)",
            # A job and its run in one cell, under a strategy with a server.
            "%%time\njob = replace(job, epochs=1)\nmh.train(job, 'ssp()', workers=2, output='b')",
            "mh.train(replace(job), 'allreduce()', workers=2)",
            "def inside():\n    mine = replace(job)\n    return mh.train(mine)\ninside()",
            "mh.train(lambda: job)",
            WARM,
            "mh.train(warm, 'allreduce()', workers=2)",
        ],
    )
    cells = execute(start, tmp_path, notebook, 200)
    assert (tmp_path / "count.txt").read_text() == "x"
    shown = html(cells[4])
    assert "allreduce() on 2 workers, 1 host: finished" in shown
    assert re.search(r"<th[^>]*>validation</th>", shown), shown
    script = (tmp_path / "first" / "notebook.py").read_text("utf-8")
    assert "lr = 0.05" in script
    assert "mh.train" not in script
    assert "count.txt" not in script
    # Progress is one output that is updated.
    progress = [one for one in cells[4] if one["output_type"] == "display_data"]
    assert len(progress) == 1, cells[4]
    assert not any(one["output_type"] == "stream" for one in cells[4]), cells[4]
    assert Run(tmp_path / "first").samples == 64
    assert f"loss {Run(tmp_path / 'first').metrics['loss']}" in words(cells[5])
    assert Run(tmp_path / "b").samples == 32, words(cells[6])
    assert "has no name at the top level" in words(cells[7])
    assert "the job 'mine' is a local variable of inside()" in words(cells[8])
    assert "the function that makes the job must be at the top level" in words(cells[9])
    assert "which starts a run, and workers would start it again" in words(cells[11])


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_other_data_than_the_notebooks_end_the_run(start, tmp_path: Path) -> None:
    drawn = CELLS.replace("torch.manual_seed(0)\n", "")
    assert drawn != CELLS
    notebook = write(
        tmp_path / "given.ipynb",
        [drawn, drawn, "mh.train(job, 'allreduce()', workers=2)"],
    )
    cells = execute(start, tmp_path, notebook)
    assert "the data of 'job' in this worker are not those in the notebook" in words(cells[2])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_cells_simulate_and_compare_with_the_report_below(start, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    notebook = write(
        tmp_path / "given.ipynb",
        [
            CELLS,
            "mh.simulate(job, 'asynchronous()', workers=3, slow=['0:4x'])",
            "mh.compare(job, 'synchronous, asynchronous', workers=3, repeats=2, virtual=True)",
            "def make():\n    return job\nmh.simulate(make, 'ssp()', workers=2)",
        ],
    )
    cells = execute(start, tmp_path, notebook)
    assert "asynchronous() on 3 virtual workers" in html(cells[1])
    shown = html(cells[2])
    assert '<iframe sandbox="allow-scripts"' in shown
    assert "Manyhands comparison" in shown
    assert "synchronous()" in shown[: shown.index("<iframe")], (
        "the table, where frames are not shown"
    )
    assert len([one for one in cells[2] if one["output_type"] == "display_data"]) == 1
    assert "ssp() on 2 virtual workers" in html(cells[3])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_cells_compare_live_runs(start, tmp_path: Path) -> None:
    compared = "found = mh.compare(job, 'allreduce, ssp', workers=2, repeats=1, output='compared')"
    notebook = write(
        tmp_path / "given.ipynb",
        [CELLS, compared, f"{compared}\n[run.status for run in found.results.runs]"],
    )
    cells = execute(start, tmp_path, notebook, 350)
    assert "['finished', 'finished']" in words(cells[2])
    assert "2 of 2 runs were made before" in words(cells[2]), "the same cells, the same comparison"
    script = (tmp_path / "compared" / "notebook.py").read_text("utf-8")
    assert "mh.compare" not in script
