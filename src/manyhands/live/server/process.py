"""The process of one parameter server."""

from __future__ import annotations

import functools
import signal
import sys
import time
from pathlib import Path

from manyhands.files.standard_streams import outlast_unwritable
from manyhands.live.assignment import Assignment
from manyhands.live.member.heartbeat import LinkHeartbeat, end_with_threads
from manyhands.live.member.progress import Progress
from manyhands.live.member.reporting import fail, listen_outside
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.parent_death import die_with
from manyhands.live.processes.supervision import FINISHED
from manyhands.trace import Recorder, live_header
from manyhands.transport.listeners import endpoint


def main(path: str, number: int) -> None:
    """Serve the assignment at `path` as server `number`, as a child of the agent."""
    assignment = Assignment.read(Path(path))
    outlast_unwritable()
    # Before anything is opened: if the agent has ended already, this process exits here.
    die_with(assignment.agent, signal.SIGKILL)
    raise_descriptors()
    clock = time.monotonic
    head = live_header("server", number, clock=clock, wall=time.time, host=assignment.host)
    chunks, progress = list[bytes](), Progress()
    recorder = Recorder(head, chunks.append, clock)
    # Before the heartbeat, whose first message has the address.
    outside = listen_outside(assignment, number)
    address = endpoint(outside) if outside else ""
    connect = functools.partial(assignment.line, head.name)
    heartbeat = LinkHeartbeat(recorder, progress, clock, head, connect, chunks, address)
    # Before the thread starts: an exception in its first heartbeat must end this process, too.
    end_with_threads(functools.partial(fail, heartbeat=heartbeat))
    heartbeat.start()
    try:
        # Torch is imported after the first heartbeat, so that a slow start is seen as one.
        from manyhands.live.server.shard_server import ShardServer  # noqa: PLC0415

        ShardServer(assignment, number, recorder, progress, outside=outside).until_dismissed(
            heartbeat
        )
    except BaseException as error:  # noqa: BLE001 - every failure is reported to the agent
        fail(error, heartbeat)
    heartbeat.stop()
    sys.exit(FINISHED)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
