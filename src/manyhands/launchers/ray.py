"""Runs on the nodes of a Ray cluster.

The driver is the first host of the run: it has the coordinator and the servers, and no workers. On
every node an actor, which holds the processors of that node's workers, starts `manyhands join`. Ray
carries the script and the run's key to the nodes; everything else is as on hosts without Ray. Torch
is imported while the nodes start.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.failure import Refused, RunFailed, refusing
from manyhands.launchers.private_key import written_key
from manyhands.launchers.ray_node import NodeAgent
from manyhands.live.agent.join import CANNOT
from manyhands.live.hosts.host_list import Hosts
from manyhands.transport.interfaces import read_place, write_place
from manyhands.transport.listeners import listen
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DRIVER = "driver"
"""The name of the first host."""
_READY_WITHIN = 600.0
"""Seconds in which Ray must have found a place for all workers."""
_CONNECTED_WITHIN = 10.0
_POLL = 1.0
_PARTING = 15.0
"""Seconds in which the nodes must have left when the run is over."""


@dataclass(frozen=True)
class RayHosts:
    """The hosts of a run on a Ray cluster."""

    hosts: str
    """The driver and the nodes with their workers, as `--hosts` takes them."""
    listen: str
    """Address and port at which the driver listens."""
    key: Path
    """The file with the run's key."""


@contextlib.contextmanager
def on_ray(workers: int | None = None, script: Path | str | None = None) -> Iterator[RayHosts]:
    """Context in which `mh.train` trains on the nodes of a Ray cluster.

    It uses the cluster that the process is connected to, or the one of `RAY_ADDRESS`, or the one
    that runs on this machine.

    Args:
        workers: number of workers, spread evenly over the nodes; default: one for every GPU, or
            for every CPU if no node has a GPU.
        script: the script with the job; default: the one that is executed.

    Raises:
        Refused: there is no such cluster, or it is too small.
        RunFailed: a node could not join.

    Example::

        if __name__ == "__main__":
            with on_ray(workers=8):
                print(mh.train(job, "allreduce()").summary())
    """
    with refusing():
        ray, path = _ray(), _script(script)
    with _connected(ray), contextlib.ExitStack() as stack:
        with refusing():
            sizes, on_gpus = divide(_capacities(ray), workers)
        names = [DRIVER, *(f"node-{number}" for number in range(len(sizes)))]
        hosts = Hosts(tuple(zip(names, (0, *sizes), strict=True)))
        key = JobKey.new()
        there = RayHosts(str(hosts), _free_place(ray), stack.enter_context(written_key(key.text)))
        watch = stack.enter_context(_joined(ray, hosts, there, key.text, path, on_gpus=on_gpus))
        from manyhands.verbs.command import current, under  # noqa: PLC0415 - see above

        command = replace(current(), hosts=there.hosts, listen=there.listen, key_file=there.key)
        try:
            with under(replace(command, workers=None)):
                yield there
        except BaseException:
            if watch.words:
                raise RunFailed(watch.words) from None
            raise


def divide(capacities: Sequence[tuple[int, int]], workers: int | None) -> tuple[list[int], bool]:
    """Divide workers among nodes, given the CPUs and GPUs of each.

    >>> divide([(8, 0), (8, 0)], 3)
    ([2, 1], False)

    Returns:
        The workers of each node that has any, and whether they use GPUs.

    Raises:
        ValueError: the nodes are too small.
    """
    on_gpus = any(gpus for _, gpus in capacities)
    free = [gpus if on_gpus else cpus for cpus, gpus in capacities]
    what = "GPUs" if on_gpus else "CPUs"
    if sum(free) < (workers or 1):
        raise ValueError(
            f"the Ray cluster has {sum(free)} {what} on {len(free)} nodes, and {workers or 1} "
            "workers need one each: choose fewer with --workers"
        )
    if workers is None:
        return [count for count in free if count], on_gpus
    counts = [0] * len(free)
    while sum(counts) < workers:
        for number, count in enumerate(counts):
            if count < free[number] and sum(counts) < workers:
                counts[number] += 1
    return [count for count in counts if count], on_gpus


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise ValueError("Ray is not installed: pip install 'manyhands[ray]'") from None
    return ray


