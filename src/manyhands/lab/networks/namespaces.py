"""A network of one's own on one machine: hosts that are network namespaces, behind shaped links.

    (w0) ──tbf── ┐
    (w1) ──tbf── ├─ bridge, in a namespace of its own
    (w2) ──tbf── ┘

Sockets, TCP and bandwidth are real; only the wire is a queue in the kernel (a token bucket, in both
directions of every link). If a latency is asked for, a relay stands where the bridge would, and
passes every frame on later. Nothing touches the machine's own interfaces. The namespaces have no
names: each lives as long as the process that holds it, and that ends when this one does, however it
ends. So nothing is left behind, not even after `kill -9`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.lab.networks import relay
from manyhands.units import bandwidth, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOLS = ("unshare", "nsenter", "ip", "tc")
_APART = "servers apart"
_QUEUE = "100ms"
"""How long a packet may wait at a link before it is dropped."""
_BURST = 0.004
"""Seconds in which a link's burst would be sent: several turns of the kernel's timer."""
_SMALLEST_BURST = 65536
"""Bytes that the kernel hands to a link at once."""
_MOST = 250
"""Hosts that the addresses suffice for."""


class NotPermitted(ValueError):  # noqa: N818 - it names what happened
    """This machine does not let us have network namespaces."""


@dataclass(frozen=True)
class NetworkShape:
    """What lies between the workers: `100mbit`, `100mbit, 20ms` or `100mbit, servers apart`."""

    rate: float
    """Bytes per second of each worker's link, in each direction."""
    apart: bool = False
    """Whether coordinator and servers have a link of their own, or worker 0's."""
    latency: float = 0.0
    """Seconds that a packet takes from one worker to another, beyond what the machine needs."""

    @classmethod
    def read(cls, text: str) -> NetworkShape:
        """The network that `text` describes.

        Raises:
            ValueError: it is none such.
        """
        rate, *rest = (part.strip() for part in text.split(","))
        times = [part for part in rest if part != _APART]
        try:
            (latency,) = map(seconds, times) if times else (0.0,)
        except ValueError:
            raise ValueError(
                f"a network is written '100mbit', '100mbit, 20ms' or '100mbit, {_APART}', "
                f"not {text!r}"
            ) from None
        return cls(bandwidth(rate), apart=_APART in rest, latency=latency)

    @property
    def words(self) -> str:
        """For the results: what it is like and who is where."""
        where = "in a namespace of their own" if self.apart else "beside worker 0"
        later = f", {self.latency * 1e3:g} ms from one to another" if self.latency else ""
        return (
            f"{self.rate * 8 / 1e6:g} Mbit/s to and from every worker{later}, each in a network "
            f"namespace of its own; coordinator and servers {where}"
        )


@dataclass(frozen=True)
class NamespaceHost:
    """A host of the network."""

    holder: int
    """The process for which the namespace exists."""
    address: str
    user: tuple[str, ...] = ()
    """How to become the one who may do everything in it, and nothing outside."""

    def inside(self, *command: str) -> list[str]:
        """The command that runs a command there."""
        return ["nsenter", *self.user, f"--net=/proc/{self.holder}/ns/net", "--", *command]


@contextlib.contextmanager
def network(count: int, rate: float, latency: float = 0.0) -> Iterator[list[NamespaceHost]]:
    """So many hosts, each behind a link of `rate` bytes per second, `latency` seconds apart.

    Raises:
        NotPermitted: this machine does not allow it.
    """
    if not 1 <= count <= _MOST:
        raise ValueError(f"a network on one machine has 1 to {_MOST} hosts, not {count}")
    with contextlib.ExitStack() as stack:
        bridge = stack.enter_context(_first_namespace())
        places = [
            stack.enter_context(_namespace(f"10.77.0.{1 + number}", bridge.user))
            for number in range(count)
        ]
        links = [f"link{number}" for number in range(count)]
        for link, place in zip(links, places, strict=True):
            shape = _shape(rate)
            _do(
                bridge,
                f"ip link add {link} type veth peer name eth0 netns {place.holder}",
                f"ip link set {link} up",
                f"tc qdisc add dev {link} {shape}",
            )
            _do(
                place,
                "ip link set lo up",
                f"ip address add {place.address}/24 dev eth0",
                "ip link set eth0 up",
                f"tc qdisc add dev eth0 {shape}",
            )
        if latency:
            command = bridge.inside(sys.executable, "-I", relay.__file__, str(latency), *links)
            stack.enter_context(_held(*command))
        else:
            _do(bridge, "ip link add bridge0 type bridge", "ip link set bridge0 up")
            _do(bridge, *(f"ip link set {link} master bridge0" for link in links))
        yield places


@functools.cache
def check_permitted() -> None:
    """Raise NotPermitted, naming what to do instead, if this machine allows no namespaces."""
    with network(1, _SMALLEST_BURST):
        pass


def _shape(rate: float) -> str:
    burst = max(_SMALLEST_BURST, round(rate * _BURST))
    return f"root tbf rate {round(rate * 8)}bit burst {burst} latency {_QUEUE}"


@contextlib.contextmanager
def _first_namespace() -> Iterator[NamespaceHost]:
    """That of the bridge. Who is not root makes a namespace of users first, and is root there."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        raise NotPermitted(_refusal(f"there is no {missing[0]} on this machine"))
    if os.geteuid() == 0:
        with _namespace("", ()) as place:
            yield place
        return
    with _held("unshare", "--user", "--map-root-user", "--net", "cat") as holder:
        yield NamespaceHost(
            holder, "", (f"--user=/proc/{holder}/ns/user", "--preserve-credentials")
        )


@contextlib.contextmanager
def _namespace(address: str, user: tuple[str, ...]) -> Iterator[NamespaceHost]:
    enter = ("nsenter", *user, "--") if user else ()
    with _held(*enter, "unshare", "--net", "cat") as holder:
        yield NamespaceHost(holder, address, user)


@contextlib.contextmanager
def _held(*command: str) -> Iterator[int]:
    """A process that ends when it can read no more from this one; its id."""
    with subprocess.Popen(  # noqa: S603 - our own commands
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": _path()},
        start_new_session=True,
    ) as holder:
        assert holder.stdin  # noqa: S101 - a pipe was asked for, here and below
        assert holder.stdout  # noqa: S101
        assert holder.stderr  # noqa: S101
        try:
            # The echo comes from within: the namespace is there.
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.write(b".")
                holder.stdin.flush()
            if holder.stdout.read(1) != b".":
                raise NotPermitted(_refusal(holder.stderr.read().decode(errors="replace").strip()))
            yield holder.pid
        finally:
            holder.kill()


def _do(place: NamespaceHost, *commands: str) -> None:
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
    """Where to look for tools: administrators' folders are not on everybody's path."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _refusal(why: str) -> str:
    return (
        f"network namespaces cannot be used here ({why}): they need root, or a kernel that lets "
        "users have them. `manyhands compare … --virtual --bandwidth 100mbit` does without, on a "
        "virtual cluster"
    )
