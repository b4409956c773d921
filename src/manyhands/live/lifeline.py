"""Processes that die with the one that started them."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, death: signal.Signals) -> None:
    """Have the kernel send `death` to this process when its parent dies, however it dies.

    The parent may be dead already, before the kernel was asked: then this process ends here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl refused a parent-death signal")
    if os.getppid() != parent:
        sys.exit(f"the agent (pid {parent}) was gone before this process began")
