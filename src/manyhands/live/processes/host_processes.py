"""The processes that an agent has on its host: how they are born, and what they leave behind."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.live.processes.fork_server import ForkFailed, ForkServer
from manyhands.live.processes.incarnation import LIFE, Incarnations
from manyhands.live.processes.supervision import Exit, Handle, Process, Start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NURSERY = "nursery"
_POLL = 0.1
_NO_SPACE = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]")
_RENEWALS = 10
"""How often a nursery that was killed is replaced in one run."""


class HostProcesses:
    """Starts processes of one run on one host.

    Args:
        host: its name in this run.
        assignment: the file that tells them what to do.
        folder: the run's on this host; their logs go there.
        environment: what they have set besides the agent's own.
        loaded: forks those that need torch; None starts them afresh.
        admission: how many agents this run has let in before.
    """

    def __init__(
        self,
        host: str,
        assignment: Path,
        folder: Path,
        environment: Mapping[str, str],
        loaded: ForkServer | None,
        admission: int = 0,
    ) -> None:
        self._host = host
        self._assignment = assignment
        self._folder = folder
        self._environment = dict(environment)
        self._nursery = loaded
        self._renewals = 0
        self._lives = Incarnations(admission)
        self._logs: dict[str, str] = {}
        """The stem of the log files of each process's present incarnation."""
        self.nursery: Process | None = None
        """The nursery's own process, once it is awaited."""

    def await_nursery(self, meanwhile: Callable[[], None]) -> str:
        """Wait until the nursery has loaded everything; why there is none, if it must not fork."""
        if self._nursery is None:
            return ""
        error = self._folder / "logs" / f"{NURSERY}.error.json"
        self.nursery = Process(NURSERY, self._nursery, error, self._host)
        while not self._nursery.is_ready(_POLL):
            meanwhile()
            gone = self.nursery.poll()
            if gone is not None and not self.renew_nursery(gone):
                raise RunFailed(self.words(gone))
        unfit = self._nursery.unfit
        if unfit:
            self._nursery.close()
            self._nursery = self.nursery = None
        return unfit

    def renew_nursery(self, gone: Exit) -> bool:
        """Start another nursery in place of one that was killed; whether there is one now.

        No process depends on the nursery but those still to be forked. While the new one loads,
        processes are started afresh.
        """
        killed = gone.code < 0 and self._nursery is not None
        if self._nursery is None or not killed or self._renewals >= _RENEWALS:
            return False
        self._renewals += 1
        self._nursery.retire()
        self._nursery = ForkServer(self._environment)
        error = self._folder / "logs" / f"{NURSERY}.error.json"
        self.nursery = Process(NURSERY, self._nursery, error, self._host)
        return True

    def fork(self, name: str, module: str, number: str, log: str = "") -> Process:
        """Start a process that needs torch."""
        if self._nursery is None or not self._nursery.is_ready(0.0) or self._nursery.unfit:
            return self._process(name, module, _afresh, number, log=log)
        try:
            return self._process(name, module, self._nursery.fork, number, log=log)
        except ForkFailed as error:
            gone = self.nursery.wait(1.0) if self.nursery else None
            if gone is not None and self.renew_nursery(gone):
                return self._process(name, module, _afresh, number, log=log)
            words = f"{name.replace('-', ' ')} could not be started: {gone or error}"
            raise RunFailed(words) from error

    def start(self, name: str, module: str) -> Process:
        """Start a process that needs no torch: it is sooner there without the nursery."""
        return self._process(name, module, _afresh)

    def _process(
        self,
        name: str,
        module: str,
        how: Callable[[Start], Handle],
        *arguments: str,
        log: str = "",
    ) -> Process:
        self._logs[name] = log or name
        stem = self._folder.resolve() / "logs" / self._logs[name]
        life = self._lives.next(name)
        settings = {**self._environment, LIFE: str(life)}
        start = Start(module, (str(self._assignment), *arguments), str(stem), settings)
        return Process(name, how(start), Path(start.error), self._host, life)

    def close(self) -> None:
        """End the nursery, and all that it forked."""
        if self._nursery is not None:
            self._nursery.close()

    def words(self, cause: Exit, when: str = "") -> str:
        """A failure of one of them, in words, its traceback or its last lines at the end."""
        if self._nursery is not None and cause.name == NURSERY:
            with contextlib.suppress(OSError):
                (self._folder / "logs" / f"{NURSERY}.err").write_text(self._nursery.words())
        log = self._folder / "logs" / f"{self._logs.get(cause.name, cause.name)}.err"
        here = cause.host == self._host
        kind, _, message = (cause.report.message if cause.report else "").partition(": ")
        if kind == "OSError" and message.startswith(_NO_SPACE):
            return (
                f"{cause}: no space left on the disk of {self._folder}; free some, or use --output"
            )
        if kind in ("Diverged", "Poisoned"):
            return f"diverged: {message}"
        where = f"Its log: {log}" if here else f"Its log is on {cause.host}"
        words = f"{cause}{when}. {where}"
        last = cause.report.traceback if cause.report else _tail(log) if here else ""
        return f"{words}\n\n{last.rstrip()}" if last.strip() else words


def _afresh(start: Start) -> Handle:
    # It loads torch, which an agent that has a nursery may do without.
    from manyhands.live.processes.elastic_process import ElasticProcess  # noqa: PLC0415

    return ElasticProcess(start)


def _tail(log: Path, lines: int = 20) -> str:
    """The end of a log: where a process leaves no report, its last words may be there."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user may enter, for sockets and the assignment.

    Its name is short, because the path of a socket may have 107 characters at most.
    """
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
