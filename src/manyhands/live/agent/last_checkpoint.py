"""The agent's part of checkpoints: what a run continues from, and a last one before it leaves."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.files.checkpoints import ASKED, CHECKPOINTS, Checkpoint, generations
from manyhands.live.processes.parent_death import LEAVING
from manyhands.script.origin import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from manyhands.live.request import Request

PATIENCE: Final = 25.0
"""Seconds that a run which was told to end has for a last checkpoint."""
_POLL: Final = 0.02


def continuing(request: Request) -> str:
    """What the run continues from, in words; empty if it begins."""
    told = {setting.name: setting.value for setting in request.settings}
    if "resumed" not in told:
        return ""
    words = f"continues from {told['resumed']}"
    if "damaged" in told:
        words += f"; later checkpoints are damaged and were left out: {told['damaged']}"
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
    overrides = msgspec.structs.replace(request.overrides, start=str(request.resume.resolve()))
    return replace(request, overrides=overrides)


@contextlib.contextmanager
def stored_before_leaving(request: Request, say: Callable[[str], None]) -> Iterator[None]:
    """Context of a run: if it is told to end, it stores a checkpoint before.

    The processes of the run need not be told by messages: they look for a file.
    """
    try:
        yield
    except LEAVING:
        if override(request.job, request.overrides).checkpoint is not None:
            _store_now(request, say)
        raise


def _store_now(request: Request, say: Callable[[str], None]) -> None:
    folder = request.folder / CHECKPOINTS
    if not folder.is_dir():
        return
    before = generations(folder)[:1]
    say("a last checkpoint is stored; interrupt again to leave at once")
    (folder / ASKED).touch()
    asked = time.monotonic()
    while time.monotonic() - asked < PATIENCE:
        now = generations(folder)[:1]
        if now != before:
            say(f"stored: {now[0]}")
            return
        time.sleep(_POLL)
    say(f"no checkpoint was stored within {PATIENCE:.0f} s")
