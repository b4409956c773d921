"""PipeDream: one forward, one backward, and an update after each; the pipeline never drains."""

from manyhands.schedules.one_f_one_b import alternate
from manyhands.schedules.refusal import refuse_several, refuse_small
from manyhands.schedules.table import Table


def pipedream(stages: int, microbatches: int, ranks: int) -> Table:
    """The order of `one_f_one_b` over a stream that does not end with a batch.

    Every backward is followed by an update of its stage, so no stage ever waits for a batch to be
    complete, and the only idle times are at the beginning and the end of the stream: `microbatches`
    are all of it. A microbatch that went forward through stage s of p finds the parameters
    p − 1 − s updates newer when it comes back; the stage computes its gradient with those it went
    forward with, which it has stashed, at most p − s versions.

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
    """How many forwards a stage is ahead of its backwards, and so how stale its updates are."""
    return stages - 1 - stage
