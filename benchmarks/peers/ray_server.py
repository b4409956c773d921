"""A parameter server on Ray actors, as Ray's own example has its asynchronous one.

https://docs.ray.io/en/latest/ray-core/examples/plot_parameter_server.html
"""

import os
import sys

import numpy as np
import ray
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from benchmarks.peers.work import WORKERS, batches, model, optimizer

Weights = dict[str, torch.Tensor]


@ray.remote
class ParameterServer:
    """Holds the model."""

    def __init__(self, size: str) -> None:
        self.model = model(size)
        self.optimizer = optimizer(self.model)

    def apply_gradients(self, *gradients: list[np.ndarray]) -> Weights:
        """Step, and answer with the parameters."""
        summed = [np.stack(pieces).sum(axis=0) for pieces in zip(*gradients, strict=True)]
        self.optimizer.zero_grad()
        for parameter, gradient in zip(self.model.parameters(), summed, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self.optimizer.step()
        return self.get_weights()

    def get_weights(self) -> Weights:
        """The parameters."""
        return {name: value.cpu() for name, value in self.model.state_dict().items()}


@ray.remote
class DataWorker:
    """Computes gradients."""

    def __init__(self, size: str, number: int) -> None:
        self.model = model(size)
        self.batches = batches(number)

    def compute_gradients(self, weights: Weights) -> list[np.ndarray]:
        """The gradients of one batch."""
        inputs, targets = next(self.batches)
        self.model.load_state_dict(weights)
        self.model.zero_grad()
        F.cross_entropy(self.model(inputs), targets).backward()
        return [parameter.grad.numpy() for parameter in self.model.parameters()]


def train(size: str) -> None:
    server = ParameterServer.remote(size)
    workers = [DataWorker.remote(size, number) for number in range(WORKERS)]
    weights = server.get_weights.remote()
    gradients = {worker.compute_gradients.remote(weights): worker for worker in workers}
    while True:
        (ready, *_), _ = ray.wait(list(gradients))
        worker = gradients.pop(ready)
        weights = server.apply_gradients.remote(ready)
        gradients[worker.compute_gradients.remote(weights)] = worker


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=WORKERS + 1,
        include_dashboard=False,
        object_store_memory=256 << 20,
        log_to_driver=False,
        _temp_dir=os.environ["SERVER_FOLDER"],
    )
    try:
        train(sys.argv[1])
    finally:
        ray.shutdown()
