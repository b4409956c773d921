"""Processes on other hosts, as the first host's agent tracks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from manyhands.live.processes.supervision import ErrorReport, Exit

if TYPE_CHECKING:
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.wire.joining import Ended


class RemoteProcess:
    """A worker or a server that another host's agent started, watches and ends."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self._exit: Exit | None = None

    def poll(self) -> Exit | None:
        """How it ended; None until its end is reported."""
        return self._exit

    def set_ended(self, ended: Ended) -> None:
        """Note the report of its end; only the first one counts."""
        if self._exit is None:
            report = _report(ended.report)
            about = (self.name, self.host, ended.pid, ended.code, report, ended.words)
            self._exit = Exit(*about, ended.life, ended.at, ended.early)


def _report(text: bytes) -> ErrorReport | None:
    try:
        return msgspec.json.decode(text, type=ErrorReport) if text else None
    except msgspec.MsgspecError:
        return None


def remote_workers(hosts: Hosts | None) -> dict[str, RemoteProcess]:
    """The workers on all hosts but the first, by name."""
    if hosts is None:
        return {}
    ranks = ((host, rank) for host in hosts.names[1:] for rank in hosts.ranks(host))
    return {f"worker-{rank}": RemoteProcess(f"worker-{rank}", host) for host, rank in ranks}
