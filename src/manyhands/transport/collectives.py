"""Collectives in process groups that Manyhands owns, sockets included.

Gloo does not reliably unblock its callers. After a peer's `kill -9` some workers raise at once
while another stays blocked for its whole timeout; if the peer is only stopped, none is unblocked
and `abort()` does nothing. Shutting down the group's connected sockets unblocks every caller within
milliseconds. So a `Group` keeps a duplicate of each socket that its backend opened: the duplicates
stay valid whatever the backend closes, provide the number of bytes sent to each peer, and are shut
down by `free`.

Gloo and NCCL do not authenticate: a group trusts its network. On one host it is bound to the
loopback address.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import Counter
from datetime import timedelta
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.collectives import local_ranks
from manyhands.engine import PrefixStore, Store, TCPStore, gloo_group, nccl_group, set_timeout
from manyhands.failure import PeerLost
from manyhands.transport.interfaces import family_of, write_place
from manyhands.transport.shared.exchange import SharedExchange
from manyhands.transport.shared.layout import room
from manyhands.transport.shared.posts import SharedPosts, posts_room
from manyhands.transport.shared.sums import BetweenHosts, SharedSum, agree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import Work

LOOPBACK = "127.0.0.1"
_ESTABLISHED = 1
_AT_ONCE = 64
"""Workers up to which a few numbers are sent to all others at once: a message takes some 20 µs."""
_NAME_SIZE = 64
"""Bytes that hold an address and its port, also of IPv6."""
_TCP_INFO_SIZE = 232
_BYTES_ACKNOWLEDGED_AT = 120
_BYTES_RECEIVED_AT = 128


def serve_store(address: str = LOOPBACK) -> tuple[Store, int]:
    """Start a store for this run, which listens only at `address`; return it and its port.

    TCPStore listens on every interface unless it is given a socket.
    """
    listener = socket.create_server((address, 0), family=family_of(address), backlog=1024)
    port = listener.getsockname()[1]
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def connect_store(address: str, port: int, timeout: float = 60.0) -> Store:
    """A client of the store at `address`."""
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))


class Group:
    """A process group of the workers of one membership epoch.

    Args:
        store: the store for the rendezvous; the epoch separates the keys of groups.
        rank: this worker's rank in the group.
        size: number of workers in the group.
        epoch: the membership epoch of the group.
        device: device of the tensors; CUDA devices use NCCL, all others Gloo.
        address: the local address to which the group's sockets are bound.
        timeout: seconds that a collective may take; stalls are reported long before.
        names: the members' ranks in the run; their ranks in the group by default.
        forming: seconds in which all members must have connected; `timeout` by default.
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
        forming: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.epoch = epoch
        self.device = device
        self.names = tuple(names or range(size))
        self._address = address
        self._timeout = timeout
        self._forming = forming
        self._store = store
        self._parts: list[Group] = []
        self._asked: Counter[str] = Counter()
        """By name, how many parts were made."""
        self.whole: Group = self
        """The group of all workers of the run; this group itself, unless it is a part."""
        self.at_close: list[Callable[[], object]] = []
        """Functions to be called when the group is closed, the last first."""
        self._shared: list[tuple[SharedSum | SharedPosts, list[int]]] = []
        """Sums and transfers in shared memory, each with the ranks of those who share it."""
        # A worker of an earlier epoch, that was stopped and continues, finds no address of a later
        # group under its own number.
        prefixed = PrefixStore(f"manyhands/epoch-{epoch}", store)
        limit = timedelta(seconds=timeout if forming is None else forming)
        before = set(_open_sockets())
        if device.type == "cuda":
            self.handle = nccl_group(prefixed, rank, size, timeout=limit, device=device)
        else:
            self.handle = gloo_group(prefixed, rank, size, timeout=limit, address=address)
        opened = set(_open_sockets()) - before
        self._sockets, listening = _connected(opened)
        self._peers = ["unknown"] * len(self._sockets)
        if device.type != "cuda" and size > 1:
            self._peers = self._name_peers(prefixed, listening)
            self._drop_unrelated_sockets()
        # The limit is for connecting only: a collective may wait much longer for a slow worker.
        if forming is not None:
            set_timeout(self.handle, timedelta(seconds=timeout))
        # Now, because a connection that is lost later has no addresses any more.
        self._here = {
            peer for sock, peer in zip(self._sockets, self._peers, strict=True) if _is_local(sock)
        }

    def _drop_unrelated_sockets(self) -> None:
        """Drop connections that other threads opened while the group was created.

        Such a connection, of ZeroMQ or of the script, must not be shut down, and its end must not
        be taken for the loss of a peer. If not all peers are known, as behind a NAT, an unknown
        connection may belong to one of them, and is kept.
        """
        if len({*self._peers} - {"unknown"}) < self.size - 1:
            return
        known = [peer != "unknown" for peer in self._peers]
        for sock, own in zip(self._sockets, known, strict=True):
            if not own:
                sock.close()
        self._sockets = list(compress(self._sockets, known))
        self._peers = list(compress(self._peers, known))

    def _name_peers(self, prefixed: Store, listening: Sequence[str]) -> list[str]:
        """The worker at the other end of each socket.

        Of two workers, one has connected to the address at which the other listens, so it can
        identify that socket once all workers have published their addresses. It sends the other
        one the address from which it connected. So the amount that a worker reads is linear in the
        number of workers; reading every worker's list of connections would be quadratic.
        """
        prefixed.set(f"listens/{self.rank}", " ".join(listening) or "nowhere")
        everywhere = prefixed.multi_get([f"listens/{rank}" for rank in range(self.size)])
        owner = {
            address: rank
            for rank, addresses in enumerate(everywhere)
            for address in addresses.decode("ascii").split()
        }
        found = [owner.get(_address(sock.getpeername())) for sock in self._sockets]
        sent = torch.zeros(self.size, _NAME_SIZE, dtype=torch.uint8)
        for sock, rank in zip(self._sockets, found, strict=True):
            if rank is not None:
                name = _address(sock.getsockname()).encode("ascii").ljust(_NAME_SIZE)
                sent[rank] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        received = torch.zeros_like(sent)
        self.handle.alltoall_base(received.view(-1), sent.view(-1), [], []).wait()
        rows = enumerate(received.numpy())
        connected = {bytes(row).decode("ascii").strip(): rank for rank, row in rows}
        for index, sock in enumerate(self._sockets):
            if found[index] is None:
                found[index] = connected.get(_address(sock.getpeername()))
        return ["unknown" if rank is None else f"worker-{self.names[rank]}" for rank in found]

    def part(self, name: str, ranks: Sequence[int]) -> Group:
        """A subgroup that includes this worker, with its own connections.

        It belongs to this group: its bytes and its lost peers are counted here as well, and it is
        freed and closed together with this group. All members of the subgroup must call this, and
        equally often with one name: each call makes another subgroup.
        """
        # A number for each: under the keys of an earlier subgroup its members' old addresses would
        # be found.
        self._asked[name] += 1
        part = Group(
            PrefixStore(f"{name}/{min(ranks)}/{self._asked[name]}", self._store),
            list(ranks).index(self.rank),
            len(ranks),
            epoch=self.epoch,
            device=self.device,
            address=self._address,
            timeout=self._timeout,
            names=[self.names[rank] for rank in ranks],
            forming=self._forming,
        )
        part.whole = self.whole
        self._parts.append(part)
        return part

    def shared_sum(self, chunk: int, *, between_hosts: bool = False) -> SharedSum | None:
        """Sums in memory that the workers of a host share; None if there is no such memory.

        It belongs to this group, as a subgroup does. All workers must call this.

        Args:
            chunk: bytes that are summed at once.
            between_hosts: whether there may be several hosts, which then sum with each other. Each
                must have the same number of workers, and more than one.
        """
        groups = self._local_groups()
        if not groups or (len(groups) > 1 and not between_hosts):
            return None
        (own,) = (ranks for ranks in groups if self.rank in ranks)
        memory, place = self._map(own, room(chunk, len(own))), own.index(self.rank)
        if memory is None:
            return None
        between = None
        if len(groups) > 1:
            # Only after `_map`, in which all workers agree: if one could not map memory, the others
            # would wait for it here.
            across = self.part("across", [ranks[place] for ranks in groups])
            between = BetweenHosts(len(groups), across.begin_sum)
        shared = SharedSum(memory, place, len(own), self._check, between)
        self._shared.append((shared, own))
        return shared

    def shared_exchange(self, chunk: int) -> SharedExchange | None:
        """Collectives in memory that all workers share; None if they are not all on one host's CPU.

        It belongs to this group, as a subgroup does. All workers must call this.

        Args:
            chunk: bytes that a worker exchanges at once.
        """
        groups = self._local_groups()
        if len(groups) != 1:
            return None
        memory = self._map(groups[0], room(chunk, self.size))
        if memory is None:
            return None
        shared = SharedExchange(memory, self.rank, self.size, self._check)
        self._shared.append((shared, groups[0]))
        return shared

    def shared_posts(self) -> SharedPosts | None:
        """Transfers in memory that all workers share; None if they are not all on one host's CPU.

        It belongs to this group, as a subgroup does. All workers must call this.
        """
        groups = self._local_groups()
        memory = self._map(groups[0], posts_room(self.size)) if len(groups) == 1 else None
        if memory is None:
            return None
        posts = SharedPosts(memory, self.rank, self.size, self._check_peer)
        self._shared.append((posts, groups[0]))
        return posts

    def _map(self, ranks: list[int], size: int) -> memoryview | None:
        """Memory that the workers of a host share; None if one of any host cannot have it."""
        self._asked["shared"] += 1
        prefix = f"manyhands/epoch-{self.epoch}/shared/{ranks[0]}/{self._asked['shared']}"
        store, place = PrefixStore(prefix, self._store), ranks.index(self.rank)
        return agree(store, place, size, self._all)

    def _local_groups(self) -> list[list[int]]:
        """The ranks of each host; empty if they cannot share memory, or not in the same way."""
        if self.size == 1 or self.device.type == "cuda":
            return []
        hosts = self._hosts()
        return [list(range(self.size))] if len(set(hosts)) == 1 else local_ranks(hosts)

    def _hosts(self) -> list[int]:
        """For each worker, the lowest rank on its host."""
        here = {f"worker-{name}": rank for rank, name in enumerate(self.names)}
        lowest = torch.zeros(self.size, dtype=torch.int64)
        lowest[self.rank] = min([self.rank, *(here[peer] for peer in self._here if peer in here)])
        self.sum(lowest)
        return lowest.tolist()

    def _all(self, own: bool) -> bool:
        """Whether something is true on all workers."""
        true = torch.tensor([int(own)])
        self.sum(true)
        return bool(true.item() == self.size)

    def _check_peer(self, rank: int) -> None:
        peer = f"worker-{self.names[rank]}"
        if peer in self.lost_peers():
            raise PeerLost(f"lost {peer} in a transfer of worker {self.rank}")

    def _check(self) -> None:
        if self.broken():
            lost = ", ".join(self.lost_peers()) or "a peer"
            raise PeerLost(f"lost {lost} in a sum of worker {self.rank}")

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace `tensor`, on every worker, by the sum over all workers."""
        with self.watched():
            self.handle.allreduce([tensor]).wait()

    def sum_small(self, tensor: torch.Tensor) -> None:
        """As `sum`, for a few numbers: every worker sends them to all others at once.

        Gloo's ring takes 2(n - 1) rounds, and each of them waits for the latency of a link twice.
        """
        if self.device.type == "cuda" or not 2 < self.size <= _AT_ONCE:
            self.sum(tensor)
            return
        own = tensor.reshape(1, -1).repeat(self.size, 1)
        everyone = torch.empty_like(own)
        with self.watched():
            self.handle.alltoall_base(everyone.view(-1), own.view(-1), [], []).wait()
        # The same order on every worker, so the same bits.
        tensor.copy_(everyone.sum(0).view_as(tensor))

    def begin_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace `tensor`, on every worker, by the sum; what it returns waits for it."""
        with self.watched():
            work = self.handle.allreduce([tensor]) if len(tensor) else None

        def wait() -> None:
            if work is not None:
                with self.watched():
                    work.wait()

        return wait

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Replace `tensor`, on every worker, by that of the source."""
        with self.watched():
            self.handle.broadcast(tensor, root=source).wait()

    def gather(self, gathered: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `gathered`, on every worker, with all workers' `own`, in the order of ranks."""
        with self.watched():
            self.handle._allgather_base(gathered.view(-1), own.reshape(-1)).wait()

    def send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Work:
        """Start to send a contiguous tensor, which must not change until it is sent."""
        return self.handle.send([tensor], to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:
        """Start to receive a tensor with this tag from the source, into a contiguous tensor."""
        return self.handle.recv([tensor], source, tag)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turn an error of torch into PeerLost if a connection of the group is broken."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerLost) or not self.broken():
                raise
            lost = ", ".join(self.lost_peers()) or "a peer"
            raise PeerLost(f"lost {lost} in a collective of worker {self.rank}") from error

    def broken(self) -> bool:
        """Whether a connection to a peer is lost."""
        return bool(self.lost_peers())

    def lost_peers(self) -> list[str]:
        """The peers without an established connection."""
        lost = {
            peer
            for sock, peer in zip(self._sockets, self._peers, strict=True)
            if _counters(sock)[0] != _ESTABLISHED
        }
        return sorted(lost.union(*(part.lost_peers() for part in self._parts)))

    def traffic(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes given to and read from the socket of each peer so far, as counted by the kernel.

        Those that are given to a peer in shared memory are included. Neither TCP headers nor
        retransmissions are included, as in the counts of messages. Empty under NCCL, whose traffic
        cannot be read from sockets.
        """
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for sock, peer in zip(self._sockets, self._peers, strict=True):
            _, out, back = _tcp_info(sock)
            sent[peer] = sent.get(peer, 0) + out
            received[peer] = received.get(peer, 0) + back
        for shared, ranks in self._shared:
            for rank, out, back in zip(ranks, shared.exchanged, shared.received, strict=True):
                if rank != self.rank:
                    peer = f"worker-{self.names[rank]}"
                    sent[peer] = sent.get(peer, 0) + out
                    received[peer] = received.get(peer, 0) + back
        for part in self._parts:
            for total, own in zip((sent, received), part.traffic(), strict=True):
                for peer, count in own.items():
                    total[peer] = total.get(peer, 0) + count
        return sent, received

    def peers_here(self) -> set[str]:
        """The peers whose connections had the same address at both ends: those on this host."""
        return self._here.union(*(part.peers_here() for part in self._parts))

    def free(self) -> None:
        """Unblock all callers that wait in a collective of this group; they raise. Thread-safe."""
        for part in self._parts:
            part.free()
        for shared, _ in self._shared:
            shared.free()
        for sock in self._sockets:
            # A connection that the peer's death closed cannot be shut down again.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets. The group cannot be used afterwards."""
        # Before the sockets: what these functions end may still use the group.
        while self.at_close:
            self.at_close.pop()()
        self.free()
        for part in self._parts:
            part.close()
        for sock in self._sockets:
            sock.close()
        self._sockets, self._peers, self._parts, self._shared = [], [], [], []


def _open_sockets() -> Iterator[tuple[int, str]]:
    """File descriptors of this process that are sockets, each with its inode."""
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor of the directory itself is closed by now.
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                yield int(entry.name), target


def _connected(descriptors: set[tuple[int, str]]) -> tuple[list[socket.socket], list[str]]:
    """Duplicates of the sockets that are connected over TCP, and addresses of listening ones.

    Listening sockets are not duplicated: shutting one down aborts Gloo.
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


def _is_local(sock: socket.socket) -> bool:
    """Whether a connection has the same address at both ends; False if it is lost already."""
    with contextlib.suppress(OSError):
        return bool(sock.getsockname()[0] == sock.getpeername()[0])
    return False


def _address(name: object) -> str:
    """An IP address and port as text; empty for other address families."""
    return write_place(name[0], name[1]) if isinstance(name, tuple) else ""


def _tcp_info(sock: socket.socket) -> tuple[int, int, int]:
    """The connection's state, bytes written and bytes read, from Linux' tcp_info.

    Written is what the peer acknowledged and what waits in the send buffer: a collective has ended
    before a slow peer has received all of it. What the kernel sent again counts once: on a host
    whose cores are taken, even a loopback connection sends again what its peer had no time to
    acknowledge. What waits in the receive buffer does not count as read.
    """
    while True:
        state, acknowledged, received = _counters(sock)
        waiting, unread = (_queued(sock, queue) for queue in (termios.TIOCOUTQ, termios.FIONREAD))
        # What is acknowledged or arrives between the two calls would be counted wrongly.
        if _counters(sock) == (state, acknowledged, received):
            return state, acknowledged + waiting, received - unread


def _counters(sock: socket.socket) -> tuple[int, int, int]:
    """The connection's state, bytes that the peer acknowledged, and bytes that arrived."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    (acknowledged,) = struct.unpack_from("<Q", info, _BYTES_ACKNOWLEDGED_AT)
    (received,) = struct.unpack_from("<Q", info, _BYTES_RECEIVED_AT)
    return info[0], acknowledged, received


def _queued(sock: socket.socket, queue: int) -> int:
    """Bytes that wait in the send or receive buffer of a socket."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock, queue, b"\0" * 4))
    return int(count)
