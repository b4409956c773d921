"""Faults on purpose, as values and as text: the same for live and for virtual runs.

>>> print(Faults.read("crash worker 2 at 20 s; stop worker 1 from 30 s to 45 s"))
[crash(worker=2, at=20.0, restart=1.0), pause(worker=1, at=30.0, seconds=15.0)]
"""

from manyhands.faults.fault import (
    CoordinatorCrash,
    Crash,
    Cut,
    CutHost,
    Fault,
    FullDisk,
    Isolate,
    Lose,
    Pause,
    RandomFaults,
    Way,
)
from manyhands.faults.schedule import Faults

__all__ = [
    "CoordinatorCrash",
    "Crash",
    "Cut",
    "CutHost",
    "Fault",
    "Faults",
    "FullDisk",
    "Isolate",
    "Lose",
    "Pause",
    "RandomFaults",
    "Way",
]
