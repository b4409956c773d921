"""Our side of `benchmarks.server`: an asynchronous job whose batches wait for their turn."""

import functools
import os

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.peers.work import BATCH, WORKERS, data, model, next_turnstile, optimizer


class Turned(torch.utils.data.TensorDataset):
    """Tensors that give a batch when it is their side's turn. A step begins with its batch."""

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A batch."""
        # The batch on which the job is tried before workers start is nobody's turn.
        if __name__ != "__main__" and not _turnstile().step():
            raise SystemExit("the measurement is over")
        return tuple(tensor[indices] for tensor in self.tensors)


_turnstile = functools.cache(next_turnstile)

job = mh.Job(
    model=lambda: model(os.environ["SERVER_MODEL"]),
    optimizer=optimizer,
    loss=F.cross_entropy,
    data=Turned(*data()),
    global_batch=BATCH * WORKERS,
    epochs=1_000_000,
)

if __name__ == "__main__":
    mh.train(job, "asynchronous()", workers=WORKERS, output=os.environ["SERVER_FOLDER"] + "/run")
