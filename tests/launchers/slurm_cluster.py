"""A real Slurm with two nodes, n1 and n2, on this machine, for tests.

Daemons run in the foreground as children of this process, with a key, sockets, ports and folders of
their own, and are ended by their ids. Nothing of a Slurm that the machine may have is touched.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from support import wait_for

_DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
KillWait=10
MessageTimeout=60
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmUser=root
SlurmdUser=root
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def obstacle() -> str:
    """Why no cluster can be started here; empty if one can."""
    missing = [daemon for daemon in _DAEMONS if shutil.which(daemon, path=_PATH) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "the daemons of Slurm need root"


@dataclass
class SlurmCluster:
    """The cluster, with the commands of Slurm."""

    folder: Path
    daemons: set[int] = field(default_factory=set)
    """Ids of the processes of Slurm itself."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands that use this cluster, and of no other job of Slurm."""
        own = {name: one for name, one in os.environ.items() if not name.startswith("SLURM")}
        return {**own, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str | Path, cwd: Path | None = None, seconds: float = 60) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def fields(self, job: str) -> dict[str, str]:
        """What Slurm says of a job: its JobState, Restarts, ExitCode."""
        return dict(re.findall(r"(\w+)=(\S+)", self.run("scontrol", "-o", "show", "job", job)))

    def state(self, job: str, field: str = "JobState") -> str:
        """One of the fields of a job, asked not too often: for waiting."""
        time.sleep(0.5)
        return self.fields(job)[field]

    def finish(self, job: str, output: Path, seconds: float) -> dict[str, str]:
        """Wait until a job has completed, with all of its restarts."""
        going = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"}
        wait_for(lambda: self.state(job) not in going, seconds, f"end of job {job}")
        said = self.fields(job)
        words = output.read_text(errors="replace") if output.exists() else "no output"
        assert said["JobState"] == "COMPLETED", f"{said}\n{words}"
        return said

    def cancel_all(self) -> None:
        """End all jobs, and wait until their processes are gone."""
        self.run("scancel", "--partition=lab")
        wait_for(lambda: not self.run("squeue", "--noheader").strip(), 60, "end of all jobs")


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start the cluster in an empty folder; all of its processes are ended with the context."""
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    cluster = SlurmCluster(folder)
    text = _CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=_free_ports(3))
    (folder / "slurm.conf").write_text(text)
    with contextlib.ExitStack() as stack:
        munged = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        start = _Starter(cluster, stack)
        start("munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *munged)
        wait_for((folder / "munge.sock").exists, 20, "munged")
        start("slurmctld", "-D")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-N", node)
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        wait_for(lambda: _answer(cluster, idle) == "2", 60, f"two idle nodes; see {folder}")
        try:
            yield cluster
        finally:
            cluster.cancel_all()


class _Starter:
    """Starts daemons, each of which is ended with the context, after those that it started."""

    def __init__(self, cluster: SlurmCluster, stack: contextlib.ExitStack) -> None:
        self._cluster = cluster
        self._stack = stack

    def __call__(self, daemon: str, *options: str) -> None:
        program = shutil.which(daemon, path=_PATH)
        assert program is not None, obstacle()
        log = self._cluster.folder / f"{daemon}{options[-1] if daemon == 'slurmd' else ''}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [program, *options],
                env=self._cluster.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._cluster.daemons.add(process.pid)
        self._stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if process.poll() is None:
        process.kill()
    process.wait()


def _answer(cluster: SlurmCluster, command: tuple[str, ...]) -> str:
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip()


def _free_ports(count: int) -> list[int]:
    """Ports that are free, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


def processes_of_jobs(cluster: SlurmCluster) -> list[int]:
    """The ids of processes that have the cluster's configuration in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == cluster.environment["SLURM_CONF"]:
                found.append(process.pid)
    return [pid for pid in found if pid not in cluster.daemons]


def wait_until_quiet(cluster: SlurmCluster) -> None:
    """Fail if processes of jobs are left."""
    wait_for(lambda: not processes_of_jobs(cluster), 30, "the end of all processes of jobs")
