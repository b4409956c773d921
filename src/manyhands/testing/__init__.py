"""Testing of protocols by deterministic simulation: laws, seeds, references and planted faults.

A protocol of one's own is run on the virtual cluster under thousands of random schedules of delays,
crashes, cut links and returning workers. Each is a seed; the same seed is always the same run.

    >>> from manyhands import testing
    >>> from manyhands.protocols import Averaging
    >>> report = testing.check(Averaging(every=2), seeds=10)
    >>> report.seeds, report.laws[:2]
    (10, ('CallsOnce', 'SamplesOnce'))

A seed that breaks a law is reported with a command that shows what happens in its run:

    python -m manyhands.testing my_protocol.py --strategy "quorum()" --seed 17

Laws that hold for every protocol are checked by default (`DEFAULT_LAWS`); a run that does not end,
and a seed that gives two different runs, are errors always:

    CallsOnce           calls are decided once, in order, and answered at most once
    SamplesOnce         every sample is committed once or counted as lost
    ReportedVersions    answers name the version that the server is at
    RecordedStaleness   recorded staleness is the true one
    PureDecisions       decisions can be replayed from a journal after a server was killed
    Weighting           the weights of means sum to one
    NothingLost         what is decoded and the residuals add up to what was pushed under a codec

Others hold for some protocols, and are given by name, as in `check(..., laws=[Acknowledged])`:

    FixedPoint          the first part of Weighting, for protocols that round what they send
    MeanOfChanges       a server moves by a mean of its workers' local steps (outer rate 1)
    ExactStaleness      a push names the version that its update was computed on
    Fresh               updates are never stale
    Acknowledged        committed samples are those of applied updates
    WholeSteps          a step weighs as much as its samples

Further ones are subclasses of `Law`; `ReferenceServer` is the server once more in NumPy. `mutants`
plants faults, to see that the laws notice them.
"""

from manyhands.testing.cases.case import Case
from manyhands.testing.checking import DEFAULT_LAWS, CheckReport, check
from manyhands.testing.laws.calls import CallsOnce
from manyhands.testing.laws.coding import NothingLost
from manyhands.testing.laws.law import BrokenLawError, Law, Life, near, parts
from manyhands.testing.laws.mean_of_changes import MeanOfChanges
from manyhands.testing.laws.pure_decisions import PureDecisions
from manyhands.testing.laws.samples import Acknowledged, SamplesOnce
from manyhands.testing.laws.staleness import (
    ExactStaleness,
    Fresh,
    RecordedStaleness,
    ReportedVersions,
)
from manyhands.testing.laws.weighting import FixedPoint, Weighting, WholeSteps
from manyhands.testing.mutations import MUTATIONS, MutantReport, mutants
from manyhands.testing.reference import ExpectedAnswer, ReferenceServer, reference

__all__ = [
    "DEFAULT_LAWS",
    "MUTATIONS",
    "Acknowledged",
    "BrokenLawError",
    "CallsOnce",
    "Case",
    "CheckReport",
    "ExactStaleness",
    "ExpectedAnswer",
    "FixedPoint",
    "Fresh",
    "Law",
    "Life",
    "MeanOfChanges",
    "MutantReport",
    "NothingLost",
    "PureDecisions",
    "RecordedStaleness",
    "ReferenceServer",
    "ReportedVersions",
    "SamplesOnce",
    "Weighting",
    "WholeSteps",
    "check",
    "mutants",
    "near",
    "parts",
    "reference",
]
