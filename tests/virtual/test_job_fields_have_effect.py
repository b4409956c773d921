"""Every field of a job, and every option of `simulate`, has an effect or is refused."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import SequentialSampler, TensorDataset, default_collate

import manyhands as mh
from manyhands.job.fields import KEEP, JobFields
from manyhands.lab.calibration.assumed import assume
from manyhands.script.unmeasured import UNSTORED
from option_effects import Outcome, a_job, outcome

if TYPE_CHECKING:
    from pathlib import Path

STRATEGIES = ("synchronous()", "allreduce()", "diloco(every=2)")
CALLS: Counter[str] = Counter()
"""What was called of a job, and how often."""


class Block(nn.Linear):
    """A layer that counts its forward passes, the recomputed ones included."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        CALLS["block"] += 1
        return super().forward(inputs)


class Counted(nn.Module):
    """A model that counts its forward passes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList([Block(width, width), Block(width, width)])
        self.last = nn.Linear(width, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        CALLS["model"] += 1
        values = self.first(inputs)
        for block in self.blocks:
            values = torch.tanh(block(values))
        return self.last(values)


class Listening(mh.callbacks.Callback):
    """A callback that counts evaluations."""

    def on_evaluation(self, *_: object, **__: object) -> None:
        """Count."""
        CALLS["callback"] += 1


def prepared() -> None:
    """Count."""
    CALLS["prepare"] += 1


def doubled(samples: list[Any]) -> Any:
    """A batch with larger inputs."""
    inputs, targets = default_collate(samples)
    return 2 * inputs, targets


def undefined(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is not a number."""
    return nn.functional.cross_entropy(outputs, targets) * float("nan")


def plateau(optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau:
    """A scheduler that takes any change for the worse."""
    return ReduceLROnPlateau(optimizer, patience=0, factor=0.1)


def other_data() -> TensorDataset:
    """Other samples."""
    source = torch.Generator().manual_seed(9)
    return TensorDataset(torch.randn(96, 6, generator=source), torch.zeros(96, dtype=torch.int64))


@dataclass(frozen=True)
class Case:
    """Another value of a field, and the other fields without which it has no effect."""

    changed: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)
    alone: bool = False
    """Whether it has to be refused without them."""


