"""Calibration: what a job takes on this machine, measured, as a file that other verbs read."""

from manyhands.lab.calibration.calibration import Calibration, ComputeTime, read_calibration
from manyhands.lab.calibration.measure import calibrate, measure

__all__ = ["Calibration", "ComputeTime", "calibrate", "measure", "read_calibration"]
