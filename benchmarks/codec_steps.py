"""Steps with a codec behind a slow link: what the break-even model predicts, and what is measured.

One worker behind a link, and a server behind another; needs root, or unprivileged user namespaces.
The worker computes, pushes its encoded update, and waits for the encoded answer: the step whose
time `manyhands codecs` predicts. Codecs and gradients are measured in this process, each time just
before the run with which they are compared. LeNet, 32 digits in a step.
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.codec_steps_job import BATCH, EPOCH, job
from benchmarks.codecs import environment
from benchmarks.figures import keep, report
from benchmarks.paced import steady_rate
from manyhands.lab.break_even import break_even
from manyhands.lab.network_run import train_spread
from manyhands.lab.networks.namespaces import NetworkShape, NotPermitted, check_permitted
from manyhands.reports import Run

CODECS = ("half()", "int8()", "int4()", "topk(0.01)", "chunked_topk()")
NETWORKS = ("100mbit", "300mbit")
NEAR = 0.15
"""How far a prediction may be from what is measured, relatively."""
SECONDS = 6.0
"""About as long as a run is measured."""
_JOB = Path(__file__).parent / "codec_steps_job.py"


@dataclass
class Steps:
    """Seconds of a step with one codec on one network, a number for each round."""

    codec: str
    network: str
    predicted: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of predicted / measured."""
        pairs = zip(self.predicted, self.measured, strict=True)
        return statistics.median(predicted / measured for predicted, measured in pairs)

    @property
    def row(self) -> str:
        """For the table."""
        means = [1e3 * statistics.median(each) for each in (self.predicted, self.measured)]
        low, high = 1e3 * min(self.measured), 1e3 * max(self.measured)
        return (
            f"| `{self.codec}` | {self.network} | {means[0]:.1f} | {means[1]:.1f} "
            f"({low:.1f} to {high:.1f}) | {self.ratio:.2f} |"
        )


HEADING = (
    "| codec | link | predicted ms | measured ms | predicted / measured |\n"
    "| --- | --- | --- | --- | --- |"
)


def predict(codec: str, network: str) -> float:
    """Seconds of a step, from a measurement of the codec on this job's first gradients."""
    found = break_even(job, [codec], [network], workers=1)
    return found.codecs[0].networks[0].push


def measure(codec: str, network: str, step: float) -> float:
    """Seconds of a step of a real run, whose steps take about `step` seconds."""
    shape = NetworkShape.read(f"{network}, servers apart")
    epochs = 2 + max(2, round(SECONDS / (step * EPOCH)))
    os.environ.update(environment(epochs))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        strategy = f"asynchronous(codec={codec})"
        code = train_spread([str(_JOB), "--strategy", strategy], shape, 1, output)
        if code:
            raise RuntimeError(f"{strategy} failed with exit code {code}")
        return BATCH / steady_rate(Run(output))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="the codecs whose text holds this")
    parser.add_argument("--network", action="append", help=f"by default {', '.join(NETWORKS)}")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    try:
        check_permitted()
    except NotPermitted as error:
        parser.exit(1, f"{error}\n")
    found = [
        Steps(codec, network)
        for codec in CODECS
        for network in given.network or NETWORKS
        if given.only in codec
    ]
    for number in range(given.rounds):
        for steps in found:
            steps.predicted.append(predict(steps.codec, steps.network))
            steps.measured.append(measure(steps.codec, steps.network, steps.predicted[-1]))
            print(f"round {number}: {steps.row}", file=sys.stderr, flush=True)
    print(HEADING)
    for steps in found:
        print(steps.row, "" if abs(steps.ratio - 1) <= NEAR else "falls short")
    figures: dict[str, object] = {
        f"{steps.codec}, {steps.network}": {**asdict(steps), "ratio": steps.ratio}
        for steps in found
    }
    if given.keep:
        keep("codec_steps", figures)
    report("codec_steps", figures)


if __name__ == "__main__":
    main()
