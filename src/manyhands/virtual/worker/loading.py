"""Loading of batches in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from manyhands.seeding import epoch_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job
    from manyhands.seeding import Seeded


def loader(job: Job, seeded: Seeded) -> Callable[[int, torch.Tensor], tuple[Any, Any]]:
    """A function that loads the inputs and targets of an epoch's samples, in the fastest way.

    Random augmentations are the same as those of live workers.
    """
    collate = job.collate_fn or default_collate

    def load(epoch: int, indices: torch.Tensor) -> tuple[Any, Any]:
        seed = epoch_seed(job.seed, epoch)
        with seeded.drawing():
            if seeded.take is not None:
                return job.divide(seeded.batch(seed, indices))
            return job.divide(collate(seeded.__getitems__((seed, indices.tolist()))))

    return load
