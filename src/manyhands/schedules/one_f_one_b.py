"""One forward, one backward: GPipe's time with a fraction of its memory."""

from manyhands.schedules.refusal import refuse_several, refuse_small
from manyhands.schedules.table import Action, Table


def one_f_one_b(stages: int, microbatches: int, ranks: int) -> Table:
    """After a warm-up every stage alternates: one microbatch forward, one backward.

    Stage s of p begins with p − 1 − s forwards, until the first gradient arrives. It is idle as
    long as under GPipe, and holds at most p − s microbatches instead of all.

    Example:
        >>> print(one_f_one_b(stages=2, microbatches=3, ranks=2))
        rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
        rank 1: 1F0 1B0 1F1 1B1 1F2 1B2

    Paper: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP
    2019; with one update per batch: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN
    Training, ICML 2021.
    """
    refuse_small(stages, microbatches, ranks)
    refuse_several("one_f_one_b", stages, ranks)
    return Table(
        stages,
        microbatches,
        tuple(
            tuple(alternate(stage, min(microbatches, stages - 1 - stage), microbatches))
            for stage in range(stages)
        ),
    )


def alternate(stage: int, ahead: int, microbatches: int) -> list[Action]:
    """A stage's actions: `ahead` forwards, then forwards and backwards in turn, then the rest."""
    actions = [Action("forward", stage, number) for number in range(ahead)]
    for number in range(microbatches):
        if number + ahead < microbatches:
            actions.append(Action("forward", stage, number + ahead))
        actions.append(Action("backward", stage, number))
    return actions
