"""Callbacks of a run: functions that are called while it trains, and loggers made of them.

They are called in the process that started the run, live and virtual, not in a worker: nothing has
to be sent to other processes, and a slow logger does not slow training. Under torchrun there is no
such process, and worker 0 calls them, in a thread of its own.

    >>> isinstance(CSVLogger(), Callback)
    True
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CSVLogger", "Callback", "TensorBoard"]


class Callback:
    """What is called in the course of a run; override what is of interest.

    An exception in a callback is shown, and the callback is not called any more; the run goes on.

    Example:
        >>> import manyhands as mh
        >>> class Best(mh.callbacks.Callback):
        ...     best = float("inf")
        ...
        ...     def on_evaluation(self, values, samples, seconds):
        ...         self.best = min(self.best, values["loss"])
    """

    def on_start(self, folder: Path) -> None:
        """The run begins; its results will be in this folder."""

    def on_epoch(self, epoch: int, samples: int) -> None:
        """An epoch is complete; epochs count from 0, samples are those of the run so far."""

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """The validation loss and metrics after so many samples and seconds of the run."""

    def on_end(self, run: Any) -> None:
        """The run is finished; it is given as a `mh.Run`."""

    def on_failure(self, error: BaseException) -> None:
        """The run failed, or was interrupted."""


class CSVLogger(Callback):
    """Writes every evaluation as a row: samples, seconds, and the metrics.

    Args:
        path: the file; a relative path is one in the run's folder.

    Example:
        >>> import manyhands as mh
        >>> logger = mh.callbacks.CSVLogger("validation.csv")
    """

    def __init__(self, path: str | Path = "metrics.csv") -> None:
        self._given = Path(path)
        self._path = self._given

    def on_start(self, folder: Path) -> None:
        """Begin a new file."""
        self._path = folder / self._given
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("", encoding="utf-8")

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Append a row; the first one follows the names of the columns."""
        names = ["samples", "seconds", *values]
        with self._path.open("a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, names)
            if not file.tell():
                table.writeheader()
            table.writerow({"samples": samples, "seconds": round(seconds, 3), **values})


class TensorBoard(Callback):
    """Writes every evaluation for TensorBoard, while the run trains. Needs the extra `tensorboard`.

    Args:
        folder: the folder of the event file; a relative path is one in the run's folder.

    Example:
        >>> import manyhands as mh
        >>> logger = mh.callbacks.TensorBoard("tensorboard")
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self._folder = Path(folder)
        self._writer: Any = None

    def on_start(self, folder: Path) -> None:
        """Begin an event file."""
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard is not installed: pip install 'manyhands[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder / self._folder))

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Write the metrics; a step of TensorBoard is a sample."""
        del seconds
        for name, value in values.items():
            self._writer.add_scalar(f"validation/{name}", value, samples)
        self._writer.flush()

    def on_end(self, run: Any) -> None:
        """Close the file."""
        del run
        self._writer.close()

    def on_failure(self, error: BaseException) -> None:
        """Close the file."""
        del error
        self._writer.close()
