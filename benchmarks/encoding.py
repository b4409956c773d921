"""How fast codecs encode and decode on one thread, beside the obvious torch expression of each.

Every round runs memcpy of the vector, the naive encode and decode, ours, and `encode_rest`, one
after the other; figures are medians over the rounds, with the quickest and slowest one. GB/s are of
the vector's own bytes. The last column is naive / ours for encode and decode together, the median
of the rounds' ratios with a 95 % interval.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from benchmarks.encoding_naive import NAIVE
from benchmarks.figures import keep, median_interval, report
from manyhands.codecs import CATALOG, Codec

MULTIPLE = 4096
"""Sizes are rounded to whole blocks, which the naive expressions need."""


def took(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def measure(codec: Codec, vector: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds of each part, round by round."""
    naive_encode, naive_decode = NAIVE[str(codec)]
    into, rest = torch.empty_like(vector), vector.clone()
    payload, naive = codec.encode(vector), naive_encode(vector)
    codec.decode(payload, into)
    seconds = defaultdict(list)
    for number in range(rounds):
        seconds["memcpy"].append(took(lambda: into.copy_(vector)))
        seconds["naive_encode"].append(took(lambda: naive_encode(vector)))
        seconds["encode"].append(took(lambda seed=number: codec.encode(vector, seed)))
        seconds["naive_decode"].append(took(lambda: naive_decode(naive, into)))
        seconds["decode"].append(took(lambda: codec.decode(payload, into)))
        rest.copy_(vector)
        seconds["encode_rest"].append(took(lambda seed=number: codec.encode_rest(rest, seed)))
    return seconds


def figures_of(codec: Codec, vector: torch.Tensor, rounds: int) -> dict[str, object]:
    seconds = measure(codec, vector, rounds)
    size = vector.numel() * vector.itemsize
    figures: dict[str, object] = {
        "bytes_per_element": codec.encode(vector).numel() / vector.numel(),
        "gigabytes_per_second": {
            part: [size / 1e9 / one for one in (statistics.median(all_), max(all_), min(all_))]
            for part, all_ in seconds.items()
        },
        "times_memcpy": {
            part: statistics.median(seconds[part]) / statistics.median(seconds["memcpy"])
            for part in ("encode", "decode", "encode_rest")
        },
    }
    parts = zip(*(seconds[part] for part in ORDER), strict=True)
    ratios = [
        (naive_encode + naive_decode) / (encode + decode)
        for naive_encode, naive_decode, encode, decode in parts
    ]
    figures["naive_over_ours"] = median_interval(ratios)
    return figures


ORDER = ("naive_encode", "naive_decode", "encode", "decode")


def show(codec: Codec, figures: dict[str, object]) -> None:
    speeds, times = figures["gigabytes_per_second"], figures["times_memcpy"]
    assert isinstance(speeds, dict)
    assert isinstance(times, dict)
    cells = [
        "{:5.2f} ({:.2f} … {:.2f}) {:5.1f}×".format(*speeds[part], times[part])
        for part in ("encode", "decode", "encode_rest")
    ]
    naive = f"{speeds['naive_encode'][0]:.2f} / {speeds['naive_decode'][0]:.2f}"
    ratio = "{:.1f}× ({:.1f} … {:.1f})".format(*figures["naive_over_ours"])  # type: ignore[misc]
    print(f"{codec!s:26} {' | '.join(cells)} | {naive:13} | {ratio}", flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=10_000_000, help="elements of the vector")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--codecs", nargs="+", default=list(NAIVE), help="some of them")
    parser.add_argument("--keep", action="store_true", help="store the figures in results/")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    size = max(1, round(given.size / MULTIPLE)) * MULTIPLE
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0))
    print(f"{size:,} elements of float32; GB/s: median (slowest … quickest), multiple of memcpy")
    print(f"{'codec':26} encode | decode | encode_rest | naive encode / decode | naive / ours")
    figures: dict[str, object] = {}
    for text in given.codecs:
        codec = CATALOG.read(text)
        found = figures_of(codec, vector, given.rounds)
        figures[str(codec)] = found
        show(codec, found)
    if given.keep:
        keep("encoding", {"size": size, "codecs": figures})
    report("encoding", {"size": size, "codecs": figures})


if __name__ == "__main__":
    main(sys.argv[1:])
