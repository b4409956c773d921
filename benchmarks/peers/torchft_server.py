"""A parameter server on torchft's `ParameterServer`: one two-rank Gloo session per worker.

As its documentation has it, a session is a loop of broadcasts: the client's to the server, the
server's back. Gradients and parameters travel as one flat tensor each, the fastest form.
"""

import os
import sys
import threading

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchft.parameter_server import ParameterServer
from torchft.process_group import ProcessGroup, ProcessGroupGloo

from benchmarks.peers.work import WORKERS, batches, model


class Server(ParameterServer):
    """Holds the model; `forward` runs in a thread per worker."""

    def __init__(self, size: str) -> None:
        self.flat = torch.nn.Parameter(parameters_to_vector(model(size).parameters()).detach())
        self.optimizer = torch.optim.SGD([self.flat], lr=0.01, momentum=0.9)
        self.lock = threading.Lock()
        super().__init__(port=0)

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        """What a session speaks over."""
        return ProcessGroupGloo()

    def forward(self, session_id: str, pg: ProcessGroup) -> None:  # noqa: ARG002 - torchft's
        """A session, from its worker's start to its end."""
        gradient = torch.empty_like(self.flat.detach())
        parameters = self.flat.detach().clone()
        while True:
            pg.broadcast_one(parameters, root=0).wait()
            pg.broadcast_one(gradient, root=1).wait()
            with self.lock:
                self.flat.grad = gradient
                self.optimizer.step()
                parameters.copy_(self.flat.detach())


def train(worker: int, address: str, size: str) -> None:
    replica = model(size)
    flat = parameters_to_vector(replica.parameters()).detach()
    session = Server.new_session(address)
    session.broadcast_one(flat, root=0).wait()
    for inputs, targets in batches(worker):
        vector_to_parameters(flat, replica.parameters())
        replica.zero_grad()
        F.cross_entropy(replica(inputs), targets).backward()
        gradient = torch.cat([parameter.grad.view(-1) for parameter in replica.parameters()])
        session.broadcast_one(gradient, root=1).wait()
        session.broadcast_one(flat, root=0).wait()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    server = Server(sys.argv[1])
    mp.spawn(train, args=(server.address(), sys.argv[1]), nprocs=WORKERS)
