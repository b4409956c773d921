"""A run, read from its folder: returned by `train`, and opened later by `Run(folder)`."""

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.reports.figures.outcome import ending, parameters_digest
from manyhands.reports.figures.speed import accounting, throughput
from manyhands.reports.figures.trace_figures import validation
from manyhands.reports.render.chrome import chrome
from manyhands.reports.render.summary import summary
from manyhands.reports.render.timeline import timeline
from manyhands.trace import Trace, read

if TYPE_CHECKING:
    import torch


class Run:
    """A run, read from its folder.

    The trace is read when it is first needed and then kept: to follow a running run, open it again.

    Args:
        folder: the run's folder.
        worker: the rank of this process under torchrun. Only worker 0 returns a full summary, so
            that a script prints it once and not once per process.
    """

    def __init__(self, folder: Path | str, *, worker: int = 0) -> None:
        self.folder = Path(folder)
        self.was_summarised = False
        """Whether the summary was requested."""
        self._worker = worker
        if not (self.folder / "trace").is_dir():
            raise FileNotFoundError(
                f"{self.folder} is not the folder of a run: it has no folder 'trace'. Use the "
                "folder that a run's summary names"
            )

    @cached_property
    def trace(self) -> Trace:
        """The merged trace of all processes of the run, on one clock."""
        return read(self.folder)

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or unfinished (ended without a record of it)."""
        return ending(self.trace).status

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every validation metric, as in `{"accuracy": 0.985}`.

        Values that were not finite are NaN.
        """
        last = {name: metric.last for name, metric in validation(self.trace).items()}
        return {name: math.nan if value is None else value for name, value in last.items()}

    @property
    def samples(self) -> int:
        """Samples trained on, by all workers together."""
        return accounting(self.trace).seen

    @property
    def seconds(self) -> float:
        """Seconds of training, start-up excluded."""
        return throughput(self.trace).seconds

    @property
    def parameters_digest(self) -> str | None:
        """SHA-256 of the final parameters, if it was recorded."""
        return parameters_digest(self.trace)

    def summary(self) -> str:
        """A summary of the run, in about fifteen lines."""
        self.was_summarised = True
        if self._worker:
            return f"worker {self._worker}: worker 0 prints the summary"
        return summary(self.trace)

    def state_dict(self) -> dict[str, "torch.Tensor"]:
        """The trained parameters and buffers, for `model.load_state_dict`."""
        from manyhands.files.checkpoint import load_state  # noqa: PLC0415 - reports read without torch

        return load_state(self.folder / "model.safetensors")

    def chrome(self, path: Path | str) -> Path:
        """Write the trace as a Chrome trace, for https://ui.perfetto.dev; returns the path."""
        path = Path(path)
        path.write_bytes(chrome(self.trace))
        return path

    def timeline(self, path: Path | str) -> Path:
        """Draw a timeline of all processes as an SVG file; returns the path."""
        path = Path(path)
        path.write_text(timeline(self.trace), "utf-8")
        return path

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
