"""The job of `benchmarks.process_faults`: any of its processes can be made to fail from outside.

A file `PID.sleep`, `PID.exit0` or `PID.gil` in the folder has the process with this id sleep, leave
or hold the GIL for ever: a worker in its loss, a server in its optimizer, a process that loads data
in the data set, and an agent in a thread of the script.
"""

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import manyhands as mh

FOLDER = Path(os.environ["MANYHANDS_FAULTS_FOLDER"])
SAMPLES = int(os.environ.get("MANYHANDS_FAULTS_SAMPLES", "6400"))
PAUSE = 0.3
"""Seconds for a worker's half of a batch; a pipeline computes it in several parts."""
BATCH = 16


def fail_if_asked() -> None:
    """Fail as a file says, once."""
    for what in ("sleep", "exit0", "gil"):
        file = FOLDER / f"{os.getpid()}.{what}"
        if file.exists():
            file.unlink()
            if what == "exit0":
                os._exit(0)
            if what == "gil":
                ctypes.PyDLL(None).sleep(1_000_000)
            time.sleep(1_000_000)


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples one by one, which processes load."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(SAMPLES, 20, generator=generator)
        self._targets = self._inputs[:, :2].argmax(1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        fail_if_asked()
        return self._inputs[index], self._targets[index]


class Step(torch.optim.SGD):
    """An optimizer of the user's own."""

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        fail_if_asked()
        return super().step(closure)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, after a pause."""
    with (FOLDER / f"steps-{os.getpid()}").open("a") as file:
        file.write(f"{time.monotonic():.3f}\n")
    fail_if_asked()
    if not (FOLDER / "fast").exists():
        time.sleep(PAUSE * len(targets) / (BATCH / 2))
    return functional.cross_entropy(outputs, targets)


def _watch() -> None:
    while True:
        time.sleep(0.2)
        fail_if_asked()


if os.environ.get("MANYHANDS_INCARNATION") is None:
    threading.Thread(target=_watch, daemon=True).start()

job = mh.Job(
    model=lambda: nn.Sequential(
        nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
    ),
    optimizer=lambda model: Step(model.parameters(), lr=0.05),
    loss=loss,
    data=Rows(),
    global_batch=BATCH,
    epochs=1,
    num_workers=1,
    metrics=(),
)
