"""Calls a job's callbacks while its run trains, by following the run's trace."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from manyhands.reports import Run
from manyhands.trace import Event, Following, Point, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from manyhands.callbacks import Callback
    from manyhands.job import Job

_EVERY = 0.3
"""Seconds between two looks at the trace."""
_VALIDATION = "validation/"


@contextlib.contextmanager
def calling(job: Job, folder: Path) -> Iterator[None]:
    """Call the job's callbacks while the block makes the run of a folder."""
    if not job.callbacks:
        yield
        return
    calls = _Calls(job, folder)
    calls.start()
    try:
        yield
    except BaseException as error:
        failure = error
        calls.stop()
        calls.all("on_failure", lambda one: one.on_failure(failure))
        raise
    calls.stop()
    calls.all("on_end", lambda one: one.on_end(Run(folder, model=job.model)))


class _Calls(threading.Thread):
    """Looks at the trace of a run from time to time, and calls the callbacks of its job."""

    def __init__(self, job: Job, folder: Path) -> None:
        super().__init__(name="manyhands-callbacks", daemon=True)
        self._callbacks = list(job.callbacks)
        self._metrics = 1 + len(job.metric_objects)
        """Metrics of an evaluation, the loss included."""
        self._trace = Following(folder)
        self._values: dict[int, dict[str, float]] = {}
        """By samples of the run, the metrics of an evaluation that are known so far."""
        self._epochs = 0
        self._ended = threading.Event()
        self.all("on_start", lambda one: one.on_start(folder))

    def run(self) -> None:
        """Look until the run has ended."""
        while not self._ended.wait(_EVERY):
            self._look()

    def stop(self) -> None:
        """End the thread, and look once more."""
        self._ended.set()
        self.join()
        self._look()

    def all(self, name: str, call: Callable[[Callback], None]) -> None:
        """Call a method of all callbacks; one that raises is not called any more."""
        for one in list(self._callbacks):
            try:
                call(one)
            except Exception:  # noqa: BLE001 - a logger must not end a run
                self._callbacks.remove(one)
                sys.stderr.write(
                    f"manyhands: {type(one).__name__}.{name} failed and is not called any more; "
                    f"the run goes on\n{traceback.format_exc()}"
                )

    def _look(self) -> None:
        records = self._trace.new()
        settings = {each.name: each.value for _, each in records if isinstance(each, Setting)}
        if settings:
            self.all("on_settings", lambda one: one.on_settings(settings))
        for seconds, record in records:
            match record:
                case Point(name=name, value=value, samples=samples) if name.startswith(_VALIDATION):
                    known = self._values.setdefault(samples, {})
                    if len(known) == self._metrics:
                        continue  # a worker that was restarted writes its evaluations again
                    known[name.removeprefix(_VALIDATION)] = math.nan if value is None else value
                    if len(known) == self._metrics:
                        self._evaluated(known, samples, seconds)
                case Event(what="epoch", detail=detail) if int(detail["number"]) >= self._epochs:
                    self._epochs = int(detail["number"]) + 1
                    self._completed(int(detail["number"]), int(detail["samples"]))

    def _evaluated(self, values: dict[str, float], samples: int, seconds: float) -> None:
        self.all("on_evaluation", lambda one: one.on_evaluation(dict(values), samples, seconds))

    def _completed(self, epoch: int, samples: int) -> None:
        self.all("on_epoch", lambda one: one.on_epoch(epoch, samples))
