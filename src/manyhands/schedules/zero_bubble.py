"""Zero bubble: the backward in halves, so that one of them fills the gaps."""

from manyhands.schedules.looping import Loop, looped
from manyhands.schedules.refusal import refuse_small, refuse_uneven, rounds
from manyhands.schedules.table import Table


def zero_bubble(stages: int, microbatches: int, ranks: int) -> Table:
    """Only the gradient that the stage before waits for is computed at once; the rest fills gaps.

    Rank r postpones the parameters' gradients of its first r microbatches, which are then computed
    where it would wait. With equal times for forward and each half, p ranks of one stage are idle
    for (p − 1)/(3·m + p − 1) of a step with m microbatches, a third of one_f_one_b's. A rank holds
    at most p microbatches, as the first does under one_f_one_b.

    This is the paper's ZB-H1 (torch says ZB1P), in which all ranks update after the same batch;
    several stages per rank are interleaved.

    Example:
        >>> print(zero_bubble(stages=2, microbatches=3, ranks=2))
        rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
        rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2

    Paper: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.
    """
    refuse_small(stages, microbatches, ranks)
    refuse_uneven(stages, ranks)
    loop = Loop(stages, microbatches, ranks, rounds("zero_bubble", microbatches, ranks))
    return looped(loop, hops=1, halves=True)
