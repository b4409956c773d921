"""N workers train as one, whatever a batch looks like, or the run says why they do not.

Every job is compared with a plain loop in float64, under lockstep strategies with several means and
with one weight per update, and under a protocol with one worker.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counted_jobs
import manyhands as mh
from counted_jobs import JOBS, compare

ONE_REPLICA = ("fully_sharded()", "zero(stage=1)")
ONE_WEIGHT = ("allreduce()", "synchronous()")
UNEQUAL = {
    "mask_by_hand": "return mh.Weighted(total, weight)",
    "class_weights_and_mean": "the loss has several means",
    "words_and_sentences": "the loss has several means",
    "words_and_auxiliary": "the loss has several means",
    "dropped_values": "returned no tensor of that length",
    "rare_words": "over other targets than that of others",
}
"""Jobs of which an update with one weight is inexact, and what the run says."""


COLLECTIVE_CALLS = {("list_of_dicts", "fully_sharded()", workers) for workers in (3, 4)}
"""Jobs that call the model once for each sample, where a call is a collective and parts differ."""


def holds(worst: float | None, told: str) -> bool:
    """Whether a run equals the plain loop, or says why it does not, with the remedy."""
    return (worst is not None and worst <= 1e-9) or "mh.Weighted(total, weight)" in told


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "strategy",
    [*ONE_WEIGHT, pytest.param("zero(stage=1)", marks=pytest.mark.slow), "fully_sharded()"],
)
def test_virtual_workers_train_as_one_or_say_why_not(
    tmp_path, monkeypatch, name, strategy, workers
):
    monkeypatch.setenv("COUNTED_FOLDER", str(tmp_path))
    worst, told = compare("virtual", name, strategy, workers)
    if (name, strategy, workers) in COLLECTIVE_CALLS:
        assert worst is None
        assert "all workers must call it equally often: call it once for a batch" in told
        return
    words = UNEQUAL.get(name, "") if workers > 1 and strategy in ONE_WEIGHT else ""
    if words:
        assert words in told
        assert holds(worst, told)
        return
    assert worst is not None
    assert worst <= 1e-9
    if name not in ("mask_by_hand", "dropped_values"):
        assert not told


@pytest.mark.parametrize("name", JOBS)
def test_a_protocol_with_one_worker_is_a_plain_loop(tmp_path, monkeypatch, name):
    monkeypatch.setenv("COUNTED_FOLDER", str(tmp_path))
    worst, _ = compare("virtual", name, "asynchronous()", 1)
    assert worst is not None
    assert worst <= 1e-9


def test_weights_decide_here():
    # The jobs would show nothing if the means of equal shares were equal, too.
    for name in ("padded_tokens", "labels_of_edges", "class_weights", "few_labels"):
        of = JOBS[name]
        model = of.model()
        collate = of.collate_fn or torch.utils.data.default_collate
        losses = []
        for begin, end in ((0, 8), (0, 4), (4, 8)):
            batch = collate([of.data[index] for index in range(begin, end)])
            loss = of.loss(model(batch[0]), batch[1]) if of.loss else of.objective(model, batch)
            losses.append(loss.item())
        assert abs(sum(losses[1:]) / 2 - losses[0]) > 1e-4, name


def trained(start, tmp_path, names, strategies, workers):
    """By job, strategy and number of workers, what live runs gave."""
    script = Path(counted_jobs.__file__)
    about = (",".join(names), ";".join(strategies), ",".join(map(str, workers)))
    started = start(sys.executable, script, "live", *about, COUNTED_FOLDER=str(tmp_path))
    assert started.finish(3000) == 0, started.text()
    lines = [line for line in started.text().splitlines() if line.startswith("RESULT ")]
    assert len(lines) == len(names) * len(strategies) * len(workers)
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


@pytest.mark.timeout(200)
def test_live_workers_agree_on_weights_whatever_their_batches_have(start, tmp_path):
    """Data decides which means these batches have, and whether they have any label."""
    names = ("rare_words", "labels_of_edges", "printed_words")
    for *about, worst, _ in trained(start, tmp_path, names, ["allreduce()"], [3]):
        assert worst is not None, about
        assert worst <= 1e-9, about


@pytest.mark.slow
@pytest.mark.timeout(3100)
@pytest.mark.parametrize("name", JOBS)
def test_live_workers_train_as_one_or_say_why_not(start, tmp_path, name):
    strategies = [*ONE_WEIGHT, *ONE_REPLICA]
    results = trained(start, tmp_path, [name], strategies, [1, 2, 3, 4])
    results = results if name not in UNEQUAL else [one for one in results if not one[-1]]
    for *about, worst, _ in results:
        if tuple(about) in COLLECTIVE_CALLS:
            assert worst is None, about
            continue
        assert worst is not None, about
        assert worst <= 1e-9, about


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("time_major_regression", "must be that of the samples: got (5, "),
        ("labels_of_edges", "must be that of the samples: got ("),
    ],
)
def test_micro_batches_need_samples_along_the_first_dim(tmp_path, name, words):
    with pytest.raises(ValueError, match="micro_batch divides every tensor of a batch") as refused:
        mh.simulate(
            replace(JOBS[name], micro_batch=2), "synchronous()", workers=2, output=tmp_path / "run"
        )
    assert words in str(refused.value)
