"""The place of a pod in a run: its number, its workers, and where the first pod listens.

An indexed Job gives each pod its number (`JOB_COMPLETION_INDEX`) and a host name that others can
resolve, `JOB-NUMBER.SUBDOMAIN`. The rest is in variables that `manyhands kubernetes` sets. In a
TrainJob, Kubeflow sets the variables of torchrun (`PET_…`).
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import Refused, refusing
from manyhands.launchers.private_key import written_key
from manyhands.live.agent.join import NoAnswer, join
from manyhands.live.hosts.invitation import check_key
from manyhands.transport.interfaces import write_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping

    from manyhands.live.agent.join import Application

JOB = "MANYHANDS_JOB"
SUBDOMAIN = "MANYHANDS_SUBDOMAIN"
PODS = "MANYHANDS_PODS"
WORKERS = "MANYHANDS_WORKERS_PER_POD"
PORT = "MANYHANDS_JOB_PORT"
KEY_FILE = "MANYHANDS_KEY_FILE"
KEY = "MANYHANDS_KEY"
"""The key itself, as hexadecimal digits, where no file can be mounted."""
ADDRESS = "POD_IP"
DEFAULT_PORT = 40001
"""Port at which the first pod listens: every pod has all ports to itself."""
KEY_ENTRY = "key"
"""The entry of the Secret with the run's key."""
_INDEX = "JOB_COMPLETION_INDEX"
_PATIENCE = 1800.0
"""Seconds that a pod waits for the first one, whose image may have to be pulled."""
_ATTEMPT = 20.0
"""Seconds until the first pod's name is resolved again: a replaced pod has another address."""


@dataclass(frozen=True)
class Pod:
    """One of the pods of a run.

    Example:
        >>> ours = {"MANYHANDS_JOB": "lenet", "MANYHANDS_SUBDOMAIN": "lenet", "MANYHANDS_PODS": "2"}
        >>> pod = Pod.read({"JOB_COMPLETION_INDEX": "1", **ours})
        >>> pod.hosts, pod.name, pod.first
        ('lenet-0:1, lenet-1:1', 'lenet-1', 'lenet-0.lenet:40001')
    """

    index: int
    pods: int
    job: str
    """What the host names of all pods begin with."""
    first_address: str
    """The name at which other pods find the first one."""
    workers: int = 1
    """Workers of each pod."""
    port: int = DEFAULT_PORT
    address: str | None = None
    """This pod's own address; None for that of the default route."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Pod:
        """The place that the environment variables of a pod describe.

        Raises:
            ValueError: they do not describe one.
        """
        if PODS not in variables and "PET_NNODES" in variables:
            return cls._of_trainjob(variables)
        job = _text(variables, JOB)
        subdomain = variables.get(SUBDOMAIN) or job
        return cls(
            *(_number(variables, _INDEX, 0), _number(variables, PODS), job, f"{job}-0.{subdomain}"),
            _number(variables, WORKERS, default=1),
            _number(variables, PORT, default=DEFAULT_PORT),
            variables.get(ADDRESS),
        )._checked()

    @classmethod
    def _of_trainjob(cls, variables: Mapping[str, str]) -> Pod:
        first = _text(variables, "PET_MASTER_ADDR")
        return cls(
            _number(variables, "PET_NODE_RANK", 0),
            _number(variables, "PET_NNODES"),
            first.partition(".")[0].removesuffix("-0"),
            first,
            _number(variables, "PET_NPROC_PER_NODE"),
            _number(variables, "PET_MASTER_PORT", default=DEFAULT_PORT),
            variables.get(ADDRESS),
        )._checked()

    def _checked(self) -> Pod:
        if self.index >= self.pods:
            raise ValueError(
                f"{_INDEX} is {self.index}, but the run has {self.pods} pods, numbered from 0: "
                f"completions of the Job must equal {PODS}"
            )
        return self

    @property
    def name(self) -> str:
        """This pod's name in the run."""
        return f"{self.job}-{self.index}"

    @property
    def hosts(self) -> str:
        """All pods with their workers, as `--hosts` takes them."""
        return hosts_text(self.job, self.pods, self.workers)

    @property
    def first(self) -> str:
        """Where the first pod listens."""
        return write_place(self.first_address, self.port)

    @property
    def listen(self) -> str | None:
        """Where this pod listens, if it is the first one; None for its default route."""
        return None if self.address is None else write_place(self.address, self.port)


def hosts_text(job: str, pods: int, workers: int) -> str:
    """The pods of a Job with their numbers of workers, as `--hosts` takes them."""
    return ", ".join(f"{job}-{number}:{workers}" for number in range(pods))


@contextlib.contextmanager
def key_of_pod(variables: MutableMapping[str, str] = os.environ) -> Iterator[Path]:
    """The file with the run's key; a variable with the key itself is removed.

    Raises:
        Refused: there is none.
    """
    if KEY_FILE in variables:
        path = Path(variables[KEY_FILE])
        if not path.is_file():
            raise Refused(f"{path} does not exist: the pod must mount the Secret with the key")
        with refusing():
            check_key(path)
        yield path
        return
    if KEY not in variables:
        raise Refused(
            f"neither {KEY_FILE} nor {KEY} is set: `manyhands kubernetes` writes a manifest that "
            "takes the key from a Secret"
        )
    with written_key(variables.pop(KEY)) as path:
        yield path


def join_first(
    application: Application,
    say: Callable[[str], None],
    patience: float = _PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Join the run of the first pod as soon as it is up, and return when the run is over.

    Raises:
        RunFailed: it was not up in time, the host was not admitted, or the run failed.
    """
    begun, told = clock(), False
    attempt = replace(application, answer_within=_ATTEMPT)
    while True:
        try:
            join(attempt)
        except NoAnswer:
            if clock() - begun > patience:
                raise
            if not told:
                told = True
                say(f"{application.place} is not up yet; trying for up to {patience / 60:.0f} min")
            time.sleep(1.0)
        else:
            return


def _text(variables: Mapping[str, str], name: str) -> str:
    found = variables.get(name, "")
    if not found:
        raise ValueError(
            f"the environment variable {name} is not set: --hosts kubernetes is for the pods of an "
            "indexed Job, whose manifest `manyhands kubernetes` writes"
        )
    return found


def _number(
    variables: Mapping[str, str], name: str, least: int = 1, default: int | None = None
) -> int:
    if default is not None and name not in variables:
        return default
    found = _text(variables, name)
    if not found.isdecimal() or int(found) < least:
        raise ValueError(f"{name} must be a number of at least {least}, got {found!r}")
    return int(found)
