"""`plan`: strategies ranked by predicted speed, or time to a target, on a cluster."""

from manyhands.lab.planning.candidates import LeftOut
from manyhands.lab.planning.failures import Failures, Goodput
from manyhands.lab.planning.learning import TimeToTarget
from manyhands.lab.planning.planned import PlannedStrategy
from manyhands.lab.planning.ranking import Plan, plan
from manyhands.lab.planning.rules import Rule

__all__ = [
    "Failures",
    "Goodput",
    "LeftOut",
    "Plan",
    "PlannedStrategy",
    "Rule",
    "TimeToTarget",
    "plan",
]
