"""A network on one machine: hosts are network namespaces behind links of limited bandwidth.

    (w0) ──tbf── ┐
    (w1) ──tbf── ├─ bridge, in its own namespace
    (w2) ──tbf── ┘

Sockets, TCP and bandwidth are real; only the wire is a queue in the kernel (a token bucket, in both
directions of every link). With a latency, a relay replaces the bridge and forwards every frame
later. The machine's own interfaces are not touched. The namespaces are anonymous: each exists as
long as the process that holds it, which ends with this process, even after `kill -9`. So nothing is
left behind, as a name in a folder would be (`docs/decisions/0023-a-network-on-one-machine.md`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from manyhands.lab.networks import relay
from manyhands.live.hosts.host_links import HostLink
from manyhands.units import bandwidth, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOLS = ("unshare", "nsenter", "ip", "tc")
_APART = "servers apart"
_QUEUE = 0.1
"""Seconds that a packet may wait at a link before it is dropped."""
_BURST = 0.001
"""Seconds in which a link sends its burst: what the kernel's timers may be late by."""
_SMALLEST_BURST = 16384
"""Smallest burst in bytes. The kernel passes as many to a link at a time, if it is told so; by
default four times as many, by which messages of some hundred kilobytes would be too fast."""
MOST = 250
"""The most hosts, limited by the address range."""


class NotPermitted(ValueError):  # noqa: N818 - it names what happened
    """This machine does not allow network namespaces."""


@dataclass(frozen=True)
class NetworkShape:
    """The network between workers: `100mbit`, `100mbit, 20ms` or `100mbit, servers apart`."""

    rate: float
    """Bytes per second of each worker's link, in each direction."""
    apart: bool = False
    """Whether coordinator and servers have their own link, instead of sharing those of workers."""
    latency: float = 0.0
    """Added seconds that a packet takes from one worker to another."""

    @classmethod
    def read(cls, text: str) -> NetworkShape:
        """Parse a network from text.

        Raises:
            ValueError: the text does not describe a network.
        """
        rate, *rest = (part.strip() for part in text.split(","))
        times = [part for part in rest if part != _APART]
        try:
            (latency,) = map(seconds, times) if times else (0.0,)
        except ValueError:
            raise ValueError(
                f"a network must be of the form '100mbit', '100mbit, 20ms' or '100mbit, {_APART}', "
                f"got {text!r}"
            ) from None
        return cls(bandwidth(rate), apart=_APART in rest, latency=latency)

    @property
    def words(self) -> str:
        """Description of the network and the placement of processes, for the results."""
        where = "coordinator beside worker 0, servers beside the workers in turn from worker 0 on"
        if self.apart:
            where = "coordinator and servers in a namespace of their own"
        later = f", {self.latency * 1e3:g} ms from one to another" if self.latency else ""
        return (
            f"{self.rate * 8 / 1e6:g} Mbit/s to and from every worker{later}, each in a network "
            f"namespace of its own; {where}"
        )


@dataclass(frozen=True)
class NamespaceHost:
    """A host of the network."""

    holder: int
    """Id of the process that keeps the namespace alive."""
    address: str
    user: tuple[str, ...] = ()
    """Options of nsenter to become root in the user namespace."""
    port: str = ""
    """The bridge's end of the link to this host; empty for the bridge itself."""
    bridge: NamespaceHost | None = None
    """The namespace of that end."""
    shape: str = ""
    """Options of `tc qdisc` for both directions of the link."""

    def inside(self, *command: str) -> list[str]:
        """The command line that executes a command in the namespace."""
        return ["nsenter", *self.user, f"--net=/proc/{self.holder}/ns/net", "--", *command]

    def link(self, name: str) -> HostLink:
        """The link of this host, which has that name in the run, for its agent."""
        if self.bridge is None:
            raise ValueError(f"host {name} has no link")
        # An agent is in the user namespace already.
        ends = (replace(self, user=()), replace(self.bridge, user=()))
        inner, outer = (tuple(end.inside()) for end in ends)
        return HostLink(name, inner, outer, "eth0", self.port, self.shape)


