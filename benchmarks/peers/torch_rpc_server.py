"""A parameter server on torch RPC, as torch's tutorial on asynchronous executions has it.

https://docs.pytorch.org/tutorials/intermediate/rpc_async_execution.html, with batches of one
update, which is what makes it asynchronous.
"""

import os
import sys
import threading

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.distributed import rpc

from benchmarks.peers.work import WORKERS, batches, free_port, model, optimizer


class ParameterServer:
    """Holds the model; lives in the process `ps`."""

    def __init__(self, size: str) -> None:
        self.model = model(size)
        self.optimizer = optimizer(self.model)
        self.lock = threading.Lock()
        self.future: torch.futures.Future[nn.Module] = torch.futures.Future()

    def get_model(self) -> nn.Module:
        """What training begins with."""
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch_model(
        server: rpc.RRef, gradients: list[torch.Tensor]
    ) -> torch.futures.Future[nn.Module]:
        """Step, and answer with the model."""
        self = server.local_value()
        with self.lock:
            future = self.future
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self.optimizer.zero_grad()
            future.set_result(self.model)
            self.future = torch.futures.Future()
        return future


def train(server: rpc.RRef, worker: int) -> None:
    replica = server.rpc_sync().get_model()
    for inputs, targets in batches(worker):
        F.cross_entropy(replica(inputs), targets).backward()
        replica = rpc.rpc_sync(
            server.owner(),
            ParameterServer.update_and_fetch_model,
            args=(server, [parameter.grad for parameter in replica.parameters()]),
        )


def run(rank: int, size: str) -> None:
    name = "ps" if rank == 0 else f"trainer{rank}"
    rpc.init_rpc(name, rank=rank, world_size=WORKERS + 1)
    if rank == 0:
        server = rpc.RRef(ParameterServer(size))
        workers = [
            # Without a timeout: this call is the whole training.
            rpc.rpc_async(f"trainer{worker}", train, args=(server, worker), timeout=0)
            for worker in range(1, WORKERS + 1)
        ]
        torch.futures.wait_all(workers)
    rpc.shutdown()


if __name__ == "__main__":
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TP_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    mp.spawn(run, args=(sys.argv[1],), nprocs=WORKERS + 1)
