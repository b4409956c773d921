"""Virtual cluster: any number of workers and servers on a simulated clock, in one process.

The protocol is the same as in a live run and its gradients are real; time, links, cores,
stragglers, crashes and partitions are simulated. The same seed gives a bitwise equal run.

    >>> times("lognormal(0.1, cv=0.3)").mean
    0.1
    >>> print(Faults((Crash(worker=3, at=2.5), Pause(server=0, at=4.0, seconds=2.0))))
    [crash(worker=3, at=2.5), pause(server=0, at=4.0, seconds=2.0)]
"""

from manyhands.faults import CoordinatorCrash, Crash, Cut, Fault, Faults, Isolate, Lose, Pause
from manyhands.virtual.conditions.compute_times import TIMES, Slow, Times, times
from manyhands.virtual.conditions.process_hosts import ProcessHosts
from manyhands.virtual.conditions.run_conditions import Conditions
from manyhands.virtual.run import simulate_job
from manyhands.virtual.world import World

__all__ = [
    "TIMES",
    "Conditions",
    "CoordinatorCrash",
    "Crash",
    "Cut",
    "Fault",
    "Faults",
    "Isolate",
    "Lose",
    "Pause",
    "ProcessHosts",
    "Slow",
    "Times",
    "World",
    "simulate_job",
    "times",
]
