"""Calibration: what a job takes on this machine, measured, as a file that other verbs read."""

from manyhands.lab.calibration.calibration import (
    CalibratedHost,
    CalibratedLink,
    CalibratedSum,
    Calibration,
    ComputeTime,
    read_calibration,
)
from manyhands.lab.calibration.measure import measure
from manyhands.lab.calibration.measure_script import calibrate

__all__ = [
    "CalibratedHost",
    "CalibratedLink",
    "CalibratedSum",
    "Calibration",
    "ComputeTime",
    "calibrate",
    "measure",
    "read_calibration",
]
