import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from manyhands import lr_schedules
from manyhands.job import Job
from manyhands.metrics import F1, Accuracy, PerSample
from manyhands.sampling.batches import BatchSizes
from manyhands.stopping import Target

DATA = TensorDataset(torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64))


def job(**changes: Any) -> Job:
    """A valid job, changed."""
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(2, 2),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": functional.cross_entropy,
        "data": DATA,
        "global_batch": 4,
        "epochs": 1,
    }
    return Job(**{**given, **changes})


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(int, 1)


class Unsized:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": None}, "say when to stop: give epochs, samples, seconds or target"),
        ({"global_batch": 0}, "global_batch must be at least 1, not 0"),
        ({"global_batch": -3}, "global_batch must be at least 1, not -3"),
        ({"global_batch": {}}, "does not say how large it is at first"),
        ({"global_batch": {1: 8}}, "does not say how large it is at first"),
        ({"global_batch": {0: 8, -1: 4}}, "global_batch cannot change after -1 epochs"),
        ({"global_batch": {0: 8, "1": 4}}, "global_batch cannot change after '1' epochs"),
        ({"global_batch": {0: 8, 2: 0}}, "global_batch must be at least 1, not 0"),
        ({"clip": 0}, "clip must be a norm above 0, not 0"),
        ({"clip": math.inf}, "clip must be a norm above 0, not inf"),
        ({"lr_schedule": lambda _: -0.1}, "lr_schedule returned -0.1 after 0 epochs"),
        ({"lr_schedule": lambda _: math.nan}, "lr_schedule returned nan after 0 epochs"),
        ({"epochs": 0}, "epochs must be above 0, not 0"),
        ({"epochs": -1.5}, "epochs must be above 0, not -1.5"),
        ({"epochs": math.nan}, "epochs must be above 0, not nan"),
        ({"epochs": math.inf}, "epochs must be above 0, not inf"),
        ({"samples": 0}, "samples must be above 0, not 0"),
        ({"seconds": -1}, "seconds must be above 0, not -1"),
        ({"num_workers": -1}, "num_workers must be 0 or more, not -1"),
        ({"metrics": ["acuracy"]}, "did you mean 'accuracy'"),
        (
            {"target": "accuracy >= 0.9"},
            "target 'accuracy >= 0.9' needs validation data to be measured on",
        ),
        (
            {"target": "f1 >= 0.9", "validation": DATA},
            "target 'f1 >= 0.9' names no metric of this job; it has accuracy, loss",
        ),
        (
            {"target": "accuracy >= 0.9", "validation": DATA, "metrics": ()},
            "names no metric of this job; it has loss",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_a_value_that_cannot_be_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        job(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": Endless()},
            "epochs is not possible with data of type Endless, a stream, whose length is not",
        ),
        (
            {"data": Endless(), "epochs": None, "samples": 9, "lr_schedule": lambda _: 1.0},
            "known: give lr_scheduler, which is stepped once per global batch",
        ),
        (
            {"data": Endless(), "epochs": None, "samples": 9, "global_batch": {0: 4, 1: 8}},
            "a global_batch that changes is not possible with data of type Endless",
        ),
        (
            {"data": iter(DATA), "epochs": None, "samples": 9},
            "data is an iterator, which can be read only once; give an IterableDataset",
        ),
        (
            {"sampler": DistributedSampler(DATA, num_replicas=2, rank=0)},
            "sampler is a DistributedSampler, and Manyhands divides the samples",
        ),
        (
            {"sampler": BatchSampler(SequentialSampler(DATA), 2, drop_last=False)},
            "sampler of type BatchSampler returns batches",
        ),
        ({"sampler": 3}, "sampler must be iterable and have a length"),
        ({"data": Unsized()}, "data of type Unsized has no length or no items"),
        ({"data": {1, 2}}, "give a map-style dataset"),
        ({"data": None}, "data of type NoneType has no length"),
        ({"validation": Endless()}, "validation of type Endless has no length or no items"),
        ({"model": nn.Linear(2, 2).weight}, "model must be something to call"),
        ({"model": "lenet"}, "model must be something to call .* not 'lenet'"),
        ({"model": nn.Linear(2, 2)}, "model is a Linear already; give what makes one"),
        ({"optimizer": None}, "optimizer must be something to call"),
        ({"loss": 0.5}, "loss must be something to call .* not 0.5"),
        ({"global_batch": 4.0}, "global_batch must be a whole number, an int, not 4.0"),
        ({"global_batch": {0: 4, 1: 8.0}}, "global_batch must be a whole number, an int, not 8.0"),
        (
            {"lr_schedule": 0.1},
            r"lr_schedule must be a function .* as mh.lr_schedules.cosine\(10\), not 0.1",
        ),
        ({"lr_schedule": lambda _: None}, "lr_schedule must return a number, not None"),
        (
            {"lr_schedule": StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 3)},
            "docs/meanings.md translates torch's schedulers",
        ),
        ({"samples": 1e6}, "samples must be a whole number, an int, not 1000000.0"),
        ({"num_workers": 1.5}, "num_workers must be a whole number"),
        ({"seed": "7"}, "seed must be a whole number, an int, not '7'"),
        ({"metrics": [Accuracy]}, r"Accuracy is a class; give a metric of it, Accuracy\("),
        ({"metrics": [3]}, "a metric is a name, a Metric or a function, not 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_a_thing_of_the_wrong_kind_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        job(**changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "accuracy",
        "accuracy > 0.9",
        "accuracy = 0.9",
        "accuracy >= high",
        "accuracy >= ",
        ">= 0.9",
        "0.9 <= accuracy",
        "accuracy >= 0.9 %",
        "accuracy >= 0.9, loss <= 1",
        "accuracy >= --",
        "accuracy >= 1e",
        "accuracy >= .",
        "accuracy >= 1.2.3",
        "accuracy >= nan",
        "accuracy >= 0.9\nloss <= 1",
    ],
)
def test_a_malformed_target_is_answered_with_the_form(text: str) -> None:
    words = r"is not of the form 'accuracy >= 0\.98' or 'loss <= 0\.1'"
    with pytest.raises(ValueError, match=words):
        Target.read(text)
    with pytest.raises(ValueError, match=words):
        job(target=text, validation=DATA, epochs=None)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("accuracy >= 0.98", Target("accuracy", ">=", 0.98)),
        ("loss<=1e-3", Target("loss", "<=", 0.001)),
        ("  f1_micro  >=  .5 ", Target("f1_micro", ">=", 0.5)),
        ("loss <= -2.", Target("loss", "<=", -2.0)),
        ("RMSE <= +1E2", Target("RMSE", "<=", 100.0)),
    ],
)
def test_a_target_is_read_as_it_is_written(text: str, target: Target) -> None:
    assert Target.read(text) == target
    assert Target.read(str(target)) == target


