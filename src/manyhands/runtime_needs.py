"""The requirements of a strategy on its runtime, live or virtual, and the options it supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

Option: TypeAlias = Literal[
    "compile", "ema", "sync_batchnorm", "float16", "sparse_gradients", "plateau"
]
"""What a job or its model may ask for and not every strategy supports."""


@dataclass(frozen=True)
class RuntimeNeeds:
    """What a strategy needs of its runtime with a given number of workers.

    `strategy.needs(workers)` returns it. The code that starts processes, reserves shared memory or
    leases samples reads this value, for strategies of both kinds.

    >>> RuntimeNeeds(servers=2, shards=2).server_processes
    2
    """

    collectives: bool = False
    """Workers step together in a process group. Otherwise they lease samples and exchange
    messages with servers. (On a virtual clock all workers lease samples.)"""
    only_one_worker: bool = False
    """The strategy runs with one worker only."""
    servers: int = 0
    """Servers that workers exchange messages with."""
    peer_servers: bool = False
    """Every worker's process holds a server with a whole replica, which ends with the worker.
    Otherwise servers are processes of their own, which are restarted from their journals."""
    peers_return: bool = False
    """With peer servers: a worker that is restarted gets its replica from another worker."""
    shards: int = 1
    """Parts into which the parameters are divided."""
    shared_memory: bool = False
    """The parameters are in memory that all processes of one host use: servers write there what
    workers read, and without servers the workers write themselves."""
    local_optimizer: bool = False
    """Workers step with optimizers of their own."""
    own_parameters: bool = False
    """A worker's parameters differ from the shared ones."""
    ensemble: bool = False
    """The replicas stay apart, and their outputs are averaged."""
    lockstep: bool = False
    """Workers wait for each other, so each gets a part of every global batch, even an empty one."""
    by_rank: bool = False
    """A worker gets its own part of every global batch, and not the next part."""
    by_speed: bool = False
    """These parts are in proportion to measured speeds, and not equal."""
    rounds: tuple[int, int] | None = None
    """If workers synchronise every few steps: these steps, and the first steps of the run that are
    a round each. A round ends with an epoch; evaluations and checkpoints follow the end of one."""
    evaluators: int | None = None
    """The largest number of workers that evaluate; None for all."""
    early: tuple[int, float] | None = None
    """The workers that begin, and the epochs after which the others join; None if all begin."""
    clips: Literal["workers", "servers"] = "workers"
    """The processes that hold the gradient of an optimizer step, and so can clip its norm."""
    calling_alike: int = 0
    """Parts of a batch whose workers must all call the model equally often, because a call is a
    collective; 0 if no call is."""
    alternates: bool = False
    """A batch may give several steps, one for each objective of a job."""
    preloads: tuple[str, ...] = ()
    """Modules of torch that its workers import beside those of every worker; a host loads them once
    for all of its workers."""
    one_replica: bool = False
    """On a virtual clock, one worker computes the numbers of all, with the whole global batch."""

    @property
    def leases(self) -> bool:
        """Whether the coordinator leases samples to workers."""
        return not self.collectives

    @property
    def server_processes(self) -> int:
        """Servers that are processes of their own."""
        return 0 if self.peer_servers else self.servers

    @property
    def takes_back(self) -> bool:
        """Whether a worker that was lost can be restarted and rejoin the run."""
        return self.leases and (not self.peer_servers or self.peers_return)

    def evaluating(self, workers: int) -> int:
        """How many of `workers` present workers evaluate, each a part of the data."""
        return workers if self.evaluators is None else min(workers, self.evaluators)


