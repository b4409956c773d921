"""Likeness of a job in two processes: digests of a few of its samples.

A script draws the same random numbers in every process. Cells of a notebook are executed in any
order and several times, so a worker may draw other data than the notebook has: it would train on
something that the user never saw. Workers compare a few samples and end with a message instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.data.sample_digest import digest
from manyhands.data.stream import is_stream
from manyhands.seeding import Seeded, epoch_seed, random_state, restore_random_state

if TYPE_CHECKING:
    from manyhands.job import Job

NAME = "__samples__"
"""The name in a notebook's script of the digests of samples, by the name of a job."""
_COMPARED = 8
"""Samples of the data that are compared, and as many of the validation data."""


def samples_digest(job: Job) -> str:
    """A digest of a few samples; empty if they are not the same when they are loaded again."""
    found = _samples_digest(job)
    return found if found == _samples_digest(job) else ""


def check_samples(job: Job, name: str, expected: str) -> None:
    """Raise RuntimeError, with the fix, if the samples are not those of the notebook."""
    if expected and _samples_digest(job) != expected:
        raise RuntimeError(
            f"the data of '{name}' in this worker are not those in the notebook: cells were "
            "executed in another order or several times, or they draw random numbers without a "
            "seed. Set the seed in the cell that draws them, as torch.manual_seed(0) or "
            "np.random.default_rng(0), or restart the kernel and run all cells"
        )


def _samples_digest(job: Job) -> str:
    kept = random_state()
    try:
        parts = [_some(data, job.seed) for data in (job.data, job.validation) if data is not None]
    finally:
        restore_random_state(kept)
    return digest(parts)


def _some(data: Any, seed: int) -> list[Any]:
    """Samples from all parts of the data, and their number."""
    if is_stream(data):
        return Seeded(data, None).first(epoch_seed(seed, 0), _COMPARED)
    size = len(data)
    indices = sorted({size * number // _COMPARED for number in range(_COMPARED)}) if size else []
    if not indices:
        return [size]
    return [size, Seeded(data, None).__getitems__((epoch_seed(seed, 0), indices))]
