"""Clocks of different hosts: how far apart they are, from messages there and back."""

import math
from collections.abc import Iterable

from manyhands.trace.records import Offset


def estimate_offset(exchanges: Iterable[tuple[float, float, float]]) -> Offset:
    """The other clock minus the own one, from exchanges (sent, there, back).

    `sent` and `back` are read from the own clock, `there` from the other one at some moment in
    between. The message cannot have arrived before it left nor after its answer came, so

        there − back  ≤  offset  ≤  there − sent

    whatever the delays; the middle is the estimate and half the round trip bounds its error. The
    exchange with the shortest round trip says most and is the one used, as in NTP (RFC 5905).

    >>> estimate_offset([(10.0, 115.0, 12.0), (20.0, 120.75, 20.5)]).seconds
    100.5
    """
    shortest: tuple[float, float, float] | None = None
    for sent, there, back in exchanges:
        if back < sent:
            raise ValueError(
                f"an answer at {back} to a message sent at {sent}: read both from one clock that "
                "never goes back, such as time.monotonic"
            )
        if shortest is None or back - sent < shortest[2] - shortest[0]:
            shortest = (sent, there, back)
    if shortest is None:
        raise ValueError("no exchange to estimate an offset from: make at least one")
    sent, there, back = shortest
    # Three roundings of numbers as large as the clocks themselves.
    rounding = 4 * math.ulp(max(abs(sent), abs(there), abs(back)))
    return Offset(back, there - (sent + back) / 2, (back - sent) / 2 + rounding)
