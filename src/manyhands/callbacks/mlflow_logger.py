"""Runs for MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from manyhands.callbacks.callback import Callback

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST: Final = 500
"""Characters that every version of MLflow stores of a parameter."""


class MLflow(Callback):
    """Records a run with MLflow. Needs the extra `mlflow`.

    Every evaluation is logged as `validation/…` with the samples of the run as step, the settings
    are parameters, and the figures at the end are metrics. A run that fails has the status FAILED,
    one that is interrupted KILLED.

    Args:
        experiment: the experiment, which is created if there is none of this name.
        tracking_uri: the store or server, as "sqlite:///mlflow.db"; default: MLflow's own, that is
            the environment variable MLFLOW_TRACKING_URI.
        name: the run's name; default: that of its folder.
        tags: further tags of the run.

    Example:
        >>> import manyhands as mh
        >>> logger = mh.callbacks.MLflow("digits", tracking_uri="sqlite:///mlflow.db")
    """

    def __init__(
        self,
        experiment: str = "manyhands",
        tracking_uri: str | Path | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._experiment = experiment
        self._store = None if tracking_uri is None else _uri(tracking_uri)
        self._name = name
        self._tags = dict(tags or {})
        self._client: Any = None
        self._run = ""

    def on_start(self, folder: Path) -> None:
        """Begin a run."""
        try:
            from mlflow import MlflowClient  # noqa: PLC0415 - an optional extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "MLflow is not installed: pip install 'manyhands[mlflow]'"
            ) from error
        # A client, not MLflow's global run, which another thread of the script may be using.
        self._client = MlflowClient(tracking_uri=self._store)
        known = self._client.get_experiment_by_name(self._experiment)
        number = (
            self._client.create_experiment(self._experiment)
            if known is None
            else known.experiment_id
        )
        begun = self._client.create_run(
            number,
            run_name=self._name or folder.name,
            tags={"manyhands.folder": str(folder), **self._tags},
        )
        self._run = begun.info.run_id

    def on_settings(self, settings: Mapping[str, str]) -> None:
        """Store the settings as parameters."""
        for name, value in settings.items():
            self._client.log_param(self._run, name, value[:_LONGEST])

    def on_evaluation(self, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Log the metrics."""
        named = {f"validation/{name}": value for name, value in values.items()}
        for name, value in {"seconds": seconds, **named}.items():
            self._client.log_metric(self._run, name, value, step=samples)

    def on_end(self, run: Any) -> None:
        """Log the figures, and end the run."""
        for name, value in run.figures().items():
            if isinstance(value, (int, float)):
                self._client.log_metric(self._run, f"run/{name}", value, step=run.samples)
        self._client.set_terminated(self._run, "FINISHED")

    def on_failure(self, error: BaseException) -> None:
        """Mark the run as failed."""
        words = f"{type(error).__name__}: {error}"
        self._client.set_tag(self._run, "manyhands.error", words[:_LONGEST])
        interrupted = isinstance(error, KeyboardInterrupt)
        self._client.set_terminated(self._run, "KILLED" if interrupted else "FAILED")


def _uri(given: str | Path) -> str:
    """A folder as a URI; other texts as they are."""
    return given.resolve().as_uri() if isinstance(given, Path) else given
