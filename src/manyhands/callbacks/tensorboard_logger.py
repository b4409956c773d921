"""Evaluations for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.callbacks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping


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
