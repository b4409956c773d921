"""The obvious expression of each codec in torch, as a yardstick for `encoding`.

They pack nothing into bits that torch does not pack, and check nothing.
"""

import zlib
from collections.abc import Callable
from typing import Any

import torch

Encode = Callable[[torch.Tensor], Any]
Decode = Callable[[Any, torch.Tensor], object]


def rounded(dtype: torch.dtype) -> tuple[Encode, Decode]:
    return lambda x: x.to(dtype), lambda sent, into: into.copy_(sent)


def quantised(levels: int, block: int, euclidean: bool = False) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.view(-1, block)
        norm = rows.norm(dim=1, keepdim=True) if euclidean else rows.abs().amax(1, keepdim=True)
        scale = norm / levels
        return scale, torch.floor(rows / scale + torch.rand_like(rows)).to(torch.int8)

    def decode(sent: tuple[torch.Tensor, torch.Tensor], into: torch.Tensor) -> None:
        into.copy_((sent[1].float() * sent[0]).view(-1))

    return encode, decode


def halves(levels: int, block: int) -> tuple[Encode, Decode]:
    first, second = quantised(levels, block)

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, codes = first(x)
        codes = (codes.view(-1) + levels).to(torch.uint8)
        return scale, codes[::2] | codes[1::2] << 4

    def decode(sent: tuple[torch.Tensor, torch.Tensor], into: torch.Tensor) -> None:
        codes = torch.stack([sent[1] & 15, sent[1] >> 4], dim=1).to(torch.int8) - levels
        second((sent[0], codes.view(-1, block)), into)

    return encode, decode


def signs(block: int) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.view(-1, block).abs().mean(1, keepdim=True), x.view(-1, block) < 0

    def decode(sent: tuple[torch.Tensor, torch.Tensor], into: torch.Tensor) -> None:
        into.copy_(torch.where(sent[1], -sent[0], sent[0]).view(-1))

    return encode, decode


def placed(sent: tuple[torch.Tensor, torch.Tensor], into: torch.Tensor) -> None:
    into.zero_()
    into[sent[0]] = sent[1]


def largest(fraction: float) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = x.abs().topk(round(fraction * x.numel())).indices
        return chosen, x[chosen]

    return encode, placed


def drawn(fraction: float) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randperm(x.numel())[: round(fraction * x.numel())]
        return chosen, x[chosen]

    return encode, placed


def of_chunks(chunk: int, fraction: float) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.view(-1, chunk)
        chosen = rows.abs().topk(round(fraction * chunk), dim=1).indices
        return chosen, rows.gather(1, chosen)

    def decode(sent: tuple[torch.Tensor, torch.Tensor], into: torch.Tensor) -> None:
        into.zero_()
        into.view(-1, chunk).scatter_(1, *sent)

    return encode, decode


def beyond(density: float) -> tuple[Encode, Decode]:
    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size = x.abs()
        tau = size.kthvalue(round((1 - density) * x.numel())).values
        chosen = (size >= tau).nonzero().view(-1)
        return chosen, x[chosen].sign() * tau

    return encode, placed


def chained(fraction: float, block: int) -> tuple[Encode, Decode]:
    select, _ = largest(fraction)
    first, second = quantised(127, block)

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, Any, int]:
        chosen, numbers = select(x)
        rest = -numbers.numel() % block
        return chosen, first(torch.nn.functional.pad(numbers, (0, rest))), numbers.numel()

    def decode(sent: tuple[torch.Tensor, Any, int], into: torch.Tensor) -> None:
        numbers = into.new_empty(sent[1][1].numel())
        second(sent[1], numbers)
        placed((sent[0], numbers[: sent[2]]), into)

    return encode, decode


def deflated(level: int) -> tuple[Encode, Decode]:
    def decode(sent: bytes, into: torch.Tensor) -> None:
        into.copy_(torch.frombuffer(bytearray(zlib.decompress(sent)), dtype=into.dtype))

    return lambda x: zlib.compress(x.numpy().tobytes(), level), decode


NAIVE: dict[str, tuple[Encode, Decode]] = {
    "half()": rounded(torch.float16),
    "bfloat16()": rounded(torch.bfloat16),
    "int8()": quantised(127, 1024),
    "int4()": halves(7, 256),
    "qsgd()": quantised(7, 512, euclidean=True),
    "ternary()": quantised(1, 512),
    "onebit()": signs(1024),
    "threshold(density=0.01)": beyond(0.01),
    "topk()": largest(0.01),
    "randomk(feedback=true)": drawn(0.01),
    "chunked_topk()": of_chunks(4096, 0.0156),
    "chain(a=topk(), b=int8())": chained(0.01, 1024),
    "exact()": (torch.clone, lambda sent, into: into.copy_(sent)),
    "deflate()": deflated(1),
}
"""By the canonical text of a codec."""
