"""The line of the user's own code that an error came from, in an exception or in a log."""

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_SAID: Final = re.compile(r", at (\S+:\d+)\b")
"""As messages of a refused job name it."""
_NOT_THEIRS: Final = (
    str(Path(__file__).parents[1]),
    *dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
)


def user_line(error: BaseException) -> str:
    """File and line, as in `train.py:41`; empty if no frame of the traceback is the user's.

    Args:
        error: with its traceback.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _last((frame.filename, str(frame.lineno)) for frame in frames)


def user_line_of(text: str) -> str:
    """The same of the last traceback in a log, or of the last message that names a line.

    >>> user_line_of('  File "/home/me/train.py", line 41, in loss')
    'train.py:41'
    >>> user_line_of("the job fails in loss: ValueError: no, at train.py:41. Nothing was started")
    'train.py:41'
    """
    said = _SAID.findall(text)
    return _last(_FRAME.findall(text)) or (said[-1] if said else "")


def _last(frames: Iterable[tuple[str, str]]) -> str:
    found = [(Path(file).name, line) for file, line in frames if _is_theirs(file)]
    return ":".join(found[-1]) if found else ""


def _is_theirs(file: str) -> bool:
    """Whether a file is neither ours, nor Python's, nor an installed package's."""
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return not (file.startswith(("<", *_NOT_THEIRS)) or installed)
