"""Manyhands: train one PyTorch model under any parallel strategy, by changing one word.

    import manyhands as mh

Verbs; each is a subcommand of `manyhands`, too:

    train           train a job under a strategy on real processes
    simulate        train it on a virtual clock, in one process
    compare         run it under several strategies, and say which is best
    reproduce       make a stored comparison again, and say whether it came out the same
    calibrate       measure what a job takes on this machine
    plan            rank strategies for a job and a cluster by predicted speed
    search          find good values of a job's free parameters by parallel trials

What to train:

    Job             model, optimizer, loss, data, global batch, and when to stop
    Weighted        a loss that is a mean over tokens or labels, for Job(objective=…)
    free            parameters of a job that search chooses: free.log(1e-4, 1e-1)
    metrics         accuracy, F1, or a function of your own; exact on any number of workers
    lr_schedules    learning-rate schedules: cosine, linear, step decay
    callbacks       what is called while a run trains: loggers for CSV, TensorBoard, W&B, MLflow
    adapters        models of transformers and of Keras as jobs
    every           an interval: every(samples=5000), for Job(evaluate_every=…, checkpoint=…)
    data            MNIST, CIFAR-10, Tiny Shakespeare
    models          networks for examples and tests

How and where:

    strategies      every strategy by name: strategies.ssp(staleness=4)
    register        makes a strategy or a codec of one's own known by name
    protocols       what it is built from: base classes, messages, actions
    placements      the strategies that PyTorch's own engine executes
    schedules       pipeline schedules as tables
    codecs          how strategies send fewer bytes: codecs.topk(0.01)
    strategy        the strategy that a text describes: strategy("ssp(staleness=4)")
    Cluster         sites (Site), hosts (Host) and the links between them (Link)
    Pace            a worker that is slowed on purpose
    Faults          what goes wrong on purpose (Fault), live or simulated
    faults          its kinds: crashes, pauses, hosts that are cut off
    virtual         compute times of simulated runs

A training loop of your own:

    Trainer         what the loop receives: model, optimizer, batches, step, evaluate
    Batch           one worker's part of one global batch

Results:

    Run             a run's folder: summary, metrics, trained parameters, trace, timeline
    Checkpoint      a stored state of a run, from which it can be continued
    Compared        what compare returns: results, verdict, report
    Reproduction    what reproduce returns: the new comparison, and every difference
    Calibration     what calibrate returns: seconds of batches by their size (ComputeTime)
    PieceTime       what a piece of the model takes, in a calibration
    CalibratedHost  a host of it, with its links (CalibratedLink, CalibratedSum)
    Plan            what plan returns: a ranking (PlannedStrategy, TimeToTarget, LeftOut, Rule)
    Failures        how often a plan's workers are lost, and what is left of the speed (Goodput)
    Assumption      a value that a plan or a simulation took, because nothing gave or measured it
    Searched        what search returns: all trials, and the best (Trial, TrialResult)
    reports         the figures of runs and comparisons
    trace           what every process of a run recorded

Errors:

    Refused         the request cannot be carried out; nothing was started
    NotationError   a text is not a strategy; the message points at the place
    RunFailed       a run ended before it was done

`help(mh.train)` explains one of them. Names are loaded on first use (PEP 562): importing the
package loads no torch, starts no process and opens no socket.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands import (
        adapters,
        callbacks,
        codecs,
        data,
        faults,
        free,
        lr_schedules,
        metrics,
        models,
        placements,
        protocols,
        reports,
        schedules,
        strategies,
        trace,
        virtual,
    )
    from manyhands.assumptions import Assumption
    from manyhands.cluster import Cluster, Host, Link, Site
    from manyhands.costs import PieceTime
    from manyhands.data.sized import SizedData
    from manyhands.data.stream import StreamedData
    from manyhands.failure import Refused, RunFailed
    from manyhands.faults import Fault, Faults
    from manyhands.files.checkpoints import Checkpoint
    from manyhands.intervals import Every, every
    from manyhands.job import Durability, Job, Loss
    from manyhands.lab.calibration import (
        CalibratedHost,
        CalibratedLink,
        CalibratedSum,
        Calibration,
        ComputeTime,
        calibrate,
    )
    from manyhands.lab.compare import Compared, compare
    from manyhands.lab.planning import (
        Failures,
        Goodput,
        LeftOut,
        Plan,
        PlannedStrategy,
        Rule,
        TimeToTarget,
        plan,
    )
    from manyhands.lab.reproduction.reproduce import Reproduction, reproduce
    from manyhands.lab.search import Searched, Trial, TrialResult, search
    from manyhands.live.worker.lockstep.dealing import Batch
    from manyhands.live.worker.trainer import Trainer
    from manyhands.lr_schedules import LRSchedule
    from manyhands.metrics import Metric
    from manyhands.notation import NotationError
    from manyhands.objective import Objective, Weighted
    from manyhands.pacing import Pace
    from manyhands.reports import Comparison, Run, RunResult, VerdictRecord
    from manyhands.sampling.batches import BatchSizes, EvaluationPoints
    from manyhands.sampling.permutation import Share
    from manyhands.stopping import EarlyStopping, Target
    from manyhands.strategies import Strategy, register, strategy
    from manyhands.trace import Trace
    from manyhands.verbs.simulate import simulate
    from manyhands.verbs.train import train
    from manyhands.virtual import Times

__version__ = "0.1.0"

__all__ = [
    "Assumption",
    "Batch",
    "BatchSizes",
    "CalibratedHost",
    "CalibratedLink",
    "CalibratedSum",
    "Calibration",
    "Checkpoint",
    "Cluster",
    "Compared",
    "Comparison",
    "ComputeTime",
    "Durability",
    "EarlyStopping",
    "EvaluationPoints",
    "Every",
    "Failures",
    "Fault",
    "Faults",
    "Goodput",
    "Host",
    "Job",
    "LRSchedule",
    "LeftOut",
    "Link",
    "Loss",
    "Metric",
    "NotationError",
    "Objective",
    "Pace",
    "PieceTime",
    "Plan",
    "PlannedStrategy",
    "Refused",
    "Reproduction",
    "Rule",
    "Run",
    "RunFailed",
    "RunResult",
    "Searched",
    "Share",
    "Site",
    "SizedData",
    "Strategy",
    "StreamedData",
    "Target",
    "TimeToTarget",
    "Times",
    "Trace",
    "Trainer",
    "Trial",
    "TrialResult",
    "VerdictRecord",
    "Weighted",
    "__version__",
    "adapters",
    "calibrate",
    "callbacks",
    "codecs",
    "compare",
    "data",
    "every",
    "faults",
    "free",
    "lr_schedules",
    "metrics",
    "models",
    "placements",
    "plan",
    "protocols",
    "register",
    "reports",
    "reproduce",
    "schedules",
    "search",
    "simulate",
    "strategies",
    "strategy",
    "trace",
    "train",
    "virtual",
]

_HOME = {
    "Assumption": "manyhands.assumptions",
    "Batch": "manyhands.live.worker.lockstep.dealing",
    "BatchSizes": "manyhands.sampling.batches",
    "Checkpoint": "manyhands.files.checkpoints",
    "Cluster": "manyhands.cluster",
    "Compared": "manyhands.lab.compare",
    "Comparison": "manyhands.reports",
    "Durability": "manyhands.job",
    "EarlyStopping": "manyhands.stopping",
    "EvaluationPoints": "manyhands.sampling.batches",
    "Every": "manyhands.intervals",
    "Fault": "manyhands.faults",
    "Faults": "manyhands.faults",
    "Host": "manyhands.cluster",
    "Job": "manyhands.job",
    "LRSchedule": "manyhands.lr_schedules",
    "Link": "manyhands.cluster",
    "Loss": "manyhands.job",
    "Metric": "manyhands.metrics",
    "NotationError": "manyhands.notation",
    "Objective": "manyhands.objective",
    "Pace": "manyhands.pacing",
    "PieceTime": "manyhands.costs",
    "Refused": "manyhands.failure",
    "Reproduction": "manyhands.lab.reproduction.reproduce",
    "Run": "manyhands.reports",
    "RunFailed": "manyhands.failure",
    "RunResult": "manyhands.reports",
    "VerdictRecord": "manyhands.reports",
    "Share": "manyhands.sampling.permutation",
    "Site": "manyhands.cluster",
    "SizedData": "manyhands.data.sized",
    "StreamedData": "manyhands.data.stream",
    "Strategy": "manyhands.strategies",
    "Target": "manyhands.stopping",
    "Times": "manyhands.virtual",
    "Trace": "manyhands.trace",
    "Trainer": "manyhands.live.worker.trainer",
    "Weighted": "manyhands.objective",
    "compare": "manyhands.lab.compare",
    "register": "manyhands.strategies",
    "every": "manyhands.intervals",
    "reproduce": "manyhands.lab.reproduction.reproduce",
    "simulate": "manyhands.verbs.simulate",
    "strategy": "manyhands.strategies",
    "train": "manyhands.verbs.train",
    "CalibratedHost": "manyhands.lab.calibration",
    "CalibratedLink": "manyhands.lab.calibration",
    "CalibratedSum": "manyhands.lab.calibration",
    "Calibration": "manyhands.lab.calibration",
    "ComputeTime": "manyhands.lab.calibration",
    "calibrate": "manyhands.lab.calibration",
    "Failures": "manyhands.lab.planning",
    "Goodput": "manyhands.lab.planning",
    "LeftOut": "manyhands.lab.planning",
    "Plan": "manyhands.lab.planning",
    "PlannedStrategy": "manyhands.lab.planning",
    "Rule": "manyhands.lab.planning",
    "TimeToTarget": "manyhands.lab.planning",
    "plan": "manyhands.lab.planning",
    "Searched": "manyhands.lab.search",
    "Trial": "manyhands.lab.search",
    "TrialResult": "manyhands.lab.search",
    "search": "manyhands.lab.search",
}
_FOLDERS = (
    "adapters",
    "callbacks",
    "codecs",
    "data",
    "faults",
    "free",
    "lr_schedules",
    "metrics",
    "models",
    "placements",
    "protocols",
    "reports",
    "schedules",
    "strategies",
    "trace",
    "virtual",
)


def __getattr__(name: str) -> object:
    if name in _FOLDERS:
        return import_module(f"manyhands.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'manyhands' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if "IPython" in sys.modules:
    # Statements of a notebook that failed are not executed by workers.
    import_module("manyhands.script.cells").watch()
