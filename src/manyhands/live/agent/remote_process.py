"""Processes on other hosts, as the first host's agent tracks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from manyhands.live.processes.supervision import ErrorReport, Exit

if TYPE_CHECKING:
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.wire.joining import Ended


class RemoteProcess:
    """A worker or a server that another host's agent started, watches and ends.

    Args:
        name: its name.
        host: its host.
        least: reports on incarnations before this one are about predecessors.
    """

    def __init__(self, name: str, host: str, least: int = 0) -> None:
        self.name = name
        self.host = host
        self._least = least
        self._exit: Exit | None = None
        self.is_back = False
        """Whether its agent has restarted it after its end."""

    def poll(self) -> Exit | None:
        """How it ended; None until its end is reported."""
        return self._exit

    def set_ended(self, ended: Ended) -> None:
        """Note the report of its end; only the first one counts."""
        if self._exit is None and (not ended.life or ended.life >= self._least):
            self.is_back = ended.again
            report = _report(ended.report)
            about = (self.name, self.host, ended.pid, ended.code, report, ended.words)
            self._exit = Exit(*about, ended.life, ended.at, ended.early)


def _report(text: bytes) -> ErrorReport | None:
    try:
        return msgspec.json.decode(text, type=ErrorReport) if text else None
    except msgspec.MsgspecError:
        return None


class RemoteWorkers(dict[str, RemoteProcess]):
    """The workers on all hosts but the first, by name; those that are lost are removed.

    Args:
        hosts: the hosts of the run; None for one.
    """

    def __init__(self, hosts: Hosts | None) -> None:
        self._hosts = hosts
        self._back: dict[str, RemoteProcess] = {}
        """Lost workers that their agents have restarted, until the loss is noted."""
        super().__init__(self._begin())

    def _begin(self) -> dict[str, RemoteProcess]:
        if self._hosts is None:
            return {}
        places = (
            (host, rank) for host in self._hosts.names[1:] for rank in self._hosts.ranks(host)
        )
        return {f"worker-{rank}": RemoteProcess(f"worker-{rank}", host) for host, rank in places}

    def lose(self, exit_: Exit) -> None:
        """Remove a worker that is lost."""
        gone = self.pop(exit_.name, None)
        if gone is not None and gone.is_back:
            following = exit_.incarnation + 1
            self._back[exit_.name] = RemoteProcess(exit_.name, exit_.host, following)

    def expect(self, name: str, *, allowed: bool) -> bool:
        """Add the successor of a lost worker; whether its agent has started one."""
        back = self._back.pop(name, None)
        if back is not None and allowed:
            self[name] = back
        return back is not None and allowed

    def take_back(self, host: str) -> bool:
        """Add the workers of a host that was lost and has joined again; whether it was lost."""
        back = {name: one for name, one in self._begin().items() if one.host == host}
        was_lost = not back.keys() <= self.keys()
        if was_lost:
            self.update(back)
        return was_lost