def _script(given: Path | str | None) -> Path:
    found = given or getattr(sys.modules.get("__main__"), "__file__", None)
    if found is None or not Path(found).is_file():
        raise ValueError(
            f"there is no script {found or ''} for the nodes to execute: write the job into a file "
            "and give its path as script"
        )
    return Path(found).resolve()


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Connect to a running cluster, unless the process is connected."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        _check_address(address)
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except OSError as error:
        raise Refused(
            f"there is no Ray cluster at {address} ({str(error).splitlines()[0]}): start one with "
            "`ray start --head`, or set RAY_ADDRESS"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise OSError if nothing listens at the address: Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise Refused(
            f"{address} is reached through a proxy, and the nodes could not reach this process: "
            "run it on the cluster, with `ray job submit`"
        )
    with contextlib.suppress(ValueError):
        socket.create_connection(read_place(address), _CONNECTED_WITHIN).close()


def _capacities(ray: Any) -> list[tuple[int, int]]:
    """CPUs and GPUs of every node that is alive."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in found]


def _free_place(ray: Any) -> str:
    """The driver's address, as the nodes reach it, with a free port."""
    address = str(ray.util.get_node_ip_address())
    with listen(address) as listener:
        return write_place(address, listener.getsockname()[1])


class _Watch:
    """Notices nodes that cannot join, for which the run would wait forever."""

    def __init__(self, ray: Any, running: dict[Any, str]) -> None:
        self._ray = ray
        self._running = running
        self._over = threading.Event()
        self.words = ""
        """Why the run cannot begin; empty if it can."""
        self._thread = threading.Thread(target=self._look, name="ray nodes", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._running and not self._over.is_set():
            ready, _ = self._ray.wait([*self._running], timeout=_POLL)
            for one in ready:
                words = self._failure(one, self._running.pop(one))
                if words and not self.words and not self._over.is_set():
                    self.words = words
                    _thread.interrupt_main()

    def _failure(self, one: Any, name: str) -> str:
        """Why a node could not join; empty if it has joined."""
        try:
            code, output = self._ray.get(one)
        except self._ray.exceptions.RayError as error:
            return f"{name} is lost to Ray: {error}"
        # What happens after the workers have started is seen by the coordinator.
        outside = "joined" not in output or CANNOT in output
        return f"{name} could not join: {output}" if code and outside else ""

    def end(self) -> None:
        """Stop watching, and give the nodes some seconds to leave."""
        self._over.set()
        self._thread.join()
        if self._running:
            self._ray.wait([*self._running], num_returns=len(self._running), timeout=_PARTING)


@contextlib.contextmanager
def _joined(
    ray: Any, hosts: Hosts, there: RayHosts, key: str, script: Path, *, on_gpus: bool
) -> Iterator[_Watch]:
    """Actors on the nodes, one on each, which join the run and are ended with the context."""
    bundles = [
        {"CPU": count, **({"GPU": count} if on_gpus else {})} for _, count in hosts.counts[1:]
    ]
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    actors: list[Any] = []
    try:
        if not group.wait(_READY_WITHIN):
            raise RunFailed(
                f"Ray found no place for {there.hosts} within {_READY_WITHIN:.0f} s; available: "
                f"{ray.available_resources()}"
            )
        running = {}
        for number, (name, count) in enumerate(hosts.counts[1:]):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            )
            actor = ray.remote(NodeAgent).options(
                num_cpus=count, num_gpus=count if on_gpus else 0, scheduling_strategy=strategy
            )
            actors.append(actor.remote(str(script), script.read_bytes(), str(Path.cwd())))
            threads = os.environ.get("OMP_NUM_THREADS")
            running[actors[-1].join.remote(there.listen, key, name, count, threads)] = name
        watch = _Watch(ray, running)
        try:
            yield watch
        finally:
            watch.end()
    finally:
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)
