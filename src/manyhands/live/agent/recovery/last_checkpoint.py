"""The agent's part of checkpoints: what a run continues from, and a last one before it leaves."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from manyhands.failure import Diverged, ProcessKilled
from manyhands.files.checkpoints import ASKED, CHECKPOINTS, Checkpoint, generations, latest
from manyhands.files.checkpoints.attempts import make_room
from manyhands.files.run_folders import claim
from manyhands.live.agent.checks import pin_start
from manyhands.live.agent.recovery.from_divergence import (
    before_divergence,
    why_not_back,
    without_remedy,
)
from manyhands.live.agent.recovery.kept_checkpoints import keeping
from manyhands.live.processes.parent_death import LEAVING
from manyhands.live.request import RunSetting
from manyhands.script.origin import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from manyhands.live.agent.recovery.kept_checkpoints import KeptCheckpoints
    from manyhands.live.agent.recovery.worker_returns import WorkerReturns
    from manyhands.live.request import Request

PATIENCE: Final = 25.0
"""Seconds that a run which was told to end has for a last checkpoint."""
_POLL: Final = 0.02
_MOST_RETURNS: Final = 3
"""How often a run goes back to the memory of several hosts without a later checkpoint."""
_MEMORY: Final = "memory"
"""Where a checkpoint is, in the setting `resumed`."""


def continuing(request: Request) -> str:
    """What the run continues from, in words; empty if it begins."""
    told = {setting.name: setting.value for setting in request.settings}
    if "resumed" not in told:
        return ""
    words = f"continues from {told['resumed']}"
    if "damaged" in told:
        words += f"; later checkpoints are damaged and were left out: {told['damaged']}"
    if "diverged" in told:
        words += f"; the run {told['diverged']}"
    if "changed since" in told:
        words += f"; changed since: {told['changed since']}"
    return words


def position(resume: Path | None) -> tuple[int, int, float]:
    """Samples, global batches and seconds before a checkpoint; zeros if the run begins."""
    if resume is None:
        return 0, 0, 0.0
    manifest = Checkpoint(resume).manifest
    return manifest.samples, manifest.step, manifest.seconds


def from_weights(request: Request) -> Request:
    """Let servers and workers of a protocol start from the weights of the checkpoint.

    Under a placement each worker reads its part of the checkpoint itself.
    """
    if request.resume is None or not request.strategy.needs(request.workers).leases:
        return request
    overrides = replace(request.overrides, start=str(request.resume.resolve()))
    return replace(request, overrides=overrides)


def carry_through(
    request: Request, notes: list[str], execute: Callable[[Request, list[str]], None]
) -> None:
    """Execute a run; if a killed process ends it, continue from its last checkpoint.

    Workers that hold different parts of a model cannot continue without one of them, so all go
    back. A run that diverges goes back, too (`live/agent/recovery/from_divergence.py`).

    Args:
        request: the run.
        notes: what is shown first.
        execute: executes the run, or its continuation, and shows some words first.

    Raises:
        ProcessKilled: there is no checkpoint, or none was stored since the last time.
        Diverged: as above.
    """
    with keeping(request) as kept:
        if kept is not None:
            request = replace(request, memory=kept.paths)
        while True:
            try:
                execute(request, notes)
            except ProcessKilled as failure:
                again = _next_attempt(request, kept)
                if again is None:
                    raise
                request = again
                first = str(failure).splitlines()[0]
                notes = [f"{first}; all go back to the {_words(request)}"]
            except Diverged as failure:
                most = before_divergence(request, failure, kept)
                again = None if most is None else _next_attempt(request, kept, most)
                if again is None:
                    raise Diverged(f"{failure}{why_not_back(request)}") from None
                request = again
                notes = [f"{without_remedy(failure)}; all go back to the {_words(request)}"]
            else:
                return


def goes_back(request: Request, error: BaseException) -> bool:
    """Whether a run that ended continues by itself, from a checkpoint that all hosts have."""
    job = override(request.job, request.overrides)
    if isinstance(error, Diverged):
        return before_divergence(request, error, None) is not None
    if not isinstance(error, ProcessKilled):
        return False
    if request.kept_by_hosts:
        return request.returns < _MOST_RETURNS
    if job.checkpoint_on_disk is None:
        return False
    with contextlib.suppress(ValueError):
        return latest(request.folder).samples > request.gone_back_to
    return False


def _words(request: Request) -> str:
    """What a run that has gone back continues from."""
    if request.kept_by_hosts and request.gone_back_to > 0:
        return "last checkpoint in the memory of the hosts"
    if request.resume is None:
        return "beginning"
    samples = position(request.resume)[0]
    told = {setting.name: setting.value for setting in request.settings}
    where = " in memory" if told.get("resumed", "").startswith(_MEMORY) else ""
    return f"last checkpoint{where}, after {samples:,} samples"


def _next_attempt(
    request: Request, kept: KeptCheckpoints | None, most: int | None = None
) -> Request | None:
    """The request that continues a run; None if it cannot, or got no further since the last time.

    Checkpoints after more than `most` samples are left out.

    If several hosts keep checkpoints in memory, this one does not know which of them all have:
    their workers find out. A run that was killed while one was written may go back to the one
    before, and is given a few attempts to get beyond it.
    """
    again = _gone_back(request, kept, most)
    if again is None:
        return None
    if kept is not None and request.kept_by_hosts:
        newest, before = kept.newest(request.here), request.gone_back_to
        returns = 0 if newest > before else request.returns + 1
        if request.returns >= _MOST_RETURNS:
            return None
        return replace(again, gone_back_to=max(newest, before), returns=returns)
    samples = position(again.resume)[0]
    return None if samples <= request.gone_back_to else replace(again, gone_back_to=samples)


def _gone_back(request: Request, kept: KeptCheckpoints | None, most: int | None) -> Request | None:
    """The request that continues from the run's last checkpoint; None if it has none.

    A run that keeps checkpoints in memory and was killed before the first one begins again.
    """
    job = override(request.job, request.overrides)
    if job.checkpoint is None:
        return None
    stored = None
    if job.checkpoint_on_disk is not None:
        with contextlib.suppress(ValueError):
            stored = latest(request.folder, most)
    own = None if request.kept_by_hosts else kept
    last = None if own is None else own.last(most)
    if last is not None and stored is not None and stored.samples > last.manifest.samples:
        last = None
    if kept is None and stored is None:
        return None
    make_room(request.folder, most)
    claim(request.folder)
    resume, where = request.resume, ""
    if stored is not None:
        resume = stored.folder
        where = str(resume)
    if own is not None and last is not None:
        resume, where = own.take(last), _MEMORY
    generation = 0 if own is None else own.forget(None if last is None else last.number)
    settings = request.settings
    if where:
        samples, steps, _ = position(resume)
        told = RunSetting("resumed", f"{where} ({samples} samples, {steps} steps)", "default")
        settings = (*(one for one in settings if one.name != "resumed"), told)
    # Faults on purpose happen once.
    again = replace(request, resume=resume, settings=settings, faults=None, generation=generation)
    return pin_start(from_weights(again))


@contextlib.contextmanager
def stored_before_leaving(
    request: Request,
    say: Callable[[str], None],
    progress: WorkerReturns,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Context of a run: if it is told to end, it stores a checkpoint before.

    The processes of the run need not be told by messages: they look for a file.

    Args:
        request: the run.
        say: shows words to the user.
        progress: samples of the run so far; before the first ones, and without an earlier
            checkpoint, there is nothing to store.
        meanwhile: called again and again while the checkpoint is awaited.
    """
    try:
        yield
    except LEAVING:
        begun = progress.samples or (request.folder / CHECKPOINTS).is_dir()
        if override(request.job, request.overrides).checkpoint_on_disk is not None and begun:
            _store_now(request, say, meanwhile)
        raise


def _store_now(
    request: Request, say: Callable[[str], None], meanwhile: Callable[[], object]
) -> None:
    folder = request.folder / CHECKPOINTS
    # The first checkpoint of a run makes the folder, and this may be the first.
    folder.mkdir(exist_ok=True)
    # Before it is asked for: a checkpoint that is complete at once would not be seen as a new one.
    before = generations(folder)[:1]
    say("a last checkpoint is stored; interrupt again to leave at once")
    (folder / ASKED).touch()
    asked = time.monotonic()
    while time.monotonic() - asked < PATIENCE:
        now = generations(folder)[:1]
        if now != before:
            say(f"stored: {now[0]}")
            return
        meanwhile()
        time.sleep(_POLL)
    say(f"no checkpoint was stored within {PATIENCE:.0f} s")
