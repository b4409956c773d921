"""When do stragglers make waiting dear, and staleness not waiting? MNIST on a virtual cluster.

`python examples/study.py` trains for real on a virtual clock, with 4 to 256 workers under six
strategies, and with 16 at six learning rates, and writes study.json and study.svg beside itself;
runs that study.json holds already are not made again. `python examples/study.py --quick --output
FOLDER` makes a small version of it.
"""

import argparse
import itertools
import json
import math
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from manyhands.reports import staleness, time_to

STRATEGIES = {  # what a label stands for with n workers, and its colour (Okabe and Ito's)
    "synchronous": ("synchronous()", "#000000"),
    "softsync, 3/4": ("softsync(wait_for={most})", "#0072B2"),
    "ssp, staleness 4": ("ssp(staleness=4)", "#009E73"),
    "asynchronous": ("asynchronous()", "#D55E00"),
    "asynchronous, root damping": ("asynchronous(damping=root)", "#E69F00"),
    "local SGD, every 8": ("local_sgd(every=8)", "#CC79A7"),
}
FULL = {
    "target": 0.97,
    "workers": [4, 16, 64, 256],
    "samples": 60_000,
    "epochs": 6,
    "global_batch": 512,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "seconds_per_batch": 0.05,
    "seconds_per_sample": 0.005,
    "cv": 0.7,
    "bandwidth": "10gbit",
    "latency": "50us",
}
QUICK = FULL | {"target": 0.7, "workers": [2, 8], "samples": 4096, "epochs": 2}
RATES = [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4]
RATED = ["synchronous", "asynchronous", "asynchronous, root damping"]
RATED_WORKERS = 16


def job_of(settings: dict, seed: int, **limits: object) -> mh.Job:
    """What is trained: a small network on MNIST, or on its first samples."""
    data = mh.data.mnist("train")
    if settings["samples"] < len(data):
        data = torch.utils.data.Subset(data, range(settings["samples"]))
    rate, momentum = settings["learning_rate"], settings["momentum"]
    return mh.Job(
        model=lambda: mh.models.MLP(hidden=(64,)),  # 50,890 parameters
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum),
        loss=F.cross_entropy,
        data=data,
        global_batch=settings["global_batch"],
        seed=seed,
        **limits,
    )


def simulate(settings: dict, job: mh.Job, strategy: str, workers: int, folder: str) -> mh.Run:
    """A virtual run; a worker's mean time for a batch depends on its share of the global one."""
    share = settings["global_batch"] / workers
    mean = settings["seconds_per_batch"] + settings["seconds_per_sample"] * share
    return mh.simulate(
        job,
        strategy,
        workers=workers,
        times=f"lognormal({mean:.6g}, cv={settings['cv']})",
        bandwidth=settings["bandwidth"],
        latency=settings["latency"],
        output=Path(folder) / "run",
    )