@given(
    st.sampled_from(["accuracy", "loss", "f1_micro", "_own", "Größe2"]),
    st.sampled_from([">=", "<="]),
    st.integers(-(10**5), 10**5),
    st.integers(-4, 4),
)
def test_a_target_of_six_digits_survives_its_own_text(
    metric: str, better: Any, digits: int, power: int
) -> None:
    target = Target(metric, better, digits * 10.0**power)
    again = Target.read(str(target))
    assert (again.metric, again.better) == (metric, better)
    assert again.value == pytest.approx(target.value)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_a_target_is_reached_at_its_value_and_beyond(value: float, limit: float) -> None:
    values = {"x": value, "other": -value}
    assert Target("x", ">=", limit).reached(values) == (value >= limit)
    assert Target("x", "<=", limit).reached(values) == (value <= limit)
    assert Target("x", ">=", value).reached(values)
    assert Target("x", "<=", value).reached(values)


def test_a_metric_that_is_not_a_number_reaches_no_target() -> None:
    for better in (">=", "<="):
        assert not Target("x", better, 0.0).reached({"x": math.nan})


@pytest.mark.parametrize("limit", [{"samples": 5}, {"seconds": 0.5}, {"epochs": 0.01}])
def test_any_one_limit_is_enough(limit: dict[str, Any]) -> None:
    assert job(**{"epochs": None, **limit}).goal is None


