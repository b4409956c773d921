"""Export of a run's curves as TensorBoard scalars, from its trace."""

import math
from pathlib import Path
from typing import Final

from manyhands.reports.figures.speed import training_seconds
from manyhands.reports.figures.trace_figures import loss_curve, validation_series
from manyhands.trace import Trace

_POINTS: Final = 1000
_SUFFIX: Final = ".manyhands"
"""Suffix that distinguishes our files from others in the folder."""


def write_scalars(trace: Trace, folder: Path) -> Path:
    """Write the training loss, every validation metric and the throughput; returns the file.

    Steps are samples, which mean the same under every strategy. Times are those of the run, so that
    TensorBoard's relative time is seconds of training. Needs the extra `tensorboard`.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an optional extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "scalars are written by TensorBoard, which is not installed: "
            "pip install 'manyhands[tensorboard]'"
        ) from error
    origin, _ = training_seconds(trace)
    # What was written before is replaced: TensorBoard would draw both.
    for before in folder.glob(f"*{_SUFFIX}"):
        before.unlink()
    writer = EventFileWriter(str(folder), filename_suffix=_SUFFIX)
    try:
        for tag, seconds, samples, value in _scalars(trace):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            wall = trace.wall + origin + seconds
            writer.add_event(Event(wall_time=wall, step=samples, summary=summary))
    finally:
        writer.close()
    (written,) = folder.glob(f"*{_SUFFIX}")
    return written


def _scalars(trace: Trace) -> list[tuple[str, float, int, float]]:
    """(tag, seconds of training, samples, value) in the order of time."""
    origin, _ = training_seconds(trace)
    loss = loss_curve(trace, _POINTS)
    found = [("loss/training", p.seconds, p.samples, _number(p.value)) for p in loss]
    before_seconds, before_samples = 0.0, 0
    for point in loss:
        if point.seconds > before_seconds:
            rate = (point.samples - before_samples) / (point.seconds - before_seconds)
            found.append(("samples per second", point.seconds, point.samples, rate))
        before_seconds, before_samples = point.seconds, point.samples
    for name, series in validation_series(trace).items():
        found += (
            (f"{name}/validation", point.at - origin, point.samples, _number(point.value))
            for point in series
        )
    return sorted(found, key=lambda scalar: (scalar[1], scalar[0]))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