@contextlib.contextmanager
def network(count: int, rate: float, latency: float = 0.0) -> Iterator[list[NamespaceHost]]:
    """A network of `count` hosts, each behind a link of `rate` bytes/s, `latency` seconds apart.

    Raises:
        NotPermitted: this machine does not allow network namespaces.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"a network on one machine has 1 to {MOST} hosts, got {count}")
    with contextlib.ExitStack() as stack:
        bridge = stack.enter_context(first_namespace())
        places = [
            stack.enter_context(namespace(f"10.77.0.{1 + number}", bridge.user))
            for number in range(count)
        ]
        links = [f"link{number}" for number in range(count)]
        places = [
            connect(bridge, link, place, rate) for link, place in zip(links, places, strict=True)
        ]
        stack.enter_context(switch(bridge, "bridge0", links, latency))
        yield places


def connect(bridge: NamespaceHost, link: str, place: NamespaceHost, rate: float) -> NamespaceHost:
    """Connect a namespace to the bridge's by a link of `rate` bytes/s in both directions.

    Returns:
        The host with its link.
    """
    shape = shaped(rate)
    pieces = f"gso_max_size {_SMALLEST_BURST}"
    execute(
        bridge,
        f"ip link add {link} {pieces} type veth peer name eth0 netns {place.holder}",
        f"ip link set {link} up",
        f"tc qdisc add dev {link} {shape}",
    )
    execute(
        place,
        "ip link set lo up",
        f"ip address add {place.address}/24 dev eth0",
        f"ip link set eth0 {pieces} up",
        f"tc qdisc add dev eth0 {shape}",
    )
    return replace(place, port=link, bridge=bridge, shape=shape)


@contextlib.contextmanager
def switch(bridge: NamespaceHost, name: str, links: list[str], latency: float) -> Iterator[None]:
    """Forward frames between links of the bridge's namespace, each `latency` seconds later."""
    if latency:
        command = bridge.inside(sys.executable, "-I", relay.__file__, str(latency), *links)
        with held(*command):
            yield
        return
    execute(bridge, f"ip link add {name} type bridge", f"ip link set {name} up")
    execute(bridge, *(f"ip link set {link} master {name}" for link in links))
    yield


@functools.cache
def check_permitted() -> None:
    """Raise NotPermitted, with an alternative, if this machine does not allow namespaces."""
    with network(1, _SMALLEST_BURST):
        pass


def shaped(rate: float, queue: float = _QUEUE) -> str:
    """The options of `tc qdisc add` for a link of `rate` bytes/s with a queue of so many seconds.

    The queue is how long a packet may wait at the link before it is dropped.
    """
    burst = max(_SMALLEST_BURST, round(rate * _BURST))
    return f"root tbf rate {round(rate * 8)}bit burst {burst} latency {round(queue * 1e3)}ms"


@contextlib.contextmanager
def first_namespace() -> Iterator[NamespaceHost]:
    """The bridge's namespace; without root, it is created in a new user namespace."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        raise NotPermitted(_refusal(f"the tool {missing[0]} is not installed"))
    if os.geteuid() == 0:
        with namespace("", ()) as place:
            yield place
        return
    with held("unshare", "--user", "--map-root-user", "--net", "cat") as holder:
        yield NamespaceHost(
            holder, "", (f"--user=/proc/{holder}/ns/user", "--preserve-credentials")
        )


@contextlib.contextmanager
def namespace(address: str, user: tuple[str, ...]) -> Iterator[NamespaceHost]:
    """A new network namespace, which exists within the context."""
    enter = ("nsenter", *user, "--") if user else ()
    with held(*enter, "unshare", "--net", "cat") as holder:
        yield NamespaceHost(holder, address, user)


@contextlib.contextmanager
def held(*command: str) -> Iterator[int]:
    """A process that ends when its standard input is closed; yields its id."""
    with subprocess.Popen(  # noqa: S603 - our own commands
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": _path()},
        start_new_session=True,
    ) as holder:
        assert holder.stdin  # noqa: S101 - opened as a pipe, here and below
        assert holder.stdout  # noqa: S101
        assert holder.stderr  # noqa: S101
        try:
            # The process echoes one byte from inside the namespace, once that exists.
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.write(b".")
                holder.stdin.flush()
            if holder.stdout.read(1) != b".":
                raise NotPermitted(_refusal(holder.stderr.read().decode(errors="replace").strip()))
            yield holder.pid
        finally:
            holder.kill()


def execute(place: NamespaceHost, *commands: str) -> None:
    """Execute commands in a namespace, one after the other; raises NotPermitted if one fails."""
    for command in commands:
        done = subprocess.run(  # noqa: S603 - our own commands
            place.inside(*command.split()),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": _path()},
        )
        if done.returncode:
            raise NotPermitted(_refusal(f"{command}: {done.stderr.strip()}"))


def _path() -> str:
    """Search path for the tools: not every user's PATH has the sbin folders."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _refusal(why: str) -> str:
    return (
        f"network namespaces cannot be used here ({why}): they need root, or a kernel that allows "
        "unprivileged user namespaces. Alternatively, use a virtual cluster: `manyhands compare … "
        "--virtual --bandwidth 100mbit`"
    )
