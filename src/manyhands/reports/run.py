"""A run's folder as a value: what `train` returns and what `Run(folder)` opens again later."""

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
    """A run that was made, read from its folder.

    The trace is read when it is first needed and then kept: to follow a run that is still going
    on, open it again.

    Args:
        folder: the run's.
        worker: the worker that holds this, where several do (under torchrun). Only the first of
            them gives a full summary, so that a script prints one and not one per process.
    """

    def __init__(self, folder: Path | str, *, worker: int = 0) -> None:
        self.folder = Path(folder)
        self.was_summarised = False
        """Whether anybody has asked for the summary."""
        self._worker = worker
        if not (self.folder / "trace").is_dir():
            raise FileNotFoundError(
                f"{self.folder} is no run: it has no folder 'trace'. Give the folder that a run's "
                "summary names"
            )

    @cached_property
    def trace(self) -> Trace:
        """What all of the run's processes wrote, on one clock."""
        return read(self.folder)

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or unfinished (ended without a word)."""
        return ending(self.trace).status

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every validation metric, as in `{"accuracy": 0.985}`.

        NaN stands for any value that was not finite.
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
        """SHA-256 of the final parameters, if the run wrote it down."""
        return parameters_digest(self.trace)

    def summary(self) -> str:
        """The run in some fifteen lines."""
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
        """Draw who did what when, as one SVG file; returns the path."""
        path = Path(path)
        path.write_text(timeline(self.trace), "utf-8")
        return path

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
