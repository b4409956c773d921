"""Reports: what a run did, told from its trace and from nothing else.

What draws is not loaded with this: `page.write_page`, `table.table`, `tensorboard.write_scalars`.
"""

from manyhands.reports.breakdown import Breakdown, Shares, breakdown
from manyhands.reports.chrome import chrome
from manyhands.reports.figures import (
    LossPoint,
    Metric,
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
from manyhands.reports.gather import Source, gather
from manyhands.reports.measure import failed, measure
from manyhands.reports.outcome import Ending, ending, parameters_digest, settings
from manyhands.reports.results import (
    Comparison,
    Curve,
    Machine,
    Measured,
    Staleness,
    read_results,
    write_results,
)
from manyhands.reports.run import Run
from manyhands.reports.speed import (
    Accounting,
    Epoch,
    Throughput,
    accounting,
    epochs,
    throughput,
    training_interval,
)
from manyhands.reports.summary import summary
from manyhands.reports.timeline import timeline
from manyhands.reports.verdict import Verdict, verdict

__all__ = [
    "Accounting",
    "Breakdown",
    "Comparison",
    "Curve",
    "Ending",
    "Epoch",
    "LossPoint",
    "Machine",
    "Measured",
    "Metric",
    "Run",
    "Shares",
    "Source",
    "Spread",
    "Staleness",
    "Throughput",
    "Traffic",
    "Verdict",
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
