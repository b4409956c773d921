"""Interleaved 1F1B: several stages per rank, for a shorter bubble."""

from manyhands.schedules.looping import Loop, looped
from manyhands.schedules.refusal import refuse_small, refuse_uneven, rounds
from manyhands.schedules.table import Table


def interleaved(stages: int, microbatches: int, ranks: int) -> Table:
    """One forward, one backward, by ranks that have v = stages/p stages each.

    A stage takes 1/v of the time, so the pipeline fills v times as fast: each of p ranks is idle
    for (p − 1)/(v·m + p − 1) of a step with m microbatches, if p divides m. There are v times as
    many stage boundaries, and each costs a transfer.

    Example:
        >>> print(interleaved(stages=4, microbatches=2, ranks=2))
        rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1

    Paper: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM, SC 2021.
    """
    refuse_small(stages, microbatches, ranks)
    refuse_uneven(stages, ranks)
    if stages == ranks:
        raise ValueError(
            f"interleaved needs several stages per worker, got {stages} stages for {ranks} "
            f"workers: use {2 * ranks} stages, or one_f_one_b for one stage each"
        )
    loop = Loop(stages, microbatches, ranks, rounds("interleaved", microbatches, ranks))
    return looped(loop, hops=2, halves=False)
