"""A calibration without a measurement: computing at an assumed speed, by the work of a network."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from manyhands.lab.calibration.calibration import Calibration, ComputeTime
from manyhands.live.agent.memory_check import model_bytes
from manyhands.placements.forecasts.network_cost import job_network_cost
from manyhands.reports import Machine

if TYPE_CHECKING:
    from manyhands.job import Job

PASSES: Final = 3
"""Forward, and backward twice as much."""
STEP: Final = 0.0006
"""Seconds of a step with next to nothing to compute, loading and the optimizer's step included:
`benchmarks/results/step_floor.json`, one core of an Intel Xeon at 2.5 GHz."""
_UNITS: Final = {"G": 1e9, "T": 1e12, "P": 1e15}
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([gtp])flop(?:s|/s)", re.IGNORECASE)


def assume(job: Job, speed: str | float) -> Calibration:
    """What batches take on devices of an assumed speed.

    Operations of the forward pass are counted on shapes alone; a batch takes three times as many,
    and `STEP` beside. Servers and collectives take no time beside their messages; codecs take what
    was measured of them on one core (`costs/coding_speed.py`).

    Args:
        job: the job.
        speed: floating-point operations per second that a worker reaches: "10 TFLOP/s". What
            devices reach is less than what they are sold with, often 30 to 50 % of it.

    Raises:
        ValueError: the speed cannot be read, or the model needs the content of tensors.
    """
    rate = read_speed(speed)
    batch = job.batch_sizes.at(0)
    compute = tuple(
        ComputeTime(
            samples=samples,
            seconds=STEP + PASSES * job_network_cost(job, samples).cost.work / rate,
            cv=0.0,
            data=0.0,
            steps=0,
        )
        for samples in sorted({1, max(1, batch // 8), batch})
    )
    return Calibration(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        job="",
        parameters=model_bytes(job),
        compute=compute,
        machine=Machine(cpu=""),
        fixed=STEP,
        assumed=f"{rate / 1e12:g} TFLOP/s",
    )


def read_speed(speed: str | float) -> float:
    """Operations per second.

    >>> read_speed("10 TFLOP/s"), read_speed("500gflops")
    (10000000000000.0, 500000000000.0)
    """
    found = _FORM.fullmatch(speed.strip()) if isinstance(speed, str) else None
    rate = float(found[1]) * _UNITS[found[2].upper()] if found else 0.0
    if not isinstance(speed, str):
        rate = float(speed)
    if not rate > 0:
        raise ValueError(f"expected a speed such as '10 TFLOP/s' or '500gflops', got {speed!r}")
    return rate
