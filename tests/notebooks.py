"""Notebooks in tests: executed by nbclient, in a process of their own."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import Started

EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

given, done, seconds = sys.argv[1:]
notebook = nbformat.read(given, as_version=4)
client = NotebookClient(
    notebook,
    timeout=int(seconds),
    kernel_name="python3",
    allow_errors=True,
    resources={"metadata": {"path": "."}},
)
client.execute()
nbformat.write(notebook, done)
"""

JOB = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.manual_seed(0)
    inputs = torch.randn(32, 4)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    width = 8

    class Net(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))

    job = mh.Job(
        model=lambda: Net(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=2,
    )
"""


def private(folder: Path) -> dict[str, str]:
    """Variables that keep the files of Jupyter and IPython in a folder."""
    names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")
    return {name: str(folder / f".{name.lower()}") for name in names}


def execute(
    start: Callable[..., Started], folder: Path, notebook: Path, seconds: float = 150
) -> list[list[dict[str, Any]]]:
    """The outputs of a notebook's code cells."""
    done = folder / "done.ipynb"
    words = (sys.executable, "-c", EXECUTE, notebook, done, str(round(seconds)))
    started = start(*words, **private(folder))
    assert started.finish(seconds) == 0, started.text()
    cells = json.loads(done.read_text("utf-8"))["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def write(path: Path, cells: Sequence[str]) -> Path:
    """A notebook with these code cells."""
    sources = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": text,
        }
        for number, text in enumerate(cells)
    ]
    text = {"cells": sources, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text), "utf-8")
    return path


def words(outputs: Sequence[dict[str, Any]]) -> str:
    """What a cell printed, returned as text or raised."""
    found = []
    for output in outputs:
        found += [output.get("text", ""), output.get("evalue", "")]
        found += [output.get("data", {}).get("text/plain", "")]
    return "\n".join("".join(part) for part in found if part)


def html(outputs: Sequence[dict[str, Any]]) -> str:
    """What a cell shows."""
    return "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
