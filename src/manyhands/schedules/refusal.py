"""What no schedule, or none of its sort, can be made for."""


def refuse_small(stages: int, microbatches: int, ranks: int) -> None:
    """Raise ValueError unless there is at least one of each."""
    for name, value in (("stages", stages), ("microbatches", microbatches), ("workers", ranks)):
        if value < 1:
            raise ValueError(f"a pipeline needs at least 1 of its {name}, not {value}")


def refuse_uneven(stages: int, ranks: int) -> None:
    """Raise ValueError unless every rank has as many stages."""
    if stages % ranks:
        more = (stages // ranks + 1) * ranks
        raise ValueError(
            f"{stages} stages cannot be shared evenly by {ranks} workers; "
            f"take {more} stages, or a number of workers that divides {stages}"
        )


def refuse_several(name: str, stages: int, ranks: int) -> None:
    """Raise ValueError if a rank would have more than one stage, under a schedule for one."""
    if stages != ranks:
        raise ValueError(
            f"{name} gives each worker one stage: {stages} stages need {stages} workers, "
            f"not {ranks}; for several stages per worker use interleaved or zero_bubble"
        )


def rounds(name: str, microbatches: int, ranks: int) -> int:
    """In how many rounds the microbatches pass, each about as large as there are ranks.

    A rank works through a round in one of its stages before it turns to the next, so rounds are
    equally large, or ValueError says which numbers fit.
    """
    number = max(1, microbatches // ranks)
    if microbatches % number:
        below = microbatches - microbatches % ranks
        raise ValueError(
            f"{name} passes microbatches in rounds of equal size, and {microbatches} cannot be "
            f"shared by {number} rounds on {ranks} workers; "
            f"take {below} or {below + ranks} microbatches"
        )
    return number
