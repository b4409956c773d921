"""Checks of the numbers of stages, microbatches and ranks."""


def refuse_small(stages: int, microbatches: int, ranks: int) -> None:
    """Raise ValueError unless there is at least one of each."""
    for name, value in (("stages", stages), ("microbatches", microbatches), ("workers", ranks)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def refuse_uneven(stages: int, ranks: int) -> None:
    """Raise ValueError unless all ranks have equally many stages."""
    if stages % ranks:
        more = (stages // ranks + 1) * ranks
        raise ValueError(
            f"{stages} stages are not divisible by {ranks} workers: "
            f"use {more} stages, or a number of workers that divides {stages}"
        )


def refuse_several(name: str, stages: int, ranks: int) -> None:
    """Raise ValueError if a rank has more than one stage, for schedules that allow only one."""
    if stages != ranks:
        raise ValueError(
            f"{name} has one stage per worker: {stages} stages need {stages} workers, "
            f"got {ranks}; for several stages per worker use interleaved or zero_bubble"
        )


def rounds(name: str, microbatches: int, ranks: int) -> int:
    """Number of rounds of microbatches, each with about as many as there are ranks.

    A rank computes a round in one of its stages before it continues with the next, so rounds must
    have equal sizes; otherwise a ValueError names numbers that fit.
    """
    number = max(1, microbatches // ranks)
    if microbatches % number:
        below = microbatches - microbatches % ranks
        raise ValueError(
            f"{name} needs rounds of equal size, and {microbatches} microbatches are not divisible "
            f"by {number} rounds on {ranks} workers: "
            f"use {below} or {below + ranks} microbatches"
        )
    return number
