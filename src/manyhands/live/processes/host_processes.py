"""The processes of an agent on its host: starts them, and describes their failures."""

from __future__ import annotations

import contextlib
import errno
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import Diverged, ProcessKilled, RunFailed
from manyhands.leasing.membership import Patience
from manyhands.live.processes.fork_server import ForkFailed, ForkServer, NoReport
from manyhands.live.processes.incarnation import INCARNATION, Incarnations
from manyhands.live.processes.supervision import Exit, Handle, Process, Start, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FORK_SERVER = "fork-server"
_POLL = 0.1
_NO_SPACE = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]")
_DIVERGED = "diverged: "
_RENEWALS = 10
"""How many times a killed fork server is replaced in one run."""
_SILENCE = 5.0
"""Seconds without an answer of the fork server after which it is named."""
_REPEAT = 20.0
"""Seconds until it is named again."""
_FORKING = 20.0
"""Seconds in which it must have forked a process."""
_LOADING = 120.0
"""Seconds in which it must have loaded all modules, or longer if the patience is longer."""


class HostProcesses:
    """Starts the processes of one run on one host.

    Args:
        host: the name of this host in the run.
        assignment: the file with their assignment.
        folder: the run's folder on this host; logs are written there.
        environment: variables in addition to the agent's environment.
        loaded: forks the processes that need torch; None starts them in new interpreters.
        admission: how many agents this run has admitted before.
        patience: seconds without an answer after which the fork server is replaced; None for the
            default.
    """

    def __init__(
        self,
        host: str,
        assignment: Path,
        folder: Path,
        environment: Mapping[str, str],
        loaded: ForkServer | None,
        admission: int = 0,
        patience: float | None = None,
    ) -> None:
        self._host = host
        self._assignment = assignment
        self._folder = folder
        self._environment = dict(environment)
        self._fork_server = self._lent = loaded
        self._renewals = 0
        self._patience = Patience.silence if patience is None else patience
        self._named = float("-inf")
        """When the fork server was named last because it did not answer."""
        self._incarnations = Incarnations(admission)
        self._logs: dict[str, str] = {}
        """The stem of the log files of each process's current incarnation."""
        self.fork_server: Process | None = None
        """The process of the fork server, once `await_fork_server` was called."""

    def await_fork_server(self, meanwhile: Callable[[], None]) -> str:
        """Wait until the fork server is ready; return why it must not fork, or an empty string."""
        if self._fork_server is None:
            return ""
        self.fork_server = self._watched(self._fork_server)
        while not self._fork_server.is_ready(_POLL):
            meanwhile()
            gone = self.fork_server.poll()
            if gone is not None and not self.replace_fork_server(gone):
                raise RunFailed(self.words(gone))
        unfit = self._fork_server.unfit
        if unfit:
            self._fork_server.close()
            self._fork_server = self.fork_server = None
        return unfit

    def replace_fork_server(self, gone: Exit) -> bool:
        """Replace a fork server that was killed; return whether there is one now.

        Only processes that are still to be forked depend on the fork server. While the new one
        loads, processes are started in new interpreters.
        """
        if self._fork_server is None or not gone.killed or self._renewals >= _RENEWALS:
            return False
        self._renewals += 1
        # What it has forked goes on: those processes are children of the agent. What it was forking
        # has no handle yet, and is ended with it.
        self._fork_server.retire()
        self._fork_server = ForkServer(self._environment)
        self.fork_server = self._watched(self._fork_server)
        return True

    def watch_fork_server(self, say: Callable[[str], object]) -> None:
        """Name a fork server that does not answer, and end it when the patience is over.

        Args:
            say: shows a message to the user.
        """
        process, loaded = self.fork_server, self._fork_server
        if process is None or loaded is None or process.poll() is not None:
            return
        silent, is_ready = loaded.silence()
        if silent > (self._patience if is_ready else max(self._patience, _LOADING)):
            process.eject(f"ejected, because it did not answer for {silent:.0f} s")
        elif silent > (_SILENCE if is_ready else _REPEAT):
            now = time.monotonic()
            if now - self._named >= _REPEAT:
                self._named = now
                say(
                    f"fork server on {self._host} (pid {process.pid}) has not answered for "
                    f"{silent:.0f} s: it is stopped, or hangs"
                )
        else:
            self._named = float("-inf")

    def _watched(self, loaded: ForkServer) -> Process:
        error = self._folder / "logs" / f"{FORK_SERVER}.error.json"
        # It serves until it is killed, so its exit with code 0 is a loss as well.
        return Process(FORK_SERVER, loaded, error, self._host, finishes=True)

    def fork(self, name: str, module: str, number: str, log: str = "") -> Process:
        """Start a process that needs torch."""
        if (
            self._fork_server is None
            or not self._fork_server.is_ready(0.0)
            or self._fork_server.unfit
        ):
            return self._process(name, module, _afresh, number, log=log)
        silent, is_loaded = self._fork_server.silence()
        if is_loaded and silent > _SILENCE:
            # It is stopped, perhaps: it is not waited for, and replaced when the patience is over.
            return self._process(name, module, _afresh, number, log=log)
        try:
            # It may still load what the strategy needs, and other programs may keep it from that.
            within = max(_FORKING if is_loaded else _LOADING, self._patience)
            fork = partial(self._fork_server.fork, within=within)
            return self._process(name, module, fork, number, log=log)
        except ForkFailed as error:
            if isinstance(error, NoReport) and self.fork_server is not None:
                self.fork_server.eject(f"ejected: {error}")
            # Its end may be seen a moment after its link is closed; only then is it known whether
            # it was killed.
            gone = self.fork_server.wait(1.0) if self.fork_server else None
            if gone is not None and self.replace_fork_server(gone):
                return self._process(name, module, _afresh, number, log=log)
            words = f"{name.replace('-', ' ')} could not be started: {gone or error}"
            raise RunFailed(words) from error

    def start(self, name: str, module: str, log: str = "") -> Process:
        """Start a process that does not need torch: a new interpreter starts faster."""
        return self._process(name, module, _afresh, log=log)

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
        # The folder of the run may have been deleted since it began.
        Path(stem).parent.mkdir(parents=True, exist_ok=True)
        # Counted also if the start fails: a number must never be given to two processes.
        incarnation = self._incarnations.next(name)
        settings = {**self._environment, INCARNATION: str(incarnation)}
        start = Start(module, (str(self._assignment), *arguments), str(stem), settings)
        error = Path(start.error)
        finishes = name.startswith(("worker-", "server-"))
        return Process(name, how(start), error, self._host, incarnation, finishes=finishes)

    def end(self, processes: Iterable[Process], grace: float) -> None:
        """End processes and release their files; the fork server that was given goes on.

        A later attempt of the run uses it again.
        """
        lent = self._lent is not None and self._fork_server is self._lent
        mine = [one for one in processes if not (lent and one is self.fork_server)]
        end(mine, grace)
        for process in mine:
            process.close()

    def close(self) -> None:
        """End the fork server and all processes that it forked."""
        if self._fork_server is not None:
            self._fork_server.close()

    def failure(self, cause: Exit, remedy: str) -> RunFailed:
        """The failure of the run that a process caused; `remedy` is for one that was killed."""
        killed = cause.killed if cause.report is None else cause.report.consequence
        words = self.words(cause, remedy if killed else "")
        if words.startswith(_DIVERGED):
            return Diverged(words)
        return (ProcessKilled if killed else RunFailed)(words)

    def words(self, cause: Exit, when: str = "") -> str:
        """Describe the failure of a process, with its traceback or last log lines at the end."""
        if self._fork_server is not None and cause.name == FORK_SERVER:
            with contextlib.suppress(OSError):
                (self._folder / "logs" / f"{FORK_SERVER}.err").write_text(
                    self._fork_server.output()
                )
        log = self._folder / "logs" / f"{self._logs.get(cause.name, cause.name)}.err"
        here = cause.host == self._host
        kind, _, message = (cause.report.message if cause.report else "").partition(": ")
        if kind == "OSError" and message.startswith(_NO_SPACE):
            return (
                f"{cause}: no space left on the disk of {self._folder}; free some space, or choose "
                "--output"
            )
        if kind in ("Diverged", "Poisoned"):
            return f"{_DIVERGED}{message}"
        if kind in ("ReplicasDiffer", "RunFailed"):
            return message
        where = f"See its log: {log}" if here else f"See its log on {cause.host}"
        words = f"{cause}{when}. {where}"
        last = cause.report.traceback if cause.report else _tail(log) if here else ""
        return f"{words}\n\n{last.rstrip()}" if last.strip() else words


def _afresh(start: Start) -> Handle:
    # This loads torch, which an agent with a fork server does not need.
    from manyhands.live.processes.elastic_process import ElasticProcess  # noqa: PLC0415

    return ElasticProcess(start)


def _tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for a process that left no error report."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
