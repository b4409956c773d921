"""Comparison of replicas that must be equal, by a hash of their parameters.

Workers that step with the same gradient from the same parameters have the same parameters, to the
bit. A bit that is flipped in the memory of one of them stays: its replica differs from then on, and
so does what it computes. Every so many steps all workers exchange a hash of their parameters in one
small collective. The replica of the minority is wrong.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import torch

from manyhands.failure import ReplicasDiffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from manyhands.placements.bound import Bound
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_PRIME: Final = (1 << 61) - 1


class EqualReplicas:
    """Compares the replicas of all workers from time to time.

    Args:
        bound: this worker's part of the model.
        group: all workers.
        waits: records waiting for other workers.
        recorder: this worker's trace.
    """

    def __init__(self, bound: Bound, group: Group, waits: Waits, recorder: Recorder) -> None:
        self._bound = bound
        self._group = group
        self._waits = waits
        self._recorder = recorder
        self._every = bound.compares_every if group.size > 1 else 0

    def regroup(self, group: Group) -> None:
        """Compare with the workers of another group from now on."""
        self._group = group
        self._every = self._bound.compares_every if group.size > 1 else 0

    def compare(self, step: int) -> None:
        """Compare after a step, counted from 0, if it is time.

        Raises:
            ReplicasDiffer: the replicas are not equal; the message names the workers.
        """
        if not self._every or step < 0 or (step + 1) % self._every:
            return
        own = torch.tensor([fingerprint(self._bound.own_parameters())], device=self._group.device)
        everyone = own.new_empty(self._group.size)
        self._waits.begin()
        self._group.gather(everyone, own)
        self._waits.end()
        self._waits.take()
        words = difference(everyone.tolist(), self._group.names)
        if words:
            words = f"after step {step + 1:,} {words}"
            self._recorder.event("replicas differ", {"words": words})
            raise ReplicasDiffer(words)


def fingerprint(tensors: Iterable[torch.Tensor]) -> int:
    """A hash of the bits of tensors, in order; it changes with every single bit.

    In the host's memory it is a CRC-32. On an accelerator it is computed there, from the sums of
    all 32-bit words as they are and multiplied by their positions.
    """
    found = 0
    for tensor in tensors:
        flat = tensor.detach().contiguous().view(-1)
        if not flat.numel():
            continue
        if flat.device.type == "cpu":
            found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
            continue
        small = {1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32)
        words = flat.view(small).long()
        places = torch.arange(1, words.numel() + 1, device=words.device)
        both = torch.stack([words.sum(), (words * places).sum()]).tolist()
        found = (found * 1_000_003 + both[0] + 31 * both[1]) % _PRIME
    return found


def difference(hashes: Sequence[int], names: Sequence[int] | None = None) -> str:
    """Whose replica differs, in words; empty if all are equal.

    Args:
        hashes: one of each worker.
        names: the numbers of these workers; by default from 0.

    >>> difference([5, 5, 7, 5])
    'the parameters of worker 2 differ from those of the other 3 workers, which are equal'
    >>> difference([5, 5])
    ''
    """
    known = range(len(hashes)) if names is None else names
    counts = Counter(hashes).most_common()
    if len(counts) == 1:
        return ""
    (common, most), (_, second) = counts[:2]
    if most == second:
        groups = [
            _names([rank for rank, one in zip(known, hashes, strict=True) if one == each])
            for each, _ in counts
        ]
        return (
            f"the parameters of {' and '.join(groups)} differ, and it cannot be told which are "
            "right"
        )
    wrong = [rank for rank, one in zip(known, hashes, strict=True) if one != common]
    return (
        f"the parameters of {_names(wrong)} differ from those of the other {most} workers, which "
        "are equal"
    )


def _names(ranks: Sequence[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
