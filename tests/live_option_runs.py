"""Trains a pair of strategies at a time on real processes, for `test_options_have_effect.py`.

    python live_option_runs.py OUT NUMBER…

It runs the pairs of these numbers, and writes a line of JSON per pair. Parameters of a
free-running strategy depend on the order in which updates arrive. So all samples are equal, every
step takes some time and one worker is far slower, which makes the order the same from run to run;
a figure that differs between two runs of the same strategy proves nothing, and is not compared.
Where nothing else shows an effect, three runs of each are made: their parameters, or their mean
staleness, must lie further apart than those of equal runs do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from option_effects import (
    Outcome,
    Verdict,
    a_model,
    a_text_job,
    job_for,
    judge,
    outcome,
    told_ahead,
)
from option_pairs import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

STEADY = ("asynchronous", "ssp", "softsync", "easgd", "gossip", "broadcast", "hogwild")
"""Strategies whose workers need not wait for each other."""
ATTEMPTS = 3
EXACT = ("parameters", "sent", "received", "traffic", "updates", "samples", "failed")
"""The figures that are no times."""


class Slow(nn.Module):
    """A model whose steps take some milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = a_model()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs, later."""
        time.sleep(0.02)
        return self.inner(inputs)


_source = torch.Generator().manual_seed(0)
_sample = torch.randn(1, 6, generator=_source)
text = a_text_job()
usual = job_for("allreduce()")
steady = mh.Job(
    model=Slow,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
    loss=nn.functional.cross_entropy,
    data=TensorDataset(_sample.expand(96, 6).contiguous(), torch.ones(96, dtype=torch.int64)),
    metrics=(),
    global_batch=24,
    epochs=3,
    seed=1,
)


def trained(how: str, workers: int) -> Outcome:
    """A short run on real processes, of workers of which one is slower."""
    name = mh.strategy(how).name
    job = text if name == "context" else steady if name in STEADY else usual
    slow = ["1:5x"] if workers > 1 and (name in STEADY or "by_speed" in how) else None
    at = tempfile.mkdtemp() + "/run"
    found = outcome(lambda: mh.train(job, how, workers=workers, slow=slow, output=at))
    if found.shown is None:
        return found
    kept = {key: value for key, value in found.shown.items() if key.startswith(EXACT)}
    return Outcome(shown={**kept, "forecast": told_ahead(how, workers, job)})


APART: dict[str, list[tuple[torch.Tensor, float]]] = {}
"""By strategy, the parameters and the mean staleness of its runs."""


def repeated(how: str, workers: int) -> list[tuple[torch.Tensor, float]]:
    """The parameters and the mean staleness of three runs of a free-running strategy."""
    while len(APART.setdefault(how, [])) < ATTEMPTS:
        at = tempfile.mkdtemp() + "/run"
        run = mh.train(steady, how, workers=workers, slow=["1:5x"], output=at)
        vector = torch.cat([one.flatten().double() for one in run.state_dict().values()])
        APART[how].append((vector, float(str(run.figures().get("staleness.mean") or 0.0))))
    return APART[how]


def apart(
    one: Sequence[tuple[torch.Tensor, float]], other: Sequence[tuple[torch.Tensor, float]]
) -> str:
    """What lies further apart between two strategies than within each; empty if nothing does."""
    distances = {
        "parameters": lambda a, b: float((a[0] - b[0]).norm()),
        "staleness.mean": lambda a, b: abs(a[1] - b[1]),
    }
    for name, distance in distances.items():
        within = max(distance(a, b) for runs in (one, other) for a in runs for b in runs)
        if min(distance(a, b) for a in one for b in other) > within:
            return f"{name} of {ATTEMPTS} runs each"
    return ""


def noisy(one: Outcome, other: Outcome) -> list[str]:
    """The figures in which two runs of the same differ."""
    first, second = one.shown or {}, other.shown or {}
    return [key for key in {*first, *second} if first.get(key) != second.get(key)]


def main(out: Path, chosen: list[int]) -> None:
    """Judge the pairs of these numbers, those of one base after each other."""
    known: dict[tuple[str, int], Outcome] = {}
    noises: dict[tuple[str, int], list[str]] = {}
    for at in chosen:
        pair = pairs()[at]
        base = (pair.without, pair.workers_without)
        for _ in range(ATTEMPTS):
            changed = _safely(pair.changed, pair.workers)
            if changed.shown is None:
                # What is refused starts no process; what it would be compared with needs none.
                verdict = judge(pair, Outcome(shown={}), changed)
                break
            if base not in known:
                known[base] = _safely(*base)
                free = pair.strategy in STEADY
                noises[base] = noisy(known[base], _safely(*base)) if free else []
            verdict = judge(pair, known[base], changed, noises[base])
            if verdict.kind != "NONE" or not noises[base]:
                break
            del known[base]
        if verdict.kind == "NONE" and pair.strategy in STEADY:
            runs = repeated(*base), repeated(pair.changed, pair.workers)
            found = apart(*runs)
            verdict = Verdict(pair, "EFFECT", found) if found else verdict
        with out.open("a") as stream:
            said = [at, verdict.kind, verdict.words]
            stream.write(json.dumps(said) + "\n")


def _safely(how: str, workers: int) -> Outcome:
    try:
        mh.strategy(how)
    except ValueError as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    return trained(how, workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(one) for one in sys.argv[2:]])
