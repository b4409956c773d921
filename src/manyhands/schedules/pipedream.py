"""PipeDream: one forward, one backward, with an update after each; the pipeline never drains."""

from manyhands.schedules.one_f_one_b import alternate
from manyhands.schedules.refusal import refuse_several, refuse_small
from manyhands.schedules.table import Table


def pipedream(stages: int, microbatches: int, ranks: int) -> Table:
    """The order of `one_f_one_b` over a continuous stream of microbatches.

    Every backward is followed by an update of its stage, so no stage waits for a batch to be
    complete, and the only idle times are at the beginning and the end of the stream of
    `microbatches`. On stage s of p, parameters are p − 1 − s updates newer in a microbatch's
    backward than in its forward; the stage computes the gradient with the parameters of the
    forward, which it has stashed, at most p − s versions.

    Example:
        >>> print(pipedream(stages=2, microbatches=3, ranks=2))
        rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
        rank 1: 1F0 1B0 1F1 1B1 1F2 1B2

    Paper: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP
    2019.
    """
    refuse_small(stages, microbatches, ranks)
    refuse_several("pipedream", stages, ranks)
    return Table(
        stages,
        microbatches,
        tuple(
            tuple(alternate(stage, min(microbatches, ahead(stage, stages)), microbatches))
            for stage in range(stages)
        ),
    )


def ahead(stage: int, stages: int) -> int:
    """How many forwards a stage is ahead of its backwards: the staleness of its updates."""
    return stages - 1 - stage