def test_a_target_alone_is_enough_and_the_loss_may_always_be_one() -> None:
    made = job(target="loss <= 0.1", validation=DATA, epochs=None, metrics=())
    assert made.goal == Target("loss", "<=", 0.1)
    assert made.budget is None


def test_metrics_are_found_by_name_by_value_and_by_function() -> None:
    def rmse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.sum(1) - targets

    own = PerSample("own", rmse, better="lower")
    made = job(metrics=["f1", Accuracy(), own, rmse], validation=DATA, target="rmse <= 1")
    assert made.metric_objects[:3] == (F1(), Accuracy(), own)
    assert made.metric_objects[3].name == "rmse"


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        ({"epochs": 1}, 10),
        ({"epochs": 3}, 30),
        ({"epochs": 0.5}, 5),
        ({"epochs": 2.25}, 22),
        ({"epochs": 0.001}, 1),
        ({"epochs": None, "samples": 7}, 7),
        ({"epochs": 1, "samples": 7}, 7),
        ({"epochs": 0.5, "samples": 7}, 5),
        ({"epochs": 1, "seconds": 3.0}, 10),
        ({"epochs": None, "seconds": 3.0}, None),
        ({"epochs": None, "samples": np.int64(7)}, 7),
    ],
    ids=str,
)
def test_the_budget_is_the_lesser_of_epochs_and_samples(
    limits: dict[str, Any], budget: int | None
) -> None:
    assert job(**limits).budget == budget


@given(st.floats(1e-6, 1e3), st.none() | st.integers(1, 10**6), st.integers(1, 10**4))
def test_the_budget_is_a_whole_number_above_zero_and_within_both_limits(
    epochs: float, samples: int | None, size: int
) -> None:
    budget = job(data=range(size), epochs=epochs, samples=samples).budget
    assert isinstance(budget, int)
    assert budget >= 1
    assert samples is None or budget <= samples
    assert budget <= max(1, epochs * size + 0.5)


def test_making_a_job_calls_nothing() -> None:
    def refuse(*_: object) -> Any:
        pytest.fail("called too early")

    job(model=refuse, optimizer=refuse, loss=refuse, prepare=refuse, collate_fn=refuse)


def test_the_global_batch_changes_after_samples() -> None:
    assert job(global_batch=np.int64(4)).batch_sizes == BatchSizes(((0, 4),))
    growing = job(global_batch={2.5: 32, 0: 4, 1: np.int64(8)})
    assert growing.batch_sizes == BatchSizes(((0, 4), (10, 8), (25, 32)))


def test_the_rate_is_asked_by_the_epochs_that_are_done() -> None:
    assert job().lr_factor(123) == 1.0
    line = job(lr_schedule=lr_schedules.linear(2))
    assert [line.lr_factor(dealt) for dealt in (0, 5, 10, 20, 25)] == [1, 0.75, 0.5, 0, 0]
    assert job(lr_schedule=lambda epochs: torch.tensor(0.5) ** epochs).lr_factor(20) == 0.25


def halve(epochs: float) -> float:
    return 0.5**epochs


def test_a_job_says_what_it_is_trained_with_in_the_same_words_every_time() -> None:
    assert job().settings == {"epochs": "1", "seed": "0", "global_batch": "4"}
    full = job(
        global_batch={0: 4, 2: 8},
        lr_schedule=lr_schedules.cosine(3, warmup=0.5),
        clip=1.5,
        samples=7,
    )
    assert full.settings == {
        "epochs": "1",
        "samples": "7",
        "seed": "0",
        "global_batch": "{0: 4, 2: 8}",
        "lr_schedule": "cosine(epochs=3.0, warmup=0.5)",
        "clip": "1.5",
    }
    assert job(durability="power").settings["durability"] == "power"
    assert job(lr_schedule=halve).settings["lr_schedule"] == "halve"
    assert job(lr_schedule=lambda _: 1.0).settings["lr_schedule"] == "lambda"
    assert job(lr_schedule=functools.partial(pow, 0.5)).settings["lr_schedule"] == "partial"
