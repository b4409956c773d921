"""Measures of virtual workers: norms of gradients, and distances between replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters.optional.clipping import MeanOf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.job import Job
    from manyhands.parameters import Layout
    from manyhands.trace import Recorder
    from manyhands.virtual.worker.shared_model import Replication, SharedModel

_NUMBERS = 4_000_000
"""Most numbers of all replicas that are held in double precision at a time."""


@torch.no_grad()
def spread(layout: Layout, replicas: Sequence[Sequence[torch.Tensor]]) -> tuple[float, float]:
    """Mean distance of replicas to their mean, and the largest distance between two of them.

    Distances are Euclidean, over all parameters: mean_i ‖x_i − x̄‖ and max_ij ‖x_i − x_j‖. Both
    follow from the inner products of the x_i − x̄, which are added up part by part.

    Args:
        layout: how parameters are laid out in shards.
        replicas: for each replica, the bytes of its shards.
    """
    count = len(replicas)
    if count < 2:
        return 0.0, 0.0
    products = torch.zeros(count, count, dtype=torch.float64)
    width = max(1, _NUMBERS // count)
    for number, shard in enumerate(layout.shards):
        for flat in shard.flat_by_dtype:
            views = [flat.view(replica[number]) for replica in replicas]
            for begin in range(0, views[0].numel(), width):
                part = torch.stack([view[begin : begin + width] for view in views]).double()
                part -= part.mean(0)
                products += part @ part.T
    squares = products.diagonal()
    between = squares[:, None] + squares[None, :] - 2 * products
    return squares.clamp(min=0).sqrt().mean().item(), between.max().clamp(min=0).sqrt().item()


class ReplicaMeasures:
    """Records a job's measures at evaluations; does nothing if it has none.

    The distances are taken whenever as many gradients were computed as there are replicas, about
    once per global batch. At an evaluation their mean and maximum since the last one are recorded:
    at that moment itself, strategies that average replicas have just done so.

    Args:
        job: the job.
        recorder: the trace to which they are written.
        shared_model: computes the gradients.
        replicas: returns the state of all present workers.
    """

    def __init__(
        self,
        job: Job,
        recorder: Recorder,
        shared_model: SharedModel,
        replicas: Callable[[], list[Replication]],
    ) -> None:
        self._recorder = recorder
        self._shared_model = shared_model
        self._replicas = replicas
        self._gradients = 0
        self._distances = MeanOf()
        self._largest = 0.0
        if "spread" in job.measures:
            shared_model.computed = self._note_gradient

    def _note_gradient(self) -> None:
        self._gradients += 1
        replicas = [one.parameters for one in self._replicas()]
        if self._gradients < len(replicas):
            return
        self._gradients = 0
        mean, largest = spread(self._shared_model.layout, replicas)
        self._distances.add(mean)
        self._largest = max(self._largest, largest)

    def record(self, samples: int) -> None:
        """Write the means since the last evaluation."""
        norms = self._shared_model.norms.take()
        if norms is not None:
            mean, count = norms
            self._recorder.point("measure/gradient_norm", mean, samples=samples, weight=count)
        distances = self._distances.take()
        if distances is not None:
            mean, count = distances
            self._recorder.point("measure/spread", mean, samples=samples, weight=count)
            self._recorder.point("measure/spread_most", self._largest, samples=samples)
            self._largest = 0.0
