"""Signs of all numbers and the mean magnitude of each block."""

import numpy as np
import torch

from manyhands.codecs.kernels.arrays import Bytes, Floats, numbers, raw
from manyhands.codecs.kernels.quantising import new_payload, read_scales, refuse, rows
from manyhands.codecs.kernels.sizes import BlockRange, block_ranges

_SIGNS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
"""For each byte, the signs of its eight bits."""


def encode(vector: torch.Tensor, block: int, rest: torch.Tensor | None) -> torch.Tensor:
    """The payload of a vector; what was not sent is left in `rest`, which is the vector or None."""
    values = numbers(vector)
    parts = tuple(block_ranges(values.size, block))
    payload, scales, done = new_payload(values, block, 8)
    expansion = _Expansion(parts, values.dtype)
    negative = np.empty(expansion.longest, np.bool_)
    for part in parts:
        own, work = values[part.start : part.stop], expansion.room[: part.length]
        np.abs(own, out=work)
        with np.errstate(over="ignore"):
            scale = np.add.reduce(work.reshape(-1, part.width), axis=1) / part.width
        if not float(scale.max()) < np.inf:
            raise refuse()
        scales[part.blocks] = scale
        bits = np.packbits(np.less(own, 0, out=negative[: part.length]))
        payload[done : done + bits.size] = bits
        done += bits.size
        if rest is not None:
            sent = expansion.of(bits, scale, part)
            rest[part.start : part.stop].sub_(sent.view(-1).to(rest.dtype))
    return torch.from_numpy(payload)


def decode(payload: torch.Tensor, block: int, into: torch.Tensor) -> None:
    """Write ± scale to every element."""
    data = raw(payload)
    scales, done = read_scales(data, into, block, 8, 1)
    parts = tuple(block_ranges(into.numel(), block))
    expansion = _Expansion(parts, scales.dtype)
    for part in parts:
        end = done - (-part.length // 8)
        rows(into, part).copy_(expansion.of(data[done:end], scales[part.blocks], part))
        done = end


class _Expansion:
    """Bits as numbers, range by range in the same memory."""

    def __init__(self, parts: tuple[BlockRange, ...], dtype: np.dtype[np.floating]) -> None:
        self.longest = max((part.length for part in parts), default=0)
        self.room: Floats = np.empty(-(-self.longest // 8) * 8, dtype)
        self._signs: Floats = _SIGNS.astype(dtype)

    def of(self, bits: Bytes, scale: Floats, part: BlockRange) -> torch.Tensor:
        """The numbers of a part, a block in each row."""
        eights = self.room[: bits.size * 8].reshape(-1, 8)
        np.take(self._signs, bits, axis=0, out=eights, mode="clip")
        sent = torch.from_numpy(self.room[: part.length]).view(-1, part.width)
        return sent.mul_(torch.from_numpy(scale).view(-1, 1))
