"""The yardstick of `benchmarks.server`: the best simple parameter server on bare ZeroMQ.

ROUTER and DEALER over ipc in frames of 1 MiB, received into memory that is there already and sent
without a copy. A worker may always send, nothing is numbered, acknowledged, resent or written
down: whoever dies here takes the run along. The parameters are one flat tensor; an answer is a
copy of them, so that no worker reads what the next update is changing.
"""

import signal
from typing import Never

import torch
import zmq

from benchmarks.turnstile import Turnstile
from manyhands.live.processes.parent_death import die_with

CHUNK = 1 << 20


def serve(driver: int, address: str, elements: int) -> Never:
    """Hear whoever pushes, for ever."""
    die_with(driver, signal.SIGKILL)
    torch.set_num_threads(1)
    socket = _socket(zmq.ROUTER)
    socket.bind(address)
    parameter = torch.nn.Parameter(torch.zeros(elements))
    optimizer = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
    size = 4 * elements
    answer = parameter.detach().numpy().data.cast("B")
    updates: dict[bytes, torch.Tensor] = {}
    rooms: dict[bytes, memoryview] = {}
    received: dict[bytes, int] = {}
    while True:
        worker = socket.recv()
        if worker not in updates:
            updates[worker] = torch.zeros(elements)
            rooms[worker] = updates[worker].numpy().data.cast("B")
            received[worker] = 0
        received[worker] += socket.recv_into(rooms[worker][received[worker] :])
        if received[worker] < size:
            continue
        received[worker] = 0
        parameter.grad = updates[worker]
        optimizer.step()
        # What was received is done with: its place takes the answer.
        rooms[worker][:] = answer
        for offset in range(0, size, CHUNK):
            socket.send(worker, zmq.SNDMORE)
            socket.send(rooms[worker][offset : offset + CHUNK], copy=False)


def work(driver: int, path: str, addresses: list[str], elements: list[int]) -> None:
    """Push a gradient to every server and pull, whenever it is this side's turn."""
    die_with(driver, signal.SIGKILL)
    torch.set_num_threads(1)
    sockets, updates, parameters = [], [], []
    for address, count in zip(addresses, elements, strict=True):
        sockets.append(_socket(zmq.DEALER))
        sockets[-1].connect(address)
        updates.append(torch.full((count,), 1e-6).numpy().data.cast("B"))
        parameters.append(torch.zeros(count).numpy().data.cast("B"))
    turnstile = Turnstile(path)
    while turnstile.step():
        for socket, update in zip(sockets, updates, strict=True):
            for offset in range(0, len(update), CHUNK):
                socket.send(update[offset : offset + CHUNK], copy=False)
        for socket, room in zip(sockets, parameters, strict=True):
            received = 0
            while received < len(room):
                received += socket.recv_into(room[received:])


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
