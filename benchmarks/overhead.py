"""What Manyhands costs: whole training steps per second against a bare script on torch.

DDP on two models, on one of them also with samples that are dictionaries and an objective of the
job's own, and a pipeline of two stages: against torch's class for 1F1B, and against its
engine for tables of any kind, on which ours run.

Two workers each on Gloo, one thread per worker. Both sides are alive all the time and take turns
in ABBA blocks; the figure is the median over blocks of ours / bare, with a 95 % interval.

    python -m benchmarks.overhead --before ../before     # another checkout, with its own .venv

With `--before`, Manyhands as it is in that checkout takes the place of the bare script. Where the
memory of a process lies can cost it a few per cent for as long as it lives, so `--starts 4` starts
both sides four times, each of them first as often as the other.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import median_interval, report
from benchmarks.turnstile import Side

STEPS = {
    "mlp85k": 200,
    "mlp1m": 60,
    "lenet": 60,
    "lenet_dict": 60,
    "mlp10m": 12,
    "pipeline": 24,
    "pipeline_table": 24,
}
SIDES = dict.fromkeys(("pipeline", "pipeline_table"), "benchmarks.pipeline")
"""By model, what the two scripts are called; those of DDP if there are none."""


@contextlib.contextmanager
def started(
    what: str, folder: Path, scripts: str, before: Path | None = None, *, ours_first: bool = False
) -> Iterator[tuple[Side, Side]]:
    """Both sides, ready; their processes are ended at the end, whatever happens."""
    bare, ours = Side("bare", folder), Side("ours", folder)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "OVERHEAD_OF": what}
    processes: list[subprocess.Popen[str]] = []
    try:
        for side in (ours, bare) if ours_first else (bare, ours):
            if side is ours:
                processes.append(_manyhands(None, scripts, common, ours, folder))
            elif before is not None:
                processes.append(_manyhands(before, scripts, common, bare, folder))
            else:
                processes += _bare(scripts, common, bare)
        bare.wait_ready(processes)
        ours.wait_ready(processes)
        yield bare, ours
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _manyhands(
    checkout: Path | None, scripts: str, common: dict[str, str], side: Side, folder: Path
) -> subprocess.Popen[str]:
    """The script on Manyhands, of this checkout or of another one."""
    python = sys.executable if checkout is None else str(checkout / ".venv" / "bin" / "python")
    return subprocess.Popen(
        [python, "-m", f"{scripts}_ours"],
        cwd=checkout,
        env={**common, "TURNSTILE": side.path, "OVERHEAD_OUTPUT": str(folder / side.name)},
        text=True,
        stderr=subprocess.DEVNULL,
    )


def _bare(scripts: str, common: dict[str, str], side: Side) -> list[subprocess.Popen[str]]:
    """The two processes of the bare script."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"{scripts}_bare"],
            env={
                **common,
                "TURNSTILE": side.path,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
            },
            text=True,
        )
        for rank in range(2)
    ]


def measure(
    what: str, steps: int, blocks: int, scripts: str, before: Path | None = None, starts: int = 1
) -> dict[str, object]:
    """The two scripts named so, `_bare` and `_ours`, which are told what to do."""
    ratios, bare_rates, our_rates = [], [], []
    of_starts = []
    for number in range(starts):
        with (
            tempfile.TemporaryDirectory() as name,
            started(what, Path(name), scripts, before, ours_first=number % 2 == 1) as (bare, ours),
        ):
            bare.rate(steps)
            ours.rate(steps)
            found = []
            for _ in range(blocks):
                first, second, third, fourth = (
                    bare.rate(steps),
                    ours.rate(steps),
                    ours.rate(steps),
                    bare.rate(steps),
                )
                bare_rates += [first, fourth]
                our_rates += [second, third]
                # Rates over equal numbers of steps: their times add up, not their rates.
                found.append((1 / first + 1 / fourth) / (1 / second + 1 / third))
        ratios += found
        of_starts.append(round(statistics.median(found), 4))
    median, low, high = median_interval(ratios)
    other = "bare" if before is None else "before"
    print(
        f"{what:16} {other} {median_interval(bare_rates)[0]:7.2f} steps/s   "
        f"ours {median_interval(our_rates)[0]:7.2f} steps/s   "
        f"ratio {median:.3f}  (95 %: {low:.3f} … {high:.3f}, {blocks} ABBA blocks)"
        + (f"; of each start {', '.join(map(str, of_starts))}" if starts > 1 else "")
    )
    return {
        "ratio": median,
        "low": low,
        "high": high,
        "bare_steps_per_second": median_interval(bare_rates)[0],
        "our_steps_per_second": median_interval(our_rates)[0],
        "blocks": blocks,
        "of each start": of_starts,
        "steps_per_turn": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    parser.add_argument("--only", choices=STEPS, help="one model")
    parser.add_argument("--blocks", type=int, default=20, help="more of them narrow the interval")
    parser.add_argument("--starts", type=int, default=1, help="how often both sides are started")
    parser.add_argument("--before", type=Path, help="another checkout, in place of the script")
    chosen = parser.parse_args()
    before = None if chosen.before is None else chosen.before.resolve()
    blocks = 4 if chosen.quick else chosen.blocks
    print("2 workers on each side, one thread each, taking turns")
    models = [chosen.only] if chosen.only else [*STEPS]
    figures = {
        model: measure(
            *(model, STEPS[model], blocks, SIDES.get(model, "benchmarks.overhead")),
            *(before, chosen.starts),
        )
        for model in models
    }
    report("overhead" if before is None else "overhead_before", figures)


if __name__ == "__main__":
    main()
