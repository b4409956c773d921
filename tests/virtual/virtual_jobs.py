"""Small jobs for the virtual cluster, and what a run of one leaves."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from manyhands.job import Job
from manyhands.reports import Run
from manyhands.trace import digest
from manyhands.virtual import World


def a_job(size: int = 200, **changes: Any) -> Job:
    """A small regression, cheap enough for thousands of updates."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(size, 4, generator=generator)
    targets = inputs @ torch.randn(4, 2, generator=generator)
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(4, 2),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        "loss": nn.functional.mse_loss,
        "data": TensorDataset(inputs, targets),
        "metrics": (),
        "global_batch": 20,
        "epochs": 2,
        "seed": 1,
    }
    return Job(**(given | changes))


@dataclass
class Done:
    """A virtual run and the world that it left."""

    run: Run
    world: World

    @property
    def digest(self) -> str:
        return digest(self.run.trace)

    def events(self, what: str) -> list[dict[str, str]]:
        """The details of the coordinator's events of that kind."""
        return [
            event.detail
            for process in self.run.trace.processes
            for event in process.events
            if event.what == what
        ]
