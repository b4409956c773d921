"""Stochastic rounding to a few levels per block of a vector.

The vector is worked on in ranges of blocks, whose elements stay in the cache from the first
operation to the last. A payload is the scales of all blocks, then the codes of each range.
"""

import numpy as np
import torch

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Bytes, Floats, check_length, numbers, raw, read
from manyhands.codecs.kernels.digits import pack, unpack
from manyhands.codecs.kernels.noise import Noise
from manyhands.codecs.kernels.sizes import BlockRange, Grid, block_bytes, block_ranges


def encode(vector: torch.Tensor, grid: Grid, seed: int, rest: torch.Tensor | None) -> torch.Tensor:
    """The payload of a vector; what was not sent is left in `rest`, which is the vector or None."""
    values = numbers(vector)
    tensor = torch.from_numpy(values)
    parts = tuple(block_ranges(values.size, grid.block))
    payload, scales, done = new_payload(values, grid.block, grid.per_byte)
    longest = max((part.length for part in parts), default=0)
    noise = Noise(seed, len(parts), longest, values.dtype, grid.levels)
    room, codes = np.empty(longest, values.dtype), np.empty(longest, np.uint8)
    for index, part in enumerate(parts):
        flat = room[: part.length]
        own, work = rows(tensor, part), torch.from_numpy(flat).view(-1, part.width)
        scale, inverse = _scales(own, work, grid)
        scales[part.blocks] = scale
        torch.mul(own, torch.from_numpy(inverse).view(-1, 1), out=work)
        np.add(flat, noise.of(index, part.length), out=flat)
        np.copyto(codes[: part.length], flat, casting="unsafe")  # truncated: x / s + u + levels ≥ 0
        end = done - (-part.length // grid.per_byte)
        pack(codes[: part.length], grid.base, grid.per_byte, payload[done:end])
        done = end
        if rest is not None:
            _expand(codes[: part.length], scale, grid, work)
            rest[part.start : part.stop].sub_(work.view(-1).to(rest.dtype))
    return torch.from_numpy(payload)


def decode(payload: torch.Tensor, grid: Grid, into: torch.Tensor) -> None:
    """Write scale · code to every element."""
    size, data = into.numel(), raw(payload)
    wide = into.dtype in {torch.float32, torch.float64}
    scales, done = read_scales(data, into, grid.block, grid.per_byte, grid.levels)
    parts = tuple(block_ranges(size, grid.block))
    longest = max((part.length for part in parts), default=0)
    codes, room = np.empty(longest, np.uint8), np.empty(0 if wide else longest, scales.dtype)
    for part in parts:
        end = done - (-part.length // grid.per_byte)
        unpack(data[done:end], grid.base, grid.per_byte, codes[: part.length])
        done = end
        if wide:
            _expand(codes[: part.length], scales[part.blocks], grid, rows(into, part))
        else:
            work = torch.from_numpy(room[: part.length])
            _expand(codes[: part.length], scales[part.blocks], grid, work.view(-1, part.width))
            into[part.start : part.stop].copy_(work)


def rows(tensor: torch.Tensor, part: BlockRange) -> torch.Tensor:
    """The blocks of a part, one in each row."""
    return tensor[part.start : part.stop].view(-1, part.width)


def new_payload(values: Floats, block: int, per_byte: int) -> tuple[Bytes, Floats, int]:
    """Memory for a payload, its scales as numbers, and where its codes begin."""
    itemsize, blocks = values.dtype.itemsize, -(-values.size // block)
    payload = np.empty(block_bytes(values.size, block, per_byte, itemsize), np.uint8)
    begin = blocks * itemsize
    return payload, payload[:begin].view(values.dtype), begin


def read_scales(
    data: Bytes, into: torch.Tensor, block: int, per_byte: int, levels: int
) -> tuple[Floats, int]:
    """The scales of a payload, and where its codes begin.

    Raises:
        CodecError: the payload has another length, or scales that no encoder writes.
    """
    dtype = np.dtype(np.float64 if into.dtype == torch.float64 else np.float32)
    check_length(data, block_bytes(into.numel(), block, per_byte, dtype.itemsize))
    blocks = -(-into.numel() // block)
    scales = read(data, dtype, blocks)
    with np.errstate(over="ignore", invalid="ignore"):
        largest = scales * levels
    if not ((largest >= 0) & (largest < np.inf)).all():
        raise CodecError("a scale is negative, NaN or too large")
    return scales, blocks * dtype.itemsize


def refuse() -> ValueError:
    """The error for a vector whose blocks have no finite scale."""
    return ValueError(
        "the vector has numbers that are NaN, infinite, or too large for the scale of their block; "
        "lower the learning rate or clip the gradient"
    )


def _scales(blocks: torch.Tensor, work: torch.Tensor, grid: Grid) -> tuple[Floats, Floats]:
    """The scale of each block, such that no number exceeds `levels` times it, and its inverse.

    Both are 0 for blocks whose numbers are so small that the inverse would be infinite.
    """
    if grid.norm == "largest":
        torch.abs(blocks, out=work)
        norm: Floats = torch.amax(work, 1).numpy()
    else:
        norm = _euclidean(blocks, work)
    limits = np.finfo(norm.dtype)
    margin = 1 + 8 * float(limits.eps)
    if not float(norm.max()) <= float(limits.max) / margin**2:
        raise refuse()
    scale: Floats = norm * norm.dtype.type(margin / grid.levels)
    smallest = limits.tiny * 8
    if scale.min() >= smallest:
        return scale, 1 / scale
    scale[scale < smallest] = 0
    return scale, np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)


def _euclidean(blocks: torch.Tensor, work: torch.Tensor) -> Floats:
    """The Euclidean norm of each block."""
    array, room = numbers(blocks), numbers(work)
    limits = np.finfo(array.dtype)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        np.multiply(array, array, out=room)
        norm: Floats = np.sqrt(np.add.reduce(room, axis=1))
        exact = (norm > float(limits.tiny) ** 0.5 / limits.eps) & (norm < np.inf)
        if not exact.all():  # squares of some numbers are 0 or infinite
            for row in np.flatnonzero(~exact & (array != 0).any(axis=1)):
                largest = np.abs(array[row]).max()
                shares = array[row] / largest
                norm[row] = largest * np.sqrt(np.add.reduce(shares * shares))
    return norm


def _expand(codes: Bytes, scale: Floats, grid: Grid, out: torch.Tensor) -> None:
    """Write scale · (code − levels); the codes are overwritten."""
    np.subtract(codes, np.uint8(grid.levels), out=codes)
    np.copyto(numbers(out.view(-1)), codes.view(np.int8))
    torch.mul(out, torch.from_numpy(scale).view(-1, 1), out=out)
