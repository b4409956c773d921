"""Zero bubble: the backward in two halves, one of which fills idle times."""

from manyhands.schedules.looping import Loop, looped
from manyhands.schedules.refusal import refuse_small, refuse_uneven, rounds
from manyhands.schedules.table import Table


def zero_bubble(stages: int, microbatches: int, ranks: int) -> Table:
    """Compute input gradients at once; postpone gradients of parameters to idle times.

    Rank r postpones the parameters' gradients of its first r microbatches, and computes them when
    it would be idle. With equal times for the forward and each half, p ranks of one stage are idle
    for (p − 1)/(3·m + p − 1) of a step with m microbatches, a third of one_f_one_b's. A rank holds
    at most p microbatches, as the first rank does under one_f_one_b.

    This is ZB-H1 of the paper (ZB1P in torch), in which all ranks update after the same batch;
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
