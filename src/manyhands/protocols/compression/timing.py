"""Measurement of codecs: bytes, and seconds of encoding and decoding, on given vectors."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from manyhands.codecs import ErrorFeedback
from manyhands.costs import CodingCost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from manyhands.codecs import Codec


def measure(
    codec: Codec,
    updates: Sequence[Sequence[torch.Tensor]],
    clock: Callable[[], float],
    seconds: float,
    rest: Callable[[], object] = lambda: None,
) -> CodingCost:
    """Encode and decode updates one after the other, as one worker's; medians of all but the first.

    Args:
        codec: the codec; its error feedback is part of encoding.
        updates: at least one update, each as one vector per dtype; they are used again and again.
        clock: the time in seconds.
        seconds: go on for this long, and at least until each update was encoded once.
        rest: called before every part that is measured.
    """
    streams = [ErrorFeedback(codec) for _ in updates[0]]
    into = [vector.new_empty(vector.shape) for vector in updates[0]]
    encoding, decoding, sizes = list[float](), list[float](), list[int]()
    begun, number = clock(), 0
    # The first update has no residual, and everything is used for the first time.
    while number <= len(updates) or clock() - begun < seconds:
        update = updates[number % len(updates)]
        rest()
        before = clock()
        payloads = [
            stream.encode(vector, number) for stream, vector in zip(streams, update, strict=True)
        ]
        encoded = clock() - before
        rest()
        before = clock()
        for payload, vector in zip(payloads, into, strict=True):
            codec.decode(payload, vector)
        if number:
            encoding.append(encoded)
            decoding.append(clock() - before)
            sizes.append(sum(payload.numel() for payload in payloads))
        number += 1
    dense = sum(vector.nbytes for vector in updates[0])
    return CodingCost(dense, round(median(sizes)), median(encoding), median(decoding))


def measure_answers(
    codec: Codec,
    updates: Sequence[Sequence[torch.Tensor]],
    clock: Callable[[], float],
    seconds: float,
    rest: Callable[[], object] = lambda: None,
) -> CodingCost:
    """Encode and decode answers of a server, whose parameters move by these updates.

    An answer is the difference to what the worker has. The server decodes it, too, and keeps what
    the worker will have; the worker adds it, and keeps a copy for the next. A codec without loss
    encodes the parameters themselves.

    Args:
        codec: the codec.
        updates: see `measure`.
        clock: the time in seconds.
        seconds: see `measure`.
        rest: see `measure`.
    """
    streams = [ErrorFeedback(codec) for _ in updates[0]]
    parameters = [vector.clone() for vector in updates[0]]
    held = [vector.clone() for vector in parameters]
    there = [vector.clone() for vector in parameters]
    kept = [vector.clone() for vector in parameters]
    into = [vector.new_empty(vector.shape) for vector in parameters]
    encoding, decoding, sizes = list[float](), list[float](), list[int]()
    begun, number = clock(), 0
    while number <= len(updates) or clock() - begun < seconds:
        update = updates[number % len(updates)]
        for at, vector in enumerate(parameters):
            # They move by what is decoded, of which most may be 0.
            codec.decode(streams[at].encode(update[at], number), into[at])
            vector.add_(into[at], alpha=-1e-3)
        rest()
        before, payloads = clock(), []
        for at, vector in enumerate(parameters):
            if codec.lossless:
                payloads.append(codec.encode(vector, number))
                continue
            payloads.append(codec.encode(vector - held[at], number))
            codec.decode(payloads[-1], into[at])
            held[at] = held[at] + into[at]
        encoded = clock() - before
        rest()
        before = clock()
        for at, payload in enumerate(payloads):
            codec.decode(payload, into[at])
            if not codec.lossless:
                there[at].copy_(kept[at]).add_(into[at])
                kept[at].copy_(there[at])
        if number:
            encoding.append(encoded)
            decoding.append(clock() - before)
            sizes.append(sum(payload.numel() for payload in payloads))
        number += 1
    dense = sum(vector.nbytes for vector in parameters)
    return CodingCost(dense, round(median(sizes)), median(encoding), median(decoding))
