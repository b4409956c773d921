"""Where workers wait for each other, the result does not depend on when each of them computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import manyhands as mh
from manyhands.leasing.lease_service import LeaseService
from manyhands.protocols import StrategyProtocol
from manyhands.strategies import CATALOG, strategy
from manyhands.wire.leasing import Nothing

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 3
EXAMPLES = (strategy(CATALOG.describe(cls.name).example) for cls in CATALOG)
LOCKSTEP = [
    *(
        str(one)
        for one in EXAMPLES
        if isinstance(one, StrategyProtocol) and one.lockstep and one.by_rank(WORKERS)
    ),
    "averaging(every=1)",
    "diloco(every=2)",
    "hierarchical(outer=diloco(every=2), islands=2)",
    "hierarchical(outer=synchronous(), islands=2)",
]
PAUSES = {
    "the end of an epoch": {},
    "evaluations": {"evaluate_every": 20},
    "checkpoints": {"checkpoint": "20 samples"},
}


def a_job(*, validated: bool) -> mh.Job:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(52, 4, generator=source, dtype=torch.float64)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.ones(4, 1, dtype=torch.float64))
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 1, dtype=torch.float64),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data if validated else None,
        global_batch=9,
        epochs=2,
        metrics=(),
    )


def farthest(text: str, pause: str, output: Path, *, every: int) -> float:
    """How far a stop of one worker moves the final parameters, at the worst of many moments."""
    job, number, found = a_job(validated=pause == "evaluations"), 0, 0.0

    def parameters(faults: str | None = None) -> dict[str, torch.Tensor]:
        nonlocal number
        number += 1
        run = mh.simulate(
            job,
            text,
            workers=WORKERS,
            times="constant(0.0005)",
            **{} if strategy(text).shared_memory else {"bandwidth": "1gbit", "latency": "0.1ms"},
            faults=faults,
            output=output / str(number),
            **PAUSES[pause],
        )
        return run.state_dict()

    alone = parameters()
    # A run takes some 10 ms; with a stop of 8 ms, others can take ten steps meanwhile.
    for worker in range(WORKERS):
        for at in range(worker, 40, every):
            begin = 0.00025 * at
            after = parameters(f"stop worker {worker} from {begin:.5f} s to {begin + 0.008:.5f} s")
            apart = max((after[name] - alone[name]).abs().max().item() for name in alone)
            found = max(found, apart)
    return found


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("text", LOCKSTEP)
def test_a_worker_that_stops_for_a_while_changes_nothing(text, pause, tmp_path) -> None:
    # Islands take the shared parameters over as a difference, which costs a last bit.
    assert farthest(text, pause, tmp_path, every=19) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("text", LOCKSTEP)
def test_a_worker_that_stops_at_any_moment_changes_nothing(text, pause, tmp_path) -> None:
    assert farthest(text, pause, tmp_path, every=1) < 1e-12


def test_rounds_after_a_pause_would_go_on_without_late_workers(tmp_path, monkeypatch) -> None:
    told = LeaseService._tell

    def tell(self: LeaseService, worker: str, message: object) -> None:
        told(self, worker, Nothing() if isinstance(message, Nothing) else message)

    monkeypatch.setattr(LeaseService, "_tell", tell)
    assert farthest("averaging(every=1)", "the end of an epoch", tmp_path, every=3) > 1e-3
