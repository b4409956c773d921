"""Collectives in groups that Manyhands owns, sockets included.

Gloo frees its callers unreliably. After a peer's `kill -9` some survivors raise at once while
another stays blocked for its whole timeout; when the peer is merely stopped, none is freed and
`abort()` does nothing. Shutting down the group's connected sockets frees every caller within
milliseconds. So a `Group` keeps a duplicate of each socket that its backend opened: the
duplicates stay valid whatever the backend closes, tell how many bytes really went to which peer,
and are what `free` shuts down.

Gloo and NCCL authenticate nobody: a group trusts its network. On one host it is bound to the
loopback address.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from datetime import timedelta
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.engine import PrefixStore, Store, TCPStore, gloo_group, nccl_group
from manyhands.failure import PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import Work

LOOPBACK = "127.0.0.1"
_ESTABLISHED = 1
_NAME_SIZE = 64
"""Bytes in which an address and its port fit, of IPv6 too."""
_TCP_INFO_SIZE = 232
_BYTES_RECEIVED_AT = 128
_BYTES_SENT_AT = 200


def serve_store(address: str = LOOPBACK) -> tuple[Store, int]:
    """A store for this run and the port it listens on, at `address` alone.

    TCPStore listens on every interface unless it is handed a socket.
    """
    listener = socket.create_server((address, 0), backlog=1024)
    port = listener.getsockname()[1]
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def connect_store(address: str, port: int, timeout: float = 60.0) -> Store:
    """A client of the store at `address`."""
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))


class Group:
    """The workers of one membership epoch, as this worker sees them.

    Args:
        store: where the members meet; the epoch separates this group's keys from others'.
        rank: this worker among `size`.
        size: how many workers the group has.
        epoch: the membership epoch that the group belongs to.
        device: where the tensors live; CUDA devices get NCCL, everything else Gloo.
        address: the local address that the group's sockets are bound to.
        timeout: how long a collective may take, in seconds; stalls are reported long before.
        names: the numbers by which the members are known outside; their ranks by default.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        epoch: int,
        device: torch.device,
        address: str = LOOPBACK,
        timeout: float = 1800.0,
        names: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.epoch = epoch
        self.device = device
        self.names = tuple(names or range(size))
        self._address = address
        self._timeout = timeout
        self._store = store
        self._parts: list[Group] = []
        self.whole: Group = self
        """All workers of the run, if these are some of them."""
        self.at_close: list[Callable[[], object]] = []
        """What is to be called when the group is closed, the last first."""
        meeting = PrefixStore(f"manyhands/epoch-{epoch}", store)
        limit = timedelta(seconds=timeout)
        before = set(_open_sockets())
        if device.type == "cuda":
            self.handle = nccl_group(meeting, rank, size, timeout=limit, device=device)
        else:
            self.handle = gloo_group(meeting, rank, size, timeout=limit, address=address)
        opened = set(_open_sockets()) - before
        self._sockets, listening = _connected(opened)
        self._peers = ["unknown"] * len(self._sockets)
        if device.type != "cuda" and size > 1:
            self._peers = self._name_peers(meeting, listening)
            self._let_go_of_strangers()

    def _let_go_of_strangers(self) -> None:
        """Forget connections that other threads have made while the group was.

        ZeroMQ may have connected again, or a script. To shut such a connection down, or to take its
        end for a peer's, would be wrong. Where not all peers are known, as behind a network that
        translates addresses, an unknown connection may be one of theirs, and is kept.
        """
        if len({*self._peers} - {"unknown"}) < self.size - 1:
            return
        known = [peer != "unknown" for peer in self._peers]
        for sock, own in zip(self._sockets, known, strict=True):
            if not own:
                sock.close()
        self._sockets = list(compress(self._sockets, known))
        self._peers = list(compress(self._peers, known))

    def _name_peers(self, meeting: Store, listening: Sequence[str]) -> list[str]:
        """For each socket the worker at its other end.

        Of two workers one has connected to where the other listens, so it knows whose socket that
        is once all have said where they listen. It tells the other one from which address it came.
        So a worker reads as much as there are workers; reading every worker's list of connections
        would be the square of that.
        """
        meeting.set(f"listens/{self.rank}", " ".join(listening) or "nowhere")
        everywhere = meeting.multi_get([f"listens/{rank}" for rank in range(self.size)])
        owner = {
            address: rank
            for rank, addresses in enumerate(everywhere)
            for address in addresses.decode("ascii").split()
        }
        found = [owner.get(_address(sock.getpeername())) for sock in self._sockets]
        told = torch.zeros(self.size, _NAME_SIZE, dtype=torch.uint8)
        for sock, rank in zip(self._sockets, found, strict=True):
            if rank is not None:
                name = _address(sock.getsockname()).encode("ascii").ljust(_NAME_SIZE)
                told[rank] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        heard = torch.zeros_like(told)
        self.handle.alltoall_base(heard.view(-1), told.view(-1), [], []).wait()
        came = {bytes(row).decode("ascii").strip(): rank for rank, row in enumerate(heard.numpy())}
        for index, sock in enumerate(self._sockets):
            if found[index] is None:
                found[index] = came.get(_address(sock.getpeername()))
        return ["unknown" if rank is None else f"worker-{self.names[rank]}" for rank in found]

    def part(self, name: str, ranks: Sequence[int]) -> Group:
        """A group of some of the workers, this one among them, with connections of its own.

        It belongs to this group: its bytes and its lost peers are counted here as well, and it is
        freed and closed together with it. All members of the part must ask for it.
        """
        part = Group(
            PrefixStore(f"{name}/{min(ranks)}", self._store),
            list(ranks).index(self.rank),
            len(ranks),
            epoch=self.epoch,
            device=self.device,
            address=self._address,
            timeout=self._timeout,
            names=[self.names[rank] for rank in ranks],
        )
        part.whole = self.whole
        self._parts.append(part)
        return part

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace `tensor`, on every worker, by the sum over all workers."""
        with self.watched():
            self.handle.allreduce([tensor]).wait()

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Replace `tensor`, on every worker, by the source's."""
        with self.watched():
            self.handle.broadcast(tensor, root=source).wait()

    def gather(self, everybody: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `everybody`, on every worker, with all workers' `own`, in the order of ranks."""
        with self.watched():
            self.handle._allgather_base(everybody.view(-1), own.reshape(-1)).wait()

    def send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Work:
        """Begin to send a contiguous tensor; it must stay as it is until that is over."""
        return self.handle.send([tensor], to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:
        """Begin to receive into a contiguous tensor what the source sends under this tag."""
        return self.handle.recv([tensor], source, tag)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turn an error of torch's into PeerLost if the group's connections are broken."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerLost) or not self.broken():
                raise
            lost = ", ".join(self.lost_peers()) or "a peer"
            raise PeerLost(f"lost {lost} in a collective of worker {self.rank}") from error

    def broken(self) -> bool:
        """Whether a connection to some peer is gone."""
        return bool(self.lost_peers())

    def lost_peers(self) -> list[str]:
        """The peers to whom no established connection is left."""
        lost = {
            peer
            for sock, peer in zip(self._sockets, self._peers, strict=True)
            if _tcp_info(sock)[0] != _ESTABLISHED
        }
        return sorted(lost.union(*(part.lost_peers() for part in self._parts)))

    def traffic(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes that the kernel sent to and received from each peer so far, headers of TCP aside.

        Retransmissions count: they are what the wire carried. Empty under NCCL, which does not
        send through sockets that could be asked.
        """
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for sock, peer in zip(self._sockets, self._peers, strict=True):
            _, out, back = _tcp_info(sock)
            sent[peer] = sent.get(peer, 0) + out
            received[peer] = received.get(peer, 0) + back
        for part in self._parts:
            for total, own in zip((sent, received), part.traffic(), strict=True):
                for peer, count in own.items():
                    total[peer] = total.get(peer, 0) + count
        return sent, received

    def free(self) -> None:
        """Free whoever waits in a collective of this group, from any thread: they raise."""
        for part in self._parts:
            part.free()
        for sock in self._sockets:
            # A connection that the peer's death closed cannot be shut down again.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the sockets back. The group cannot be used afterwards."""
        while self.at_close:
            self.at_close.pop()()
        self.free()
        for part in self._parts:
            part.close()
        for sock in self._sockets:
            sock.close()
        self._sockets, self._peers, self._parts = [], [], []


def _open_sockets() -> Iterator[tuple[int, str]]:
    """File descriptors of this process that are sockets, each with its kernel identity."""
    for entry in Path("/proc/self/fd").iterdir():
        # The directory's own descriptor is gone again when it is looked at.
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                yield int(entry.name), target


def _connected(descriptors: set[tuple[int, str]]) -> tuple[list[socket.socket], list[str]]:
    """Duplicates of those that are connected over TCP, and the addresses at which others listen.

    There are none of listeners: a shut-down one aborts Gloo.
    """
    sockets, listening = [], []
    for descriptor, _ in sorted(descriptors):
        sock = socket.socket(fileno=os.dup(descriptor))
        try:
            sock.getpeername()
            keep = sock.family in (socket.AF_INET, socket.AF_INET6)
        except OSError:
            keep = False
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.append(_address(sock.getsockname()))
        if keep:
            sockets.append(sock)
        else:
            sock.close()
    return sockets, [address for address in listening if address]


def _address(name: object) -> str:
    """An address of the internet in words; none of other families, whose sockets are no peers'."""
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""


def _tcp_info(sock: socket.socket) -> tuple[int, int, int]:
    """The connection's state, bytes sent and bytes received, as Linux' tcp_info has them."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    state = info[0]
    (received,) = struct.unpack_from("<Q", info, _BYTES_RECEIVED_AT)
    (sent,) = struct.unpack_from("<Q", info, _BYTES_SENT_AT)
    return state, sent, received
