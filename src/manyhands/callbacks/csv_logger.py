"""Evaluations as rows of a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.callbacks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping


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
