"""Callbacks of a run: functions that are called while it trains, and loggers made of them.

They are called in the process that started the run, live and virtual, not in a worker: nothing has
to be sent to other processes, and a slow logger does not slow training. Under torchrun there is no
such process, and worker 0 calls them, in a thread of its own.

    >>> isinstance(CSVLogger(), Callback)
    True
"""

from manyhands.callbacks.callback import Callback
from manyhands.callbacks.csv_logger import CSVLogger
from manyhands.callbacks.mlflow_logger import MLflow
from manyhands.callbacks.tensorboard_logger import TensorBoard
from manyhands.callbacks.wandb_logger import WandB

__all__ = ["CSVLogger", "Callback", "MLflow", "TensorBoard", "WandB"]
