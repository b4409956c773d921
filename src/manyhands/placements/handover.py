"""How stages hand tensors over to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from manyhands.engine.pipelines import Arrival
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class Handover:
    """The workers of a pipeline, as one of them sees the others.

    Args:
        group: the workers.
        waits: told what is sent, and when this worker waits for something.
    """

    def __init__(self, group: Group, waits: Waits) -> None:
        self.rank, self.size = group.rank, group.size
        self._group, self._waits = group, waits

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Arrival:
        """Begin to send; the tensor must stay as it is meanwhile."""
        self._waits.note("send", tensor.nbytes, 2)
        # Gloo sends memory as it lies.
        return self._group.send(tensor.detach().contiguous(), to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Arrival:
        """Begin to receive."""
        return self._group.receive(tensor, source, tag)

    def arrive(self, coming: Arrival) -> None:
        """Wait for what was to be received, and let it be known that this worker waits."""
        self._waits.begin()
        coming.wait()
        self._waits.end()