def measure(settings: dict, label: str, workers: int, seed: int) -> dict:
    """One run until the target or the last epoch; the target is looked for after every epoch."""
    strategy = STRATEGIES[label][0].format(most=max(1, 3 * workers // 4))
    validation, target = mh.data.mnist("test"), f"accuracy >= {settings['target']}"
    epochs = settings["epochs"]
    job = job_of(settings, seed, validation=validation, target=target, epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(settings, job, strategy, workers, folder)
        points = [point for process in run.trace.processes for point in process.points]
        stale = staleness(run.trace)
        return {
            "label": label,
            "strategy": strategy,
            "workers": workers,
            "seed": seed,
            "seconds_to_target": time_to(run.trace, "accuracy", settings["target"]),
            "seconds": run.seconds,
            "accuracy": [point.value for point in points if point.name == "validation/accuracy"],
            "staleness": stale and {"mean": stale.mean, "p99": stale.p99, "most": stale.most},
        }


def pace(settings: dict, label: str, workers: int) -> dict:
    """Seconds for a global batch, over the first 24 of them: the price of a step, not its worth."""
    strategy = STRATEGIES[label][0].format(most=max(1, 3 * workers // 4))
    job = job_of(settings, 0, samples=24 * settings["global_batch"])
    with tempfile.TemporaryDirectory() as folder:
        seconds = simulate(settings, job, strategy, workers, folder).seconds / 24
    return {"label": label, "workers": workers, "seconds_per_global_batch": seconds}


def rated(settings: dict, label: str, rate: float) -> dict:
    """What 16 workers have learnt after all epochs at another learning rate."""
    job = job_of(
        settings | {"learning_rate": rate}, 0, validation=mh.data.mnist("test"),
        epochs=settings["epochs"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(settings, job, STRATEGIES[label][0], RATED_WORKERS, folder)
        points = [point for process in run.trace.processes for point in process.points]
    accuracy = [point.value for point in points if point.name == "validation/accuracy"]
    return {"label": label, "learning_rate": rate, "accuracy": accuracy}


def draw(study: dict) -> str:
    """What a step costs and when the target was reached; what is learnt at other rates."""
    settings, runs = study["settings"], study["runs"]
    costs, times, missed = {}, {}, {}
    for label in STRATEGIES:
        mine = [one for one in study["pace"] if one["label"] == label]
        costs[label] = {one["workers"]: one["seconds_per_global_batch"] for one in mine}
        mine = [one for one in runs if one["label"] == label]
        sizes = sorted({one["workers"] for one in mine})
        found = {
            n: [one["seconds_to_target"] for one in mine if one["workers"] == n] for n in sizes
        }
        times[label] = {n: sorted(each)[len(each) // 2] for n, each in found.items() if all(each)}
        missed[label] = [n for n, each in found.items() if not all(each)]
    target, epochs = settings["target"], settings["epochs"]
    parts = _panel(60, "Seconds per global batch", settings["workers"], costs)
    errors = {
        label: {
            one["learning_rate"]: 100 * (1 - one["accuracy"][-1])
            for one in study["rates"]
            if one["label"] == label
        }
        for label in RATED
    }
    title = f"Test error after {settings['epochs']} epochs, {RATED_WORKERS} workers"
    parts += _panel(1060, title, RATES, errors, axis="learning rate", unit="%")
    made = sorted({one["workers"] for one in runs})
    made = made if len(made) > 1 else settings["workers"]
    parts += _panel(560, f"Seconds until {target:.0%} test accuracy", made, times)
    parts.append(_text(560, 478, f"not reached in {epochs} epochs:"))
    for row, (label, sizes) in enumerate(one for one in missed.items() if one[1]):
        colour, words = STRATEGIES[label][1], ", ".join(map(str, sizes))
        parts.append(_text(570, 498 + 18 * row, f"× {label} ({words} workers)", colour))
    space = 'xmlns="http://www.w3.org/2000/svg"'
    frame = f'<svg {space} viewBox="0 0 1560 590" font-family="sans-serif">'
    return "\n".join(
        [frame, '<rect width="1560" height="590" fill="#ffffff"/>', *parts, "</svg>\n"]
    )


def _panel(
    left: float, title: str, sizes: list, lines: dict[str, dict[float, float]], *,
    axis: str = "workers", unit: str = "s",
) -> list[str]:  # fmt: skip
    """One plot with logarithmic axes, its lines labelled at their ends."""
    values = [value for line in lines.values() for value in line.values()] or [1.0]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    top, bottom, width = 50, 410, 290

    def x(size: float) -> float:
        return left + 20 + (width - 40) * math.log(size / sizes[0], sizes[-1] / sizes[0])

    def y(value: float) -> float:
        return bottom - (bottom - top) * (math.log10(value) - low) / (high - low)

    parts = [_text(left, 28, title, size=16, weight="bold")]
    for size in sizes:
        parts.append(_line([(x(size), top), (x(size), bottom)], "#dddddd", 1))
        parts.append(_text(x(size), bottom + 20, f"{size:g}", anchor="middle"))
    parts.append(_text(left + width / 2, bottom + 42, axis, anchor="middle"))
    for tick in (step * 10.0**power for power in range(-3, 5) for step in (1, 2, 5)):
        if low <= math.log10(tick) <= high:
            parts.append(_line([(left, y(tick)), (left + width, y(tick))], "#dddddd", 1))
            parts.append(_text(left - 6, y(tick) + 4, f"{tick:g} {unit}", anchor="end"))
    ends = []
    for label, line in lines.items():
        colour, points = STRATEGIES[label][1], [(x(n), y(value)) for n, value in line.items()]
        parts.append(_line(points, colour, 2.5))
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in points]
        ends += [(*points[-1][::-1], label, colour)] if points else []
    below = 0.0
    for at, end, label, colour in sorted(ends):
        below = max(at + 4, below + 17)
        parts.append(_text(max(end + 12, left + width + 4), below, label, colour))
        parts.append(_line([(end + 5, at), (left + width + 1, below - 4)], colour, 0.6))
    return parts


def _line(points: list[tuple[float, float]], colour: str, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(
    x: float, y: float, words: str, colour: str = "#222222", *, anchor: str = "start",
    size: int = 13, weight: str = "normal",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}" font-weight="{weight}">{words}</text>'
    )


def main() -> None:
    """Make the runs that are missing, and write both files after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, in a minute")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="a folder")
    parser.add_argument("--workers", type=int, nargs="*", help="train with these numbers only")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="0 by default")
    asked = parser.parse_args()
    settings = QUICK if asked.quick else FULL
    asked.output.mkdir(parents=True, exist_ok=True)
    path = asked.output / ("quick.json" if asked.quick else "study.json")
    study = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    study.setdefault("rates", [])
    if study.get("settings") != settings:
        study = {"settings": settings, "pace": [], "runs": [], "rates": []}

    def keep() -> None:
        path.write_text(json.dumps(study, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".svg").write_text(draw(study), encoding="utf-8")

    for workers, label in itertools.product(settings["workers"], STRATEGIES):
        known = any((old["workers"], old["label"]) == (workers, label) for old in study["pace"])
        if not known and "damping" not in label:  # which changes no time
            study["pace"].append(pace(settings, label, workers))
            keep()
    for workers, label in itertools.product(asked.workers or settings["workers"], STRATEGIES):
        done = {old["seed"] for old in study["runs"]
                if (old["workers"], old["label"]) == (workers, label)}  # fmt: skip
        for seed in sorted({*asked.seeds} - done):
            study["runs"].append(run := measure(settings, label, workers, seed))
            keep()
            told = run["seconds_to_target"]
            when = f"{told:.1f} s" if told else "not reached"
            print(f"{run['strategy']}, {workers} workers, seed {seed}: {when}", flush=True)
    for rate, label in itertools.product(RATES[::3] if asked.quick else RATES, RATED):
        if not any((old["learning_rate"], old["label"]) == (rate, label) for old in study["rates"]):
            study["rates"].append(run := rated(settings, label, rate))
            keep()
            print(f"{label}, rate {rate}: {run['accuracy'][-1]:.1%} in the end", flush=True)


if __name__ == "__main__":
    main()
