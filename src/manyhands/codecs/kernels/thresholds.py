"""Numbers beyond a threshold.

A payload is the number of positions, the magnitude that is decoded if the receiver does not know
it, the positions and the signs.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Floats, Positions, check_length, numbers, raw
from manyhands.codecs.kernels.digits import pack_planes, unpack_planes
from manyhands.codecs.kernels.largest import beyond, estimate, largest
from manyhands.codecs.kernels.positions import read_positions, write_positions
from manyhands.codecs.kernels.quantising import refuse
from manyhands.codecs.kernels.sizes import plane_bytes, position_bytes, scale_bytes

_COUNT = 8
"""Bytes of the number of positions."""


def encode(
    vector: torch.Tensor, tau: float | None, density: float | None, most: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The payload, the positions that are sent, and what is decoded there."""
    values = numbers(vector)
    if density is None:
        tau = _rounded(tau or 0.0, vector.dtype)
        if not 0 < tau < math.inf:
            raise ValueError(f"tau is {tau} as a number of {vector.dtype}; choose another")
        chosen = beyond(values, tau)
        head = []
    else:
        chosen = _densest(values, density, most)
        # The mean, which has the least squared error of all that could be decoded for them.
        mean = np.abs(values[chosen]).mean(dtype=np.float64) if chosen.size else 0.0
        tau = _rounded(float(mean), vector.dtype)
        head = [np.array([tau], values.dtype).view(np.uint8)]
    if not np.isfinite(values[chosen]).all():
        raise refuse()
    negative = values[chosen] < 0
    parts = [
        np.array([chosen.size], "<u8").view(np.uint8),
        *head,
        write_positions(chosen, values.size),
        pack_planes(negative.astype(np.uint8), 1),
    ]
    payload = torch.from_numpy(np.concatenate(parts))
    return payload, torch.from_numpy(chosen), _signed(negative, tau, vector.dtype)


def decode(
    payload: torch.Tensor, tau: float | None, most: int, into: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions, and what is decoded there."""
    data, size = raw(payload), into.numel()
    width = scale_bytes(into.itemsize)
    begin = _COUNT if tau is not None else _COUNT + width
    if data.size < begin:
        raise CodecError(f"expected at least {begin} bytes, got {data.size}")
    count = int(data[:_COUNT].copy().view("<u8")[0])
    if count > most:
        raise CodecError(f"expected at most {most} positions, got {count}")
    end = begin + position_bytes(count, size)
    check_length(data, end + plane_bytes(count, 1))
    if tau is None:
        sent = float(data[_COUNT:begin].copy().view(f"<f{width}")[0])
        tau = _rounded(sent, into.dtype)
        if not 0 <= sent < math.inf or tau != sent:
            raise CodecError(f"no threshold of {into.dtype}: {sent}")
    else:
        tau = _rounded(tau, into.dtype)
    positions = read_positions(data[begin:end], count, size)
    negative = unpack_planes(data[end:], 1, count) != 0
    return torch.from_numpy(positions), _signed(negative, tau, into.dtype)


def _densest(values: Floats, density: float, most: int) -> Positions:
    """The positions of about a share of the numbers, the largest."""
    if not values.size:
        return np.empty(0, np.int64)
    tau = estimate(values, density)
    chosen = beyond(values, tau) if tau > 0 else np.flatnonzero(values)
    if chosen.size > most:
        chosen = chosen[largest(values[chosen], most)]
    return chosen


def _rounded(tau: float, dtype: torch.dtype) -> float:
    """The nearest number of the vector's dtype."""
    return float(torch.tensor(tau, dtype=torch.float64).to(dtype))


def _signed(negative: NDArray[np.bool_], tau: float, dtype: torch.dtype) -> torch.Tensor:
    """−τ or τ."""
    return torch.from_numpy(np.where(negative, -tau, tau)).to(dtype)