class OptionSupport:
    """Which options of a job a strategy supports: all but those that it names.

    A job is never trained without what it asks for: what a strategy does not support, or what would
    mean something else under it, is refused before a process starts
    (`docs/decisions/0063-optimization.md`).
    """

    obstacles: ClassVar[dict[str, str]] = {}
    """By option, why the strategy does not support it, and what to do instead."""

    @property
    def has_journals(self) -> bool:
        """Whether it has servers that are processes of their own, which keep journals."""
        needs = getattr(self, "needs", None)
        return needs is not None and needs(2).server_processes > 0

    def obstacle(self, option: Option) -> str:
        """Why this strategy does not support an option; empty if it does."""
        return self.obstacles.get(option, "")

    def check_option(self, option: Option, asked: str) -> None:
        """Raise ValueError, naming the fix, if this strategy does not support an option.

        Args:
            option: the option.
            asked: what asks for it, as in `Job(compile=True)`.
        """
        why = self.obstacle(option)
        if why:
            raise ValueError(f"{asked} does not work under {self}: {why}")

    def check_options(self, job: Any) -> None:
        """Raise ValueError, naming the fix, if this strategy does not support an option of a job.

        Args:
            job: the job; untyped, because strategies are described without torch.
        """
        if job.compile:
            self.check_option("compile", "Job(compile=True)")
        if job.sync_batchnorm:
            self.check_option("sync_batchnorm", "Job(sync_batchnorm=True)")
        if job.autocast == "float16":
            self.check_option("float16", 'Job(autocast="float16")')
        if job.ema is not None:
            self.check_option("ema", f"Job(ema={job.ema})")
        if job.durability != "process" and not self.has_journals:
            raise ValueError(
                f'durability="{job.durability}" is what updates on parameter servers survive, and '
                f"{self} has no servers with a journal: leave it out, and give "
                "checkpoint=mh.every(…)"
            )


class ProtocolOptions(OptionSupport):
    """The options that strategies with servers or peers support."""

    obstacles: ClassVar[dict[str, str]] = {
        "sync_batchnorm": "its workers do not compute at the same time, and cannot share the "
        "statistics of a batch: use allreduce(), or GroupNorm or LayerNorm in the model",
        "float16": "a gradient is sent while it is computed, before it is known whether it "
        'overflows: use autocast="bfloat16", which needs no loss scale, or allreduce()',
        "sparse_gradients": "it exchanges dense gradients: use sparse=False, or allreduce()",
        "plateau": "it depends on all evaluations so far, which servers and restarted workers do "
        "not know: use a scheduler that depends on steps or epochs, such as CosineAnnealingLR, or "
        "allreduce()",
        "ema": "updates are applied in parts, on servers or by each worker, and no process has all "
        "parameters after every global batch: leave it out, or use allreduce()",
    }

    def obstacle(self, option: Option) -> str:
        """As in `OptionSupport`; with such a schedule, workers that step are not restarted."""
        steps = getattr(self, "local_optimizer", False)
        stays = getattr(self, "peer_servers", False) or getattr(self, "shared_memory", False)
        return "" if option == "plateau" and steps and stays else super().obstacle(option)


def check_one_host(
    strategy: object, hosts: Collection[str], devices: Collection[str], *, writes: bool
) -> None:
    """Raise ValueError, naming the fix, if processes there cannot share the parameters' memory.

    Args:
        strategy: the strategy, for the message.
        hosts: names of all hosts that run a worker or a server.
        devices: devices of the workers, as torch names them.
        writes: whether workers write the parameters themselves.
    """
    if len(set(hosts)) > 1:
        raise ValueError(
            f"{strategy} keeps the parameters in the shared memory of one host, and this run has "
            f"{len(set(hosts))} hosts: use one host, or a strategy that sends parameters, "
            "such as synchronous() or asynchronous()"
        )
    others = sorted({device for device in devices if device != "cpu"})
    if writes and others:
        raise ValueError(
            f"{strategy} needs workers that write parameters in the host's memory, which "
            f"{', '.join(others)} cannot: hide the GPUs (CUDA_VISIBLE_DEVICES=) to compute on "
            "the CPU, or use asynchronous()"
        )
