"""Runs for Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.callbacks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class WandB(Callback):
    """Records a run with Weights & Biases. Needs the extra `wandb`.

    Every evaluation is logged as `validation/…` over the samples of the run, the settings are the
    run's config, and the figures at the end its summary. A run that fails is marked as failed.

    Args:
        project: the project.
        name: the run's name; default: that of its folder.
        options: further arguments of `wandb.init`, such as `entity`, `group`, `tags` and
            `mode="offline"`.

    Example:
        >>> import manyhands as mh
        >>> logger = mh.callbacks.WandB(project="digits", mode="offline")
    """

    def __init__(self, project: str | None = None, name: str | None = None, **options: Any) -> None:
        self._options = {"project": project, "name": name} | options
        self._run: Any = None

    def on_start(self, folder: Path) -> None:
        """Begin a run; its files are in the run's folder, unless `dir` is given."""
        try:
            import wandb  # noqa: PLC0415 - an optional extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "wandb is not installed: pip install 'manyhands[wandb]'"
            ) from error
        options = {"dir": str(folder)} | self._options
        self._run = wandb.init(**options | {"name": options["name"] or folder.name})
        self._run.define_metric("*", step_metric="samples")

    def on_settings(self, settings: Mapping[str, str]) -> None:
        """Store the settings as the config."""
        self._run.config.update(dict(settings), allow_val_change=True)

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Log the metrics."""
        named = {f"validation/{name}": value for name, value in values.items()}
        self._run.log({"samples": samples, "seconds": seconds, **named})

    def on_end(self, run: Any) -> None:
        """Store the figures as the summary, and end the run."""
        self._run.summary.update(run.figures())
        self._run.finish(exit_code=0)

    def on_failure(self, error: BaseException) -> None:
        """Mark the run as failed."""
        self._run.summary.update({"error": f"{type(error).__name__}: {error}"})
        self._run.finish(exit_code=1)
