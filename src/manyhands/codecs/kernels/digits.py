"""Small integers in few bytes: several digits of one base per byte, or planes of bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Bytes


def pack(codes: Bytes, base: int, per_byte: int, out: Bytes) -> None:
    """Write digits, `per_byte` of them in each byte of `out`.

    Byte i holds the digits i, i + w, i + 2w, …, where w is the length of `out`: so all operations
    are on contiguous memory.
    """
    width = out.size
    if per_byte == 1:
        out[:] = codes
        return
    out[:] = 0
    for place in reversed(range(per_byte)):
        digits = codes[place * width : (place + 1) * width]
        np.multiply(out, base, out=out)
        np.add(out[: digits.size], digits, out=out[: digits.size])


def unpack(packed: Bytes, base: int, per_byte: int, codes: Bytes) -> None:
    """Read digits back.

    Raises:
        CodecError: a byte holds more than `per_byte` digits.
    """
    if packed.size and int(packed.max()) >= base**per_byte:
        raise CodecError(f"a byte holds more than {per_byte} digits of base {base}")
    width, left = packed.size, packed
    for place in range(per_byte - 1):
        digits = codes[place * width : (place + 1) * width]
        rest = left // np.uint8(base)
        np.subtract(left[: digits.size], rest[: digits.size] * np.uint8(base), out=digits)
        left = rest
    digits = codes[(per_byte - 1) * width :]
    digits[:] = left[: digits.size]


def pack_planes(values: NDArray[Any], bits: int) -> Bytes:
    """The lowest bits of all integers, then their second lowest, and so on."""
    planes = [np.packbits((values >> place) & 1 != 0) for place in range(bits)]
    return np.concatenate(planes) if planes else np.empty(0, np.uint8)


def unpack_planes(packed: Bytes, bits: int, count: int) -> NDArray[Any]:
    """Read integers from planes of bits: as uint8 if these suffice, else as int64."""
    kind = np.dtype(np.uint8 if bits <= 8 else np.int64)
    values: NDArray[Any] = np.zeros(count, kind)
    for place, plane in enumerate(packed.reshape(bits, -1)):
        own: NDArray[Any] = np.unpackbits(plane, count=count).astype(kind, copy=False)
        values |= own << kind.type(place)
    return values
