"""Whether a job trains the same on N workers as on one, and if not, why."""

from manyhands.lab.check.check import Checked, check
from manyhands.lab.check.probes import probe

__all__ = ["Checked", "check", "probe"]
