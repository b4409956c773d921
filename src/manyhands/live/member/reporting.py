"""The address and the failure of a process, as reported to the coordinator and the agent."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.transport.listeners import listen

if TYPE_CHECKING:
    import socket

    from manyhands.live.assignment import Assignment
    from manyhands.live.member.heartbeat import LinkHeartbeat


def listen_outside(assignment: Assignment, number: int) -> socket.socket | None:
    """A listening socket for other hosts, for the server in this process; None for one host.

    Its port is sent with the first message to the coordinator, before the server is ready. A
    successor listens on the port of its predecessor.
    """
    if not assignment.hosts:
        return None
    file = Path(assignment.private) / f"server-{number}.port"
    port = int(file.read_text(encoding="ascii")) if file.exists() else 0
    listener = listen(assignment.address, port)
    file.write_text(str(listener.getsockname()[1]), encoding="ascii")
    return listener


def fail(error: BaseException, heartbeat: LinkHeartbeat) -> None:
    """Write an error report, send the trace and exit, without waiting for threads that hang."""
    from manyhands.failure import PeerLost  # noqa: PLC0415
    from manyhands.live.processes.supervision import leave_report  # noqa: PLC0415
    from manyhands.script.user_traceback import is_refusal, user_traceback  # noqa: PLC0415

    at = time.monotonic()
    text = user_traceback(error)
    if text is None:
        # What is refused is explained by its words; our frames would hide them.
        words = [f"{error}\n"] if is_refusal(error) else traceback.format_exception(error)
        text = "".join(words)
    leave_report(error, text, consequence=isinstance(error, PeerLost), at=at)
    heartbeat.failed = True
    stopper = threading.Thread(target=heartbeat.stop, daemon=True)
    stopper.start()
    stopper.join(2.0)
    sys.stdout.flush()
    sys.stderr.flush()
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    os._exit(code or 1)
