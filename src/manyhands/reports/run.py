"""A run, read from its folder: what `train` returns, and what `Run(folder)` opens later."""

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.reports.comparison.load_comparisons import of_runs
from manyhands.reports.comparison.results import Comparison
from manyhands.reports.comparison.tables import Table, rows
from manyhands.reports.figures.outcome import ending, parameters_digest
from manyhands.reports.figures.speed import accounting, throughput
from manyhands.reports.figures.trace_figures import validation
from manyhands.reports.render.chrome import chrome
from manyhands.reports.render.notebook import run_html
from manyhands.reports.render.summary import summary
from manyhands.reports.render.timeline import timeline
from manyhands.trace import Trace, read

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import torch
    from torch import nn


class Run:
    """A run, read from its folder.

    The trace is read on first use and kept. To follow a run that is still in progress, open it
    again.

    Args:
        folder: the run's folder, which its summary names.
        worker: the rank of this process under torchrun. Only worker 0 returns a full summary, so
            that a script prints one and not one per process.
        model: makes a new model, as the job's `model`; `train` and `simulate` give the job's.

    Raises:
        FileNotFoundError: the folder holds no run.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
        >>> job = mh.Job(
        ...     model=lambda: torch.nn.Linear(2, 2),
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        ...     loss=torch.nn.functional.cross_entropy,
        ...     data=data,
        ...     validation=data,
        ...     global_batch=16,
        ...     epochs=2,
        ... )
        >>> run = mh.simulate(job, "ssp(staleness=4)", workers=2)
        >>> run.status, run.samples, run.metrics["accuracy"]
        ('finished', 128, 1.0)
        >>> run.model()
        Linear(in_features=2, out_features=2, bias=True)
        >>> sorted(run.state_dict())
        ['bias', 'weight']
        >>> mh.Run(run.folder).parameters_digest == run.parameters_digest
        True
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        worker: int = 0,
        model: "Callable[[], nn.Module] | None" = None,
    ) -> None:
        self.folder = Path(folder)
        self.was_summarised = False
        """Whether `summary` was called."""
        self._worker = worker
        self._make_model = model
        if not (self.folder / "trace").is_dir():
            raise FileNotFoundError(
                f"{self.folder} is not the folder of a run: it has no folder 'trace'. Use the "
                "folder that a run's summary names"
            )

    @cached_property
    def trace(self) -> Trace:
        """The records of all processes of the run, on one clock."""
        return read(self.folder)

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or unfinished (ended without a record of it)."""
        return ending(self.trace).status

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every validation metric: `{"accuracy": 0.985}`.

        A value that was not finite is NaN.
        """
        last = {name: metric.last for name, metric in validation(self.trace).items()}
        return {name: math.nan if value is None else value for name, value in last.items()}

    @property
    def samples(self) -> int:
        """Samples that all workers together trained on."""
        return accounting(self.trace).seen

    @property
    def seconds(self) -> float:
        """Seconds of training, start-up excluded."""
        return throughput(self.trace).seconds

    @property
    def parameters_digest(self) -> str | None:
        """SHA-256 of the final parameters; None if the run recorded none."""
        return parameters_digest(self.trace)

    def summary(self) -> str:
        """The run in about fifteen lines: outcome, metrics, speed, where its time went.

        Returns:
            The text that `manyhands summary` prints.
        """
        self.was_summarised = True
        if self._worker:
            return f"worker {self._worker}: worker 0 prints the summary"
        return summary(self.trace)

    def state_dict(self, *, average: bool = False) -> dict[str, "torch.Tensor"]:
        """The trained parameters and buffers.

        Args:
            average: the moving average of the parameters in their place, of a job with `ema`.

        Returns:
            Tensors by name, for `model.load_state_dict`.

        Raises:
            FileNotFoundError: the run stored no model, or no average.
        """
        from manyhands.files.checkpoint import load_state  # noqa: PLC0415 - reports read without torch
        from manyhands.files.tensor_format import AVERAGE, MODEL  # noqa: PLC0415 - see above

        path = self.folder / (AVERAGE if average else MODEL)
        if not path.exists():
            raise FileNotFoundError(
                f"{self.folder} has no {path.name}: the run has not finished ({self.status}), was "
                "made with time_only, or its job has no average (Job.ema)"
            )
        return load_state(path)

    def model(self) -> "nn.Module":
        """The job's model with the trained parameters and buffers, on the CPU, in training mode.

        Returns:
            A new model at each call.

        Raises:
            FileNotFoundError: the run stored no model.
            ValueError: the run was opened from its folder alone, which has no model function.
        """
        if self._make_model is None:
            raise ValueError(
                f"the folder {self.folder} has the trained parameters, but not the function that "
                "makes the model: give Run(folder, model=job.model), or use "
                "model.load_state_dict(run.state_dict())"
            )
        state = self.state_dict()
        model = self._make_model()
        model.load_state_dict(state)
        return model

    def chrome(self, path: Path | str) -> Path:
        """Write the trace as a Chrome trace, for https://ui.perfetto.dev.

        Args:
            path: the JSON file to write.

        Returns:
            The path.
        """
        path = Path(path)
        path.write_bytes(chrome(self.trace))
        return path

    def timeline(self, path: Path | str) -> Path:
        """Draw what every process did over time, as an SVG file.

        Args:
            path: the file to write.

        Returns:
            The path.
        """
        path = Path(path)
        path.write_text(timeline(self.trace), "utf-8")
        return path

    @cached_property
    def results(self) -> Comparison:
        """All figures of the run, as `results.json` has them: a comparison of this run alone."""
        return of_runs([self.trace])

    def curves(self) -> dict[str, list[tuple[int, float, float]]]:
        """Every curve of the run, by name.

        `validation/…` are the metrics, `training/loss` the loss, `measures/…` what
        `Job(measures=…)` asked for, such as the staleness, `run/throughput` samples per second and
        `run/bytes_sent` the bytes that all processes had sent.

        Returns:
            Rows (samples, seconds of training, value) in order of time; a value that was not finite
            is NaN. What the run did not record is left out.
        """
        found: dict[str, list[tuple[int, float, float]]] = {}
        for row in rows(self.results.runs, "curves"):
            value = math.nan if row["value"] is None else row["value"]
            of_name = found.setdefault(f"{row['split']}/{row['metric']}", [])
            of_name.append((row["samples"], row["seconds"], value))
        return found

    def figures(self) -> dict[str, float | str]:
        """Every single figure of the run by name: the row of the table `runs`.

        Returns:
            Numbers and texts; what was not measured is left out.
        """
        (row,) = rows(self.results.runs, "runs")
        return {name: value for name, value in row.items() if isinstance(value, (int, float, str))}

    def to_pandas(self, table: Table = "curves") -> "pd.DataFrame":
        """A table of the run as a pandas data frame, as `frame`.

        Args:
            table: as for `frame`.

        Returns:
            The data frame.

        Raises:
            ModuleNotFoundError: the extra `manyhands[pandas]` is not installed.
        """
        return self.frame(table)

    def frame(self, table: Table = "curves") -> "pd.DataFrame":
        """A table of the run as a pandas data frame; `docs/results.md` lists its columns.

        Args:
            table: "curves", a row per point of a validation metric or of the training loss;
                "runs", one row with all single figures; "staleness", a row per staleness that
                occurred.

        Returns:
            The data frame.

        Raises:
            ModuleNotFoundError: the extra `manyhands[pandas]` is not installed.
        """
        return self.results.frame(table)

    def to_csv(self, path: Path | str, table: Table = "curves") -> Path:
        """Write a table of the run as CSV.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return self.results.to_csv(path, table)

    def to_jsonl(self, path: Path | str, table: Table = "curves") -> Path:
        """Write a table of the run as JSON lines: one object per row.

        Args:
            path: the file to write.
            table: as for `frame`.

        Returns:
            The path.
        """
        return self.results.to_jsonl(path, table)

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        self.was_summarised = True
        return run_html(self.trace)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