def cases(folder: Path) -> dict[str, tuple[Case, ...]]:
    """By field of a job."""
    weights = folder / "start.safetensors"
    torch.manual_seed(77)
    save_file(Counted().state_dict(), str(weights))
    steps = {"lr_scheduler": lambda optimizer: StepLR(optimizer, 2)}
    objective = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    every = mh.every
    return {
        "model": (Case({"model": lambda: Counted(9)}),),
        "optimizer": (Case({"optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.01)}),),
        "start": (Case({"start": weights}),),
        "loss": (Case({"loss": nn.functional.multi_margin_loss}),),
        "objective": (Case({"objective": objective, "loss": None}),),
        "data": (Case({"data": other_data()}),),
        "sampler": (Case({"sampler": SequentialSampler(range(96))}),),
        "validation": (Case({"validation": other_data()}),),
        "evaluate_every": (Case({"evaluate_every": every(samples=48)}),),
        "checkpoint": (Case({"checkpoint": every(steps=2)}),),
        "keep": (Case({"keep": 1}, {"checkpoint": every(steps=2)}, alone=True),),
        "measures": (Case({"measures": ("gradient_norm",)}),),
        "metrics": (Case({"metrics": "f1"}),),
        "global_batch": (Case({"global_batch": 12}),),
        "lr_schedule": (Case({"lr_schedule": mh.lr_schedules.cosine(3)}),),
        "lr_scheduler": (Case(steps),),
        "scheduler_interval": (Case({"scheduler_interval": "epoch"}, steps, alone=True),),
        "plateau_metric": (
            Case({"plateau_metric": "accuracy"}, {"lr_scheduler": plateau}, alone=True),
            Case({"plateau_metric": "nonsense"}, {"lr_scheduler": plateau}, alone=True),
            Case({"plateau_metric": "accuracy"}, steps),
        ),
        "clip": (Case({"clip": 0.01}),),
        "micro_batch": (Case({"micro_batch": 2}),),
        "autocast": (Case({"autocast": "bfloat16"}), Case({"autocast": "float16"})),
        "ema": (Case({"ema": 0.9}),),
        "sync_batchnorm": (Case({"sync_batchnorm": True}),),
        "compile": (Case({"compile": True}),),
        "activation_checkpointing": (Case({"activation_checkpointing": True}),),
        "epochs": (Case({"epochs": 1}),),
        "samples": (Case({"samples": 48}),),
        "seconds": (Case({"seconds": 0.5}),),
        "target": (Case({"target": "accuracy >= 0.01"}),),
        "early_stopping": (Case({"early_stopping": mh.EarlyStopping("loss", 1, min_delta=9.0)}),),
        "stop_on_nan": (Case({"stop_on_nan": False}, {"loss": undefined}),),
        "callbacks": (Case({"callbacks": (Listening(),)}),),
        "seed": (Case({"seed": 2}),),
        "prepare": (Case({"prepare": prepared}),),
        "collate_fn": (Case({"collate_fn": doubled}),),
        "num_workers": (Case({"num_workers": 1}),),
        "durability": (Case({"durability": "power"}), Case({"durability": "none"})),
    }


SILENT = {
    ("compile", "*"): "compiling takes half a minute: tests/virtual/test_compiled.py",
    ("num_workers", "*"): "the simulation loads all batches itself, whose times are not simulated",
    ("durability", "synchronous()"): "a virtual server has no disk",
    ("durability", "diloco(every=2)"): "a virtual server has no disk",
    ("stop_on_nan", "diloco(every=2)"): "an update that is not finite ends or skips a round alike",
}
"""By field and strategy, why a changed value shows nothing on the virtual clock."""


def simulated(strategy: str, folder: Path, given: dict[str, Any], **options: Any) -> Outcome:
    """A short run; what it shows, what it called of the job, and which checkpoints it left."""
    CALLS.clear()
    at = folder / str(len([*folder.iterdir()]))

    def run() -> mh.Run:
        with contextlib.redirect_stderr(io.StringIO()):
            job = a_job(**({"model": Counted} | given))
            return mh.simulate(job, strategy, output=at, **({"workers": 3} | options))

    found = outcome(run)
    if found.shown is None:
        return found
    stored = len([*(at / "checkpoints").glob("*")]) if (at / "checkpoints").exists() else 0
    return Outcome(shown={**found.shown, **CALLS, "stored": stored})


def differences(one: Outcome, other: Outcome) -> list[str]:
    first, second = one.shown or {}, other.shown or {}
    return [name for name in {*first, *second} if first.get(name) != second.get(name)]


@pytest.mark.timeout(300)
def test_every_field_of_a_job(tmp_path: Path) -> None:
    known = cases(tmp_path)
    assert set(known) == {one.name for one in fields(JobFields)}, "declare a case of the new field"
    wrong, count = [], 0
    for strategy in STRATEGIES:
        bare = simulated(strategy, tmp_path, {})
        for name, ones in known.items():
            if (name, "*") in SILENT:
                continue
            for case in ones:
                count += 1
                where = f"{strategy} with {case.changed}"
                without = simulated(strategy, tmp_path, case.given) if case.given else bare
                changed = simulated(strategy, tmp_path, case.given | case.changed)
                if changed.refused:
                    if not any(word in changed.refused for word in (name, "Plateau")):
                        wrong.append(f"{where} is refused without its name: {changed.refused}")
                elif not differences(without, changed) and (name, strategy) not in SILENT:
                    wrong.append(f"{where} is accepted and does nothing")
                if case.alone and name not in simulated(strategy, tmp_path, case.changed).refused:
                    wrong.append(f"{where} is accepted without {', '.join(case.given)}")
    print(f"\n{count} pairs (field of a job, strategy)")
    assert wrong == []


@pytest.mark.timeout(300)
def test_a_plan_takes_every_job_that_can_be_simulated(tmp_path: Path) -> None:
    """Nothing of a job that is about evaluations, checkpoints or its end rules a strategy out."""
    wrong = []
    for ones in cases(tmp_path).values():
        for case in ones:
            job = a_job(**({"model": Counted} | case.given | case.changed))
            known = assume(job, "1 GFLOP/s")
            with contextlib.redirect_stderr(io.StringIO()):
                found = mh.plan(
                    job, "3 hosts of 1 worker, 1gbit", known, strategies=STRATEGIES[:2], workers=[3]
                )
            for left in found.left_out:
                strategy = left.strategy.partition(" on ")[0]
                options = {"workers": 1} if strategy == "single()" else {}
                alone = simulated(strategy, tmp_path, case.given | case.changed, **options)
                if not alone.refused:
                    wrong.append(f"{case.changed} rules out {left.strategy}: {left.why}")
    assert wrong == []


def test_another_rate_does_nothing_under_a_scheduler_with_rates_of_its_own(tmp_path: Path) -> None:
    own = {"lr_scheduler": lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=20)}
    for rate in ("0.1x", "0.03"):
        found = simulated("allreduce()", tmp_path, own, lr=rate)
        assert "OneCycleLR sets learning rates of its own" in found.refused
    steps = {"lr_scheduler": lambda optimizer: StepLR(optimizer, 2)}
    without = simulated("allreduce()", tmp_path, steps)
    assert differences(without, simulated("allreduce()", tmp_path, steps, lr="0.1x"))


OPTIONS: dict[str, tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = {
    "workers": (("synchronous()", {}, {"workers": 4}),),
    "cluster": (("synchronous()", {}, {"cluster": "3 hosts, 10mbit"}),),
    "times": (("synchronous()", {}, {"times": "constant(0.2)"}),),
    "slow": (("synchronous()", {}, {"slow": ["1:4x"]}),),
    "bandwidth": (("synchronous()", {}, {"bandwidth": "10mbit"}),),
    "latency": (
        ("synchronous()", {}, {"latency": "9ms"}),
        ("synchronous()", {"bandwidth": "10mbit"}, {"latency": "9ms"}),
    ),
    "cores": (("synchronous()", {}, {"cores": 1}),),
    "placing": (
        ("synchronous()", {"bandwidth": "10mbit"}, {"placing": "colocated"}),
        ("allreduce()", {"bandwidth": "10mbit"}, {"placing": "colocated"}),
    ),
    "service": (
        ("synchronous()", {}, {"service": "9ms"}),
        ("allreduce()", {}, {"service": "9ms"}),
        ("gossip()", {}, {"service": "9ms"}),
    ),
    "handover": (
        ("synchronous()", {}, {"handover": "9ms"}),
        ("synchronous()", {"bandwidth": "10mbit"}, {"handover": "9ms"}),
    ),
    "coding": (
        ("synchronous()", {}, {"coding": "1MB/s"}),
        ("synchronous(codec=int8())", {}, {"coding": "1MB/s"}),
    ),
    "detection": (
        ("synchronous()", {}, {"detection": "9s"}),
        ("synchronous()", {"faults": "crash worker 1 at 0.15 s for ever"}, {"detection": "9s"}),
    ),
    "faults": (("synchronous()", {}, {"faults": "crash worker 1 at 0.15 s"}),),
    "time_only": (("synchronous()", {}, {"time_only": True}),),
    "epochs": (("synchronous()", {}, {"epochs": 1}),),
    "samples": (("synchronous()", {}, {"samples": 48}),),
    "seconds": (("synchronous()", {}, {"seconds": 0.5}),),
    "target": (("synchronous()", {}, {"target": "accuracy >= 0.01"}),),
    "seed": (("synchronous()", {}, {"seed": 7}),),
    "lr": (
        ("synchronous()", {}, {"lr": "0.5x"}),
        ("synchronous()", {"time_only": True}, {"lr": "0.5x"}),
    ),
    "evaluate_every": (("synchronous()", {}, {"evaluate_every": "48"}),),
    "measures": (("synchronous()", {}, {"measures": "gradient_norm"}),),
    "global_batch": (("synchronous()", {}, {"global_batch": 12}),),
    "checkpoint": (
        ("synchronous()", {}, {"checkpoint": "2 steps"}),
        ("synchronous()", {"time_only": True}, {"checkpoint": "2 steps"}),
    ),
    "keep": (
        ("synchronous()", {}, {"keep": 1}),
        ("synchronous()", {"checkpoint": "2 steps"}, {"keep": 1}),
        ("synchronous()", {"time_only": True}, {"keep": 1}),
    ),
    "resume": (("synchronous()", {}, {"resume": "nowhere"}),),
    "values": (("synchronous()", {}, {"values": {"lr": 0.5}}),),
}
"""By option of `simulate`: a strategy, the options given beside it, and another value."""
ELSEWHERE = {"job", "strategy", "output"}
"""What is trained, how, and where it is written: every test of runs shows these."""


def test_every_option_of_simulate(tmp_path: Path) -> None:
    assert {*OPTIONS} | ELSEWHERE == {*inspect.signature(mh.simulate).parameters}
    wrong = []
    for name, ones in OPTIONS.items():
        for strategy, given, changed in ones:
            without = simulated(strategy, tmp_path, {}, **given)
            found = simulated(strategy, tmp_path, {}, **(given | changed))
            said = name if name != "values" else "free parameters"
            if found.refused and said not in found.refused and "nowhere" not in found.refused:
                wrong.append(f"{strategy}, {given | changed} is refused without: {found.refused}")
            if not found.refused and not differences(without, found):
                wrong.append(f"{strategy}, {given | changed} is accepted and does nothing")
    assert wrong == []


def test_the_checkpoints_of_a_run_without_any_are_the_default_number() -> None:
    assert UNSTORED["keep"] == KEEP


def test_an_address_without_other_hosts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mh.Refused, match=r"listen='127\.0\.0\.1' is where other hosts"):
        mh.train(a_job(), "allreduce()", workers=2, listen="127.0.0.1", output=tmp_path / "run")
