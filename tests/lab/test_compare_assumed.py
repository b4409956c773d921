"""What a virtual comparison assumed is in its results, and whether the fastest depends on it."""

from pathlib import Path

import torch

import manyhands as mh
from manyhands.lab.reproduction.records import design_of
from manyhands.reports import read_results

SIZE = 250_000
"""Parameters: 1 MB."""


def job() -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(256, 500), torch.zeros(256, 500))
    return mh.Job(
        model=lambda: torch.nn.Linear(500, 500, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=64,
        epochs=8,
        metrics=(),
    )


def compared(folder: Path, **given: object) -> mh.Compared:
    about = {"workers": 2, "repeats": 1, "virtual": True, "time_only": True, "processes": 1}
    texts = ["single()", "allreduce()"]
    return mh.compare(job(), texts, output=folder / "out", **(about | given))  # type: ignore[arg-type]


def test_the_fastest_at_half_and_at_twice_the_assumed_time_is_named(tmp_path: Path) -> None:
    """One worker takes 0.2 s for 64 samples; two take 0.1 s, and 1 MB / (17.5 MB/s) for the ring.

    So two are faster (0.16 to 0.18 s, as one waits for the other); with half the computing they are
    not (0.11 to 0.12 s against 0.1 s), with twice they are the more so.
    """
    found = compared(tmp_path, bandwidth="140mbit")
    record = found.results.design
    assert record is not None
    names = {one.name: one for one in record.assumed}
    assert set(names) == {"times", "latency", "service"}
    assert record.times == names["times"].value == "lognormal(mean=0.1, cv=0.3)"
    assert names["times"].tried
    assert names["latency"].tried
    assert not names["service"].tried
    assert (names["times"].at_half, names["times"].at_twice) == ("single()", None)
    assert not names["latency"].decides
    told = " ".join(found.summary().split())
    assert "Assumed: times lognormal(mean=0.1, cv=0.3) (--times), latency 100 µs" in told
    assert "at half of it single() is the best; give --times" in told
    stored = read_results(tmp_path / "out")
    assert stored.design == record
    assert "lognormal(mean=0.1, cv=0.3)" in (tmp_path / "out" / "report.html").read_text("utf-8")
    # Made again, the same is assumed, and nothing was asked for.
    again = design_of(stored, None)
    assert again.virtual is not None
    assert again.virtual.times is None


def test_what_was_given_is_not_assumed(tmp_path: Path) -> None:
    given = {"times": "constant(0.02)", "bandwidth": "1gbit", "latency": "0.2ms"}
    record = compared(tmp_path, **given).results.design
    assert record is not None
    assert [one.name for one in record.assumed] == ["service"]


def test_the_speed_of_codecs_is_assumed_and_tried(tmp_path: Path) -> None:
    texts = ["asynchronous(codec=topk())", "allreduce()"]
    about = {"workers": 2, "repeats": 1, "virtual": True, "time_only": True, "processes": 1}
    found = mh.compare(job(), texts, output=tmp_path / "out", **about)  # type: ignore[arg-type]
    record = found.results.design
    assert record is not None
    coding = next(one for one in record.assumed if one.name == "coding")
    assert "topk() 1.12 GB/s encoding" in coding.value
    assert coding.tried
