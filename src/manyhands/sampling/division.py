"""Even division of items among workers."""


def part(total: int, rank: int, workers: int) -> slice:
    """The part of `total` items for `rank`: sizes differ by one at most.

    >>> [part(5, rank, 3) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size, extra = divmod(total, workers)
    start = rank * size + min(rank, extra)
    return slice(start, start + size + (rank < extra))


def nested(total: int, rank: int, workers: int, copies: int) -> slice:
    """The part of a worker, if items are first divided among groups of consecutive ranks.

    >>> [nested(6, rank, 4, 2) for rank in range(4)]
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    copy, place = divmod(rank, workers // copies)
    whole = part(total, copy, copies)
    own = part(whole.stop - whole.start, place, workers // copies)
    return slice(whole.start + own.start, whole.start + own.stop)
