"""Seeds for single purposes, derived from the seed of a run."""

from __future__ import annotations


def mix(seed: int, *words: int) -> int:
    """A seed for one purpose, from the run's seed and words that identify the purpose.

    Adjacent seeds must not give related streams, hence splitmix64 instead of a sum; the seed is
    mixed before the first word is added, or (0, 1) and (1, 0) would give the same result.
    """
    mask = (1 << 64) - 1
    state = 0
    for word in (seed, *words):
        state = (state ^ (word & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1
