"""Clock offsets between hosts, estimated from round trips of messages."""

import math
from collections.abc import Iterable

from manyhands.trace.records import Offset


def estimate_offset(exchanges: Iterable[tuple[float, float, float]]) -> Offset:
    """The other clock minus the own clock, from exchanges (sent, there, back).

    `sent` and `back` are read from the own clock, `there` from the other clock at some moment in
    between. The message cannot have arrived before it was sent, nor after its answer came back, so

        there − back  ≤  offset  ≤  there − sent

    for any delays; the middle is the estimate, and half the round trip bounds its error. The
    exchange with the shortest round trip has the smallest bound and is used, as in NTP (RFC 5905).

    >>> estimate_offset([(10.0, 115.0, 12.0), (20.0, 120.75, 20.5)]).seconds
    100.5
    """
    shortest: tuple[float, float, float] | None = None
    for sent, there, back in exchanges:
        if back < sent:
            raise ValueError(
                f"the answer came back at {back}, before the message was sent at {sent}: read both "
                "from one monotonic clock, such as time.monotonic"
            )
        if shortest is None or back - sent < shortest[2] - shortest[0]:
            shortest = (sent, there, back)
    if shortest is None:
        raise ValueError("expected at least 1 exchange to estimate an offset from, got 0")
    sent, there, back = shortest
    # Three roundings of numbers as large as the clock values.
    rounding = 4 * math.ulp(max(abs(sent), abs(there), abs(back)))
    return Offset(back, there - (sent + back) / 2, (back - sent) / 2 + rounding)
