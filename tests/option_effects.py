"""What a run shows of an option: its figures, its parameters, its curves and its forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.failure import RunFailed
from manyhands.models import GPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from option_pairs import Pair

UNTOLD = {"strategy", "folder", "threads", "started", "ended", "words", "kind", "repeat"}
"""Figures that name a run and do not describe it."""

SAMPLES, WIDTH = 96, 64


def a_model() -> nn.Module:
    """A chain of layers that every placement can divide, with more than one block of a codec."""
    return nn.Sequential(
        *(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    )


def a_job(**changes: Any) -> mh.Job:
    """A job whose parameters show in which order and with which weights it was trained."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 6, generator=source)
    data = TensorDataset(inputs, (inputs @ torch.randn(6, 3, generator=source)).argmax(1))
    given: dict[str, Any] = {
        "model": a_model,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        "loss": nn.functional.cross_entropy,
        "data": data,
        "validation": data,
        "global_batch": 24,
        "epochs": 3,
        "seed": 1,
    }
    return mh.Job(**(given | changes))


def a_text_job() -> mh.Job:
    """A job with sequences, for `context`."""
    tokens = torch.randint(0, 20, (16, 9), generator=torch.Generator().manual_seed(3))
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    return mh.Job(
        model=lambda: GPT(vocabulary=20, width=16, layers=2, heads=4, length=8),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=nn.functional.cross_entropy,
        data=data,
        global_batch=8,
        epochs=1,
        metrics=(),
    )


def job_for(text: str) -> mh.Job:
    """The job under which the options of a strategy are tested."""
    return a_text_job() if text.startswith("context") else a_job()


@dataclass(frozen=True)
class Outcome:
    """What became of a run that was asked for."""

    refused: str = ""
    """The message, if it was refused."""
    shown: Mapping[str, object] | None = None


def outcome(run: Callable[[], mh.Run]) -> Outcome:
    """What a run shows, or why it was refused."""
    try:
        return Outcome(shown=shown(run()))
    except (mh.Refused, ValueError, TypeError) as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    except RunFailed as error:
        first, _, told = str(error).partition("\n")
        # A worker that refuses says so in words; one that fails, with a traceback.
        if told.strip() and "Traceback" not in told:
            return Outcome(refused=told.strip())
        return Outcome(shown={"failed": first})


def shown(run: mh.Run) -> dict[str, object]:
    """Everything that a run tells, by name."""
    told: dict[str, object] = {k: v for k, v in run.figures().items() if k not in UNTOLD}
    for name, rows in run.curves().items():
        if not name.startswith("run/"):
            told[f"curve {name}"] = str([tuple(round(float(x), 9) for x in row) for row in rows])
    return told


def told_ahead(text: str, workers: int, job: mh.Job) -> str:
    """What is forecast of a strategy."""
    strategy = mh.strategy(text)
    forecast = getattr(strategy, "forecast_job", None)
    try:
        return "" if forecast is None else str(forecast(job, workers))
    except ValueError as error:
        return f"none: {error}"


@dataclass(frozen=True)
class Verdict:
    """What a changed value did."""

    pair: Pair
    kind: str
    """EFFECT, REFUSED, NONE or NO BASE."""
    words: str = ""

    def __str__(self) -> str:
        return f"{self.kind:8} {self.pair.name}  {self.words}"


def judge(pair: Pair, without: Outcome, changed: Outcome, noise: Iterable[str] = ()) -> Verdict:
    """Compare a run with and without a changed value.

    Args:
        pair: the two strategies.
        without: what the first did.
        changed: what the second did.
        noise: what differs between two runs of the first, too.
    """
    if without.shown is None and changed.shown is not None:
        return Verdict(pair, "NO BASE", without.refused)
    if without.shown is None or changed.shown is None:
        return Verdict(pair, "REFUSED", changed.refused.partition("\n")[0])
    names = {*without.shown, *changed.shown} - set(noise)
    found = sorted(k for k in names if without.shown.get(k) != changed.shown.get(k))
    if "failed" in changed.shown:
        return Verdict(pair, "FAILED", str(changed.shown["failed"]))
    if not found:
        return Verdict(pair, "NONE")
    first = [k for k in found if k.startswith(("parameters", "sent", "traffic", "forecast"))]
    return Verdict(pair, "EFFECT", ", ".join((first or found)[:3]))


def names_option(verdict: Verdict) -> bool:
    """Whether a refusal names the option that was changed, or its value."""
    option = verdict.pair.option.rpartition(".")[2].partition("=")[0]
    return option in verdict.words or verdict.pair.strategy in verdict.words
