"""Doctor: what is wrong on this machine, before a run is started on it."""

from manyhands.lab.doctor.examination import Examination, examine
from manyhands.lab.doctor.finding import Finding

__all__ = ["Examination", "Finding", "examine"]
