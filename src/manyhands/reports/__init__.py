"""Reports of runs, from their traces alone.

Modules that draw are not imported here: `page.write_page`, `table.table`,
`tensorboard.write_scalars`.

    >>> from manyhands.trace import Trace
    >>> throughput(Trace(processes=(), wall=0.0, kind="virtual")).samples
    0
"""

from manyhands.reports.comparison.likeness import RepeatedFigure
from manyhands.reports.comparison.load_comparisons import Source, gather
from manyhands.reports.comparison.measure import failed, measure
from manyhands.reports.comparison.records import (
    DataRecord,
    DesignRecord,
    ModelRecord,
    OptimizerRecord,
    ScriptRecord,
)
from manyhands.reports.comparison.results import (
    Comparison,
    Curve,
    Machine,
    PhaseBytes,
    RunResult,
    StalenessSummary,
    VerdictRecord,
    read_results,
    write_results,
)
from manyhands.reports.comparison.tables import Table
from manyhands.reports.comparison.verdict import Verdict, verdict
from manyhands.reports.figures.breakdown import Breakdown, Shares, breakdown
from manyhands.reports.figures.outcome import Ending, ending, parameters_digest, settings
from manyhands.reports.figures.speed import (
    Accounting,
    Epoch,
    Throughput,
    accounting,
    epochs,
    throughput,
    training_interval,
)
from manyhands.reports.figures.trace_figures import (
    LossPoint,
    MetricCurve,
    Spread,
    Traffic,
    loss_curve,
    lower_is_better,
    staleness,
    staleness_by_process,
    staleness_by_sender,
    time_to,
    traffic,
    validation,
)
from manyhands.reports.render.chrome import chrome
from manyhands.reports.render.summary import summary
from manyhands.reports.render.timeline import timeline
from manyhands.reports.run import Run

__all__ = [
    "Accounting",
    "Breakdown",
    "Comparison",
    "Curve",
    "DataRecord",
    "DesignRecord",
    "Ending",
    "Epoch",
    "LossPoint",
    "Machine",
    "MetricCurve",
    "ModelRecord",
    "OptimizerRecord",
    "PhaseBytes",
    "RepeatedFigure",
    "Run",
    "RunResult",
    "ScriptRecord",
    "Shares",
    "Source",
    "Spread",
    "StalenessSummary",
    "Table",
    "Throughput",
    "Traffic",
    "Verdict",
    "VerdictRecord",
    "accounting",
    "breakdown",
    "chrome",
    "ending",
    "epochs",
    "failed",
    "gather",
    "loss_curve",
    "lower_is_better",
    "measure",
    "parameters_digest",
    "read_results",
    "settings",
    "staleness",
    "staleness_by_process",
    "staleness_by_sender",
    "summary",
    "throughput",
    "time_to",
    "timeline",
    "traffic",
    "training_interval",
    "validation",
    "verdict",
    "write_results",
]
