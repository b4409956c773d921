"""Parsing of bandwidths and times, such as `100mbit` and `0.5ms`."""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(
    r"\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*([a-z]*)\s*(?:/\s*s|ps)?\s*", re.IGNORECASE
)
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "": 1.0}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def bandwidth(source: str | float) -> float:
    """Bytes per second; a number without a unit is in bytes per second.

    >>> bandwidth("100mbit"), bandwidth("1.5GB/s"), bandwidth(2e6)
    (12500000.0, 1500000000.0, 2000000.0)
    """
    if not isinstance(source, str):
        return _positive("bandwidth", float(source), source)
    number, unit = _split(source)
    if unit in _BITS:
        return _positive("bandwidth", number * _BITS[unit] / 8, source)
    if unit in _BYTES:
        return _positive("bandwidth", number * _BYTES[unit], source)
    raise ValueError(f"expected a bandwidth such as '100mbit' or '1.5GB/s', got {source!r}")


def seconds(source: str | float) -> float:
    """Seconds; a number without a unit is in seconds.

    >>> seconds("0.5ms"), seconds("2s"), seconds(0.25)
    (0.0005, 2.0, 0.25)
    """
    if not isinstance(source, str):
        number, unit = float(source), ""
    else:
        number, unit = _split(source)
    if unit not in _SECONDS or not 0 <= number < math.inf:
        raise ValueError(f"expected a time such as '0.5ms', '20us' or '1s', got {source!r}")
    return number * _SECONDS[unit]


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if not match:
        return math.nan, "?"
    return float(match[1] + (match[2] or "")), match[3].lower()


def _positive(name: str, value: float, source: str | float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, got {source}")
    return value
