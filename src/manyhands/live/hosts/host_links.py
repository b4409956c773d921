"""Links of hosts that are network namespaces: cutting them off, and restoring them.

The network is made by `manyhands.lab.networks`, which describes it to the agent of the first host
in an environment variable. Each direction of a link is a queue at the sending end: a queue that
drops every packet (`tc … blackhole`) cuts this direction, without a notice to either side.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.faults import Way

VARIABLE = "MANYHANDS_HOST_LINKS"
"""The environment variable with the links, as JSON."""


class HostLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The link of one host to the others, with the commands that enter its two ends."""

    host: str
    inner: tuple[str, ...]
    """Command that executes another one in the host's namespace."""
    outer: tuple[str, ...]
    """The same for the namespace at the other end of the link."""
    device: str
    """The network interface in the host's namespace."""
    port: str
    """The network interface at the other end."""
    shape: str
    """Options of `tc qdisc replace` that give the link its bandwidth."""

    def cut(self, way: Way) -> None:
        """Drop what the host sends (outgoing), what it receives (incoming), or both."""
        if way != "incoming":
            _queue(self.inner, self.device, "root blackhole")
        if way != "outgoing":
            _queue(self.outer, self.port, "root blackhole")

    def restore(self) -> None:
        """Forward packets in both directions again."""
        _queue(self.inner, self.device, self.shape)
        _queue(self.outer, self.port, self.shape)


def _queue(enter: tuple[str, ...], device: str, kind: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    command = [*enter, "tc", "qdisc", "replace", "dev", device, *kind.split()]
    done = subprocess.run(  # noqa: S603 - our own commands
        command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def write_links(links: list[HostLink]) -> str:
    """The value of the environment variable."""
    return msgspec.json.encode(links).decode()


def read_links(environment: Mapping[str, str] = os.environ) -> dict[str, HostLink]:
    """The links by host; none if the network was not made for this run."""
    text = environment.get(VARIABLE)
    links = msgspec.json.decode(text, type=list[HostLink]) if text else []
    return {link.host: link for link in links}
