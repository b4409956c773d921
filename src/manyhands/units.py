"""Bandwidths, times, sizes and counts as text, such as `100mbit` and `0.5ms`."""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(
    r"\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*([a-z]*)\s*(?:/\s*s|ps)?\s*", re.IGNORECASE
)
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "": 1.0}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def bandwidth(source: str | float) -> float:
    """Bytes per second, of a text with its unit; a number is in bytes per second.

    >>> bandwidth("100mbit"), bandwidth("1.5GB/s"), bandwidth(2e6)
    (12500000.0, 1500000000.0, 2000000.0)
    """
    if not isinstance(source, str):
        return _positive("bandwidth", float(source), source)
    number, unit = _split(source)
    if unit in _BITS:
        return _positive("bandwidth", number * _BITS[unit] / 8, source)
    if unit in _BYTES and unit:
        return _positive("bandwidth", number * _BYTES[unit], source)
    if not unit:
        # Bits and bytes, thousands and millions are all written so: a guess would be wrong.
        bare = source.strip()
        raise ValueError(
            f"the bandwidth {bare!r} has no unit: write {bare}mbit for megabits per second, or "
            f"{bare}MB/s for megabytes"
        )
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


def size(source: str | float) -> float:
    """Bytes; a number without a unit is in bytes.

    >>> size("4KB"), size("1.5 GB"), size(100)
    (4000.0, 1500000000.0, 100.0)
    """
    if not isinstance(source, str):
        return _positive("size", float(source), source)
    number, unit = _split(source)
    if unit not in _BYTES or _is_rate(source):
        raise ValueError(f"expected a size such as '4KB', '100MB' or '1GB', got {source!r}")
    return _positive("size", number * _BYTES[unit], source)


def count(source: str | float) -> int:
    """A number of things, such as parameters: with k, M, G (or B, for billions) or T.

    >>> count("25.6M"), count("1.5B"), count("64")
    (25600000, 1500000000, 64)
    """
    number, unit = _split(source) if isinstance(source, str) else (float(source), "")
    whole = number * _COUNTS.get(unit, math.nan)
    is_whole = 1 <= whole < 1e18 and math.isclose(whole, round(whole), rel_tol=1e-12)
    if not is_whole or _is_rate(source):
        raise ValueError(f"expected a whole number such as '64', '25.6M' or '1.5B', got {source!r}")
    return round(whole)


def bandwidth_text(value: float) -> str:
    """The text of a bandwidth in bytes per second, which `bandwidth` reads as the same number.

    >>> bandwidth_text(12.5e6), bandwidth_text(1e9)
    ('100mbit', '8gbit')
    """
    units = [unit for unit, size in _BITS.items() if size <= 8 * value]
    texts = (f"{8 * value / _BITS[unit]:g}{unit}" for unit in reversed(units))
    return next((text for text in texts if bandwidth(text) == value), f"{value!r}b")


def seconds_text(value: float) -> str:
    """The text of a time in seconds, which `seconds` reads as the same number.

    >>> seconds_text(0.04), seconds_text(seconds("50us")), seconds_text(0.0)
    ('40ms', '50us', '0s')
    """
    units = [unit for unit in ("s", "ms", "us", "ns") if _SECONDS[unit] <= value]
    texts = (f"{value / _SECONDS[unit]:g}{unit}" for unit in units or ["s"])
    return next((text for text in texts if seconds(text) == value), f"{value!r}s")


def size_text(value: int) -> str:
    """The text of a size in bytes, which `size` reads as the same number.

    >>> size_text(16_000_000_000), size_text(1536)
    ('16GB', '1536B')
    """
    units = [unit for unit in ("tb", "gb", "mb") if _BYTES[unit] <= value]
    texts = (f"{value / _BYTES[unit]:g}{unit.upper()}" for unit in units)
    return next((text for text in texts if size(text) == value), f"{value}B")


def bandwidth_words(value: float) -> str:
    """A bandwidth in bytes per second, for readers.

    >>> bandwidth_words(12.5e6), bandwidth_words(38.8e6), bandwidth_words(1.54e9)
    ('100 Mbit/s', '310 Mbit/s', '12 Gbit/s')
    """
    amount = 8 * value
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"):
        if amount < 999.5 or unit == "Tbit/s":
            break
        amount /= 1000
    return f"{_two_digits(amount)} {unit}"


def seconds_words(value: float) -> str:
    """A short time in seconds, for readers.

    >>> seconds_words(0.00123), seconds_words(0.0452), seconds_words(3.2), seconds_words(0)
    ('1.2 ms', '45 ms', '3.2 s', '0 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= 0.9995 * size:
            return f"{_two_digits(value / size)} {unit}"
    return f"{_two_digits(value / 1e-6)} µs" if value else "0 s"


def _two_digits(amount: float) -> str:
    """At least two digits, and no exponent."""
    return f"{amount:,.0f}" if abs(amount) >= 99.5 else f"{amount:.2g}"


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if not match:
        return math.nan, "?"
    return float(match[1] + (match[2] or "")), match[3].lower()


def _is_rate(source: str | float) -> bool:
    return isinstance(source, str) and source.rstrip().lower().endswith("s")


def _positive(name: str, value: float, source: str | float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, got {source}")
    return value


def counted(number: int, noun: str) -> str:
    """A number of things, in words.

    >>> counted(1, "worker"), counted(2000, "worker")
    ('1 worker', '2,000 workers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
