"""Payloads that no encoder wrote: refused by CodecError or decoded, and nothing else."""

import contextlib
import random
import tracemalloc
from collections.abc import Iterator

import pytest
import torch

from manyhands.codecs import Codec, CodecError

SIZES = (0, 1, 3, 64, 1000)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
GUARD = 16


def hostile(true: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Random bytes, or a true payload that was cut, extended or changed in some bits."""
    kind = draw.choice(["random", "length", "cut", "extended", "flipped", "flipped", "word"])
    size = true.numel()
    if kind in {"random", "length"}:
        length = size if kind == "random" else draw.randrange(2 * size + 20)
        return torch.tensor(list(draw.randbytes(length)), dtype=torch.uint8)
    if kind == "cut":
        return true[: draw.randrange(size + 1)].clone()
    if kind == "extended":
        return torch.cat([true, torch.randint(0, 256, (draw.randint(1, 9),)).to(torch.uint8)])
    changed = true.clone()
    if kind == "word" and size >= 8:  # a number that lies: a count, a length, a scale
        start = draw.randrange(min(size - 7, 32))
        lie = draw.choice([2**64 - 1, 2**63, 2**32, 10**6, 0x7FF0000000000000, 0x7F8000007F800000])
        changed[start : start + 8] = torch.tensor(list(lie.to_bytes(8, "little"))).to(torch.uint8)
    for _ in range(draw.randint(1, 8) if size else 0):
        changed[draw.randrange(size)] ^= 1 << draw.randrange(8)
    return changed


def decode_guarded(codec: Codec, payload: torch.Tensor, size: int, dtype: torch.dtype) -> bool:
    """Whether it was decoded; nothing beside the vector is written, and every element of it is."""
    found = []
    for fill in (1.5, -7.0):
        room = torch.full((size + 2 * GUARD,), fill, dtype=dtype)
        into = room[GUARD : GUARD + size]
        try:
            codec.decode(payload, into)
        except CodecError:
            return False
        assert (room[:GUARD] == fill).all()
        assert (room[GUARD + size :] == fill).all()
        found.append(into.clone().view(torch.uint8))
    assert torch.equal(found[0], found[1])
    return True


def attack(codec: Codec, number: int) -> Iterator[bool]:
    draw = random.Random(str(codec))  # noqa: S311 - the same payloads every time
    for index in range(number):
        size, dtype = draw.choice(SIZES), draw.choice(DTYPES)
        if index % 5 == 0:
            true_size, true_dtype = size, dtype
            true = codec.encode(torch.randn(size).to(dtype), seed=index)
        yield decode_guarded(codec, hostile(true, draw), true_size, true_dtype)


def test_hostile_payloads_are_refused_or_decoded(codec: Codec) -> None:
    refused = sum(not decoded for decoded in attack(codec, 80))  # of 38 codecs: 3,040
    assert refused > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_hostile_payloads_are_refused_or_decoded(codec: Codec) -> None:
    refused = sum(not decoded for decoded in attack(codec, 2700))  # of 38 codecs: 102,600
    assert refused > 0


def test_memory_does_not_grow_with_numbers_in_a_payload(codec: Codec) -> None:
    draw = random.Random(7)  # noqa: S311
    size = 1000
    true = codec.encode(torch.randn(size), seed=1)
    into = torch.empty(size)
    codec.decode(true, into)  # what is loaded once is loaded now
    payloads = [hostile(true, draw) for _ in range(25)]
    tracemalloc.start()
    try:
        for payload in payloads:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(CodecError):
                codec.decode(payload, into)
            peak = tracemalloc.get_traced_memory()[1] - before
            # Ten positions of 8 bytes per element, tables of a few kB, and copies of the payload.
            assert peak < 80 * size + 4 * payload.numel() + 100_000
    finally:
        tracemalloc.stop()
