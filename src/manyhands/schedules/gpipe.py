"""GPipe: all forwards, then all backwards."""

from manyhands.schedules.refusal import refuse_several, refuse_small
from manyhands.schedules.table import Action, Table


def gpipe(stages: int, microbatches: int, ranks: int) -> Table:
    """Every stage computes all microbatches forward, then all of them backward, then updates.

    Of p stages and m microbatches each rank is idle for (p − 1)/(m + p − 1) of a step, and holds
    the activations of all m.

    Example:
        >>> print(gpipe(stages=2, microbatches=3, ranks=2))
        rank 0: 0F0 0F1 0F2 0B0 0B1 0B2
        rank 1: 1F0 1F1 1F2 1B0 1B1 1B2

    Paper: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, NeurIPS 2019.
    """
    refuse_small(stages, microbatches, ranks)
    refuse_several("gpipe", stages, ranks)
    order = range(microbatches)
    return Table(
        stages,
        microbatches,
        tuple(
            (
                *(Action("forward", stage, number) for number in order),
                *(Action("backward", stage, number) for number in order),
            )
            for stage in range(stages)
        ),
    )
