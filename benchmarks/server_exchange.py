"""Push, apply and pull with a given gradient: ours against a bare ZeroMQ exchange."""

import os
import tempfile
from pathlib import Path

from benchmarks import server_bare, server_ours
from benchmarks.figures import median_interval
from benchmarks.peers.work import WORKERS
from benchmarks.server_sides import Forked, Pair, forked

TURNS = {("1M", 1): 128, ("1M", 2): 128, ("10M", 1): 13, ("10M", 2): 27}
"""Exchanges of each worker in a turn, by model and servers: as many as a journal holds or more, so
that every turn has its share of snapshots."""

SIDES = ("bare", "ours", "unjournaled", "sent")
"""Bare ZeroMQ; ours as it is on one host; without its journal; and with all bytes sent, as between
hosts."""


def measure(size: str, servers: int, blocks: int, share: int) -> dict[str, object]:
    """The ratios ours / bare, with and without the journal, over so many palindromic blocks.

    Args:
        size: the model's.
        servers: how many hold it.
        blocks: how many times bare, ours, ours without a journal, and all that backwards.
        share: into how many parts a turn is cut, to be done with it sooner.
    """
    os.environ["SERVER_MODEL"] = size
    steps = max(2, TURNS[size, servers] // share)
    with tempfile.TemporaryDirectory() as name:
        pairs, processes = _sides(Path(name), servers)
        with forked(processes) as started:
            for pair in pairs:
                pair.wait_ready(started)
                pair.rate(steps)
            # Seconds per exchange in every block: their times add up, not their rates.
            times: dict[str, list[float]] = {pair.name: [] for pair in pairs}
            for _ in range(blocks):
                block = {pair.name: 0.0 for pair in pairs}
                for pair in (*pairs, *reversed(pairs)):
                    block[pair.name] += 0.5 / pair.rate(steps)
                for pair in pairs:
                    times[pair.name].append(block[pair.name])
    return _figures(size, servers, steps, times)


def _sides(folder: Path, servers: int) -> tuple[list[Pair], list[Forked]]:
    """The sides and their processes, not yet started."""
    pairs, processes = [], []
    driver = os.getpid()
    counts: list[int] = []
    for name in SIDES:
        home = folder / name
        home.mkdir()
        pair = Pair(name, home)
        pairs.append(pair)
        durability = "none" if name == "unjournaled" else "process"
        assignment = server_ours.assign(home, servers, durability)
        counts = counts or server_ours.elements(assignment)
        addresses = assignment.servers
        for number in range(servers):
            if name == "bare":
                given = (driver, addresses[number], counts[number])
                processes.append(Forked(target=server_bare.serve, args=given))
            else:
                processes.append(Forked(target=server_ours.serve, args=(assignment, number)))
        for rank, path in enumerate(pair.paths):
            if name == "bare":
                given = (driver, path, addresses, counts)
                processes.append(Forked(target=server_bare.work, args=given))
            else:
                processes.append(
                    Forked(target=server_ours.work, args=(assignment, rank, path, name != "sent"))
                )
    return pairs, processes


def _figures(
    size: str, servers: int, steps: int, times: dict[str, list[float]]
) -> dict[str, object]:
    figures: dict[str, object] = {"blocks": len(times["bare"]), "exchanges": WORKERS * steps}
    rates = {}
    for name, seconds in times.items():
        rates[name] = median_interval([1 / value for value in seconds])[0]
        figures[f"{name}_per_second"] = rates[name]
    words = []
    for name in SIDES[1:]:
        pairs = zip(times["bare"], times[name], strict=True)
        middle, low, high = median_interval([bare / ours for bare, ours in pairs])
        figures[name] = {"ratio": middle, "low": low, "high": high}
        words.append(f"{rates[name]:8.1f}  {middle:.3f} ({low:.3f} … {high:.3f})")
    print(f"{size:>4} {servers:8}  {rates['bare']:8.1f}  {'  '.join(words)}", flush=True)
    return figures


HEADING = (
    "  parameters, servers; exchanges/s of both workers: bare; and with the ratio to it (95 %): "
    "ours; ours without journal; ours where no memory is shared"
)
