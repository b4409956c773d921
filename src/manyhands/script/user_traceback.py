"""Tracebacks of errors in a user's script: the script's own frames, without those of libraries.

An error in a script, or in the call of a library that it makes, is found at a line of the script.
Between the command and that line lie forty lines of frames of ours, which help nobody.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Final

VARIABLE: Final = "MANYHANDS_TRACEBACK"
"""The environment variable that asks for whole tracebacks, with the value `full`."""
_OURS: Final = str(Path(__file__).parent.parent)
_INSTALLED: Final = tuple(
    {
        _OURS,
        sys.base_prefix + os.sep + "lib",
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    }
)
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def user_traceback(error: BaseException) -> str | None:
    """The traceback of an error with the frames of the user's files; None if it has none of them.

    Of library frames only the last is kept, if it is where the error was raised, and it is not one
    of ours. With MANYHANDS_TRACEBACK=full it is the whole traceback.
    """
    if wants_all():
        return "".join(traceback.format_exception(error))
    whole = traceback.TracebackException.from_exception(error)
    links = [whole]
    while (link := _link(links[-1])) is not None and link not in links:
        links.append(link)
    if not any(map(_has_user_frames, links)):
        return None
    for link in links:
        link.stack = traceback.StackSummary.from_list(_kept(link.stack))
    # An error that has no frame of the user's is only how a library words the next one.
    while not _has_user_frames(whole) and (link := _link(whole)) is not None:
        whole = link
    return "".join(whole.format())


def is_refusal(error: BaseException) -> bool:
    """Whether the words of an error say all: code of ours checked a value, and raised it."""
    stack = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(stack) and stack[-1].filename.startswith(_OURS)


def wants_all() -> bool:
    """Whether whole tracebacks are asked for."""
    return os.environ.get(VARIABLE) == "full"


def is_user_file(path: str) -> bool:
    """Whether a frame's file is the user's: neither installed nor generated code."""
    if path.startswith("<"):
        return path.startswith("<ipython")
    return not path.startswith(_INSTALLED) and not any(part in path for part in _PACKAGES)


def _link(error: traceback.TracebackException) -> traceback.TracebackException | None:
    """The error that this one was raised from, or while handling it."""
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _has_user_frames(error: traceback.TracebackException) -> bool:
    # A syntax error is at a line of a file that has no frame.
    named = getattr(error, "filename", None)
    if isinstance(named, str) and is_user_file(named):
        return True
    return any(is_user_file(frame.filename) for frame in error.stack)


def _kept(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames of user files, and the one that raised if it is of another library."""
    kept = [frame for frame in stack if is_user_file(frame.filename)]
    last = stack[-1] if stack else None
    if kept and last is not None and last is not kept[-1]:
        generated = last.filename.startswith("<")
        if not generated and not last.filename.startswith(_OURS):
            kept.append(last)
    return kept
