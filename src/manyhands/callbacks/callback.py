"""The base class of callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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

    def on_settings(self, settings: Mapping[str, str]) -> None:
        """The settings of the run, such as the strategy and the seed; called once, soon after."""

    def on_epoch(self, epoch: int, samples: int) -> None:
        """An epoch is complete; epochs count from 0, samples are those of the run so far."""

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """The validation loss and metrics after so many samples and seconds of the run."""

    def on_end(self, run: Any) -> None:
        """The run is finished; it is given as a `mh.Run`."""

    def on_failure(self, error: BaseException) -> None:
        """The run failed, or was interrupted."""
