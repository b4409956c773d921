"""`plan`: strategies ranked by predicted speed on a cluster."""

from manyhands.lab.planning.candidates import LeftOut
from manyhands.lab.planning.ranking import Plan, PlannedStrategy, plan

__all__ = ["LeftOut", "Plan", "PlannedStrategy", "plan"]
