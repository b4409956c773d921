"""Sweeps: what they stand for, and comparisons with them on a virtual cluster."""

from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.lab.design import Design, Script, VirtualConditions
from manyhands.lab.entrants import OPTIONS, Sweeps, read_entrants
from manyhands.lab.runs import command
from manyhands.notation import NotationError
from manyhands.reports import read_results
from manyhands.reports.comparison.sweeps import sweeps
from manyhands.reports.page import write_page


def a_job() -> mh.Job:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 4, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=16,
        epochs=1,
    )


def test_a_swept_strategy_is_one_entrant_for_every_value() -> None:
    read = read_entrants(
        "synchronous", Sweeps.read(["softsync(wait_for=1..3)", "local_sgd({4, 8})"])
    )
    assert [(entrant.label, entrant.curve, dict(entrant.swept)) for entrant in read] == [
        ("synchronous()", "", {}),
        ("softsync(wait_for=1)", "softsync(wait_for=1..3)", {"wait_for": 1}),
        ("softsync(wait_for=2)", "softsync(wait_for=1..3)", {"wait_for": 2}),
        ("softsync(wait_for=3)", "softsync(wait_for=1..3)", {"wait_for": 3}),
        ("local_sgd(every=4)", "local_sgd({4, 8})", {"every": 4}),
        ("local_sgd(every=8)", "local_sgd({4, 8})", {"every": 8}),
    ]


def test_a_swept_learning_rate_multiplies_all_entrants() -> None:
    read = read_entrants("ssp(4)", Sweeps.read(["lr={0.1, 0.5x}"]))
    assert [(entrant.label, dict(entrant.swept)) for entrant in read] == [
        ("ssp(staleness=4) lr=0.1", {"lr": 0.1}),
        ("ssp(staleness=4) lr=0.5x", {"lr": "0.5x"}),
    ]


def test_a_nested_option_is_named_by_its_path_where_it_is_ambiguous() -> None:
    text = "hierarchical(outer=diloco({5, 9}), islands={2, 4})"
    (first, *_) = read_entrants((), Sweeps.read([text]))
    assert dict(first.swept) == {"every": 5, "islands": 2}
    (slowed, _) = read_entrants((), Sweeps.read(["ssp slow 0:{2x, 4x}"]))
    assert dict(slowed.swept) == {"ssp.slow": "2x"}


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["bandwith={1gbit, 2gbit}"], "did you mean 'bandwidth'"),
        (["workers={1, 2}", "workers={3, 4}"], "swept twice"),
        (["ssp(stalenes=0..3)"], "no field 'stalenes'"),
        (["ssp(staleness=4)"], "expected a range or a set"),
        (["lr={0.1, fast}"], "lr must be a learning rate"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(texts: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_entrants("ssp", Sweeps.read(texts))


def test_a_range_among_the_strategies_is_refused_with_the_option_for_it() -> None:
    with pytest.raises(NotationError, match="--sweep"):
        read_entrants("allreduce, ssp(staleness=0..3)")


def test_no_strategy_has_an_option_that_is_one_of_the_runs() -> None:
    """A clash would be resolved by a longer name; there is none today."""
    names = {field for name in mh.strategies.names() for field in _fields(name)}
    assert not names & set(OPTIONS)


def _fields(name: str) -> set[str]:
    return set(getattr(mh.strategies, name).__dataclass_fields__)


@pytest.mark.parametrize(
    ("texts", "settings", "problem"),
    [
        (["bandwidth={1gbit, 2gbit}"], {}, "needs a virtual cluster"),
        (["network={1gbit, 2gbit}"], {"virtual": VirtualConditions()}, "needs real processes"),
        (
            ["latency={1ms, 2ms}"],
            {"virtual": VirtualConditions(bandwidth="1gbit", latency="1ms")},
            "latency is given twice",
        ),
        (["slow={7:2x, 7:3x}"], {}, "7"),
    ],
)
def test_a_sweep_that_the_runs_cannot_have_is_refused(texts, settings, problem: str) -> None:
    read = Sweeps.read(texts)
    design = Design(entrants=read_entrants("ssp", read), workers=(2,), sweeps=read, **settings)
    with pytest.raises(ValueError, match=problem):
        design.check()


def test_conditions_are_combined_and_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    read = Sweeps.read(["slow={0:1x, 0:2x}", "network={100mbit, 1gbit}", "lr={0.1, 0.2}"])
    script = Script(path=tmp_path / "script.py", job="job")
    design = Design(
        entrants=read_entrants("ssp", read), workers=(2,), sweeps=read, repeats=2, script=script
    )
    turns = design.turns
    assert len(turns) == len({turn.name for turn in turns}) == 16
    assert design.swept(turns[0]) == {"lr": 0.1, "slow": "0:1x", "network": "100mbit"}
    words = command(design, turns[3], tmp_path / "run")
    assert words[words.index("--network") + 1] == "1gbit"
    assert words[words.index("--lr") + 1] == "0.2"
    assert words[words.index("--slow") + 1] == "0:1x"


def test_a_curve_over_an_option(tmp_path: Path) -> None:
    made = mh.compare(
        a_job(),
        "synchronous",
        sweep="softsync(wait_for=1..4)",
        workers=4,
        repeats=2,
        virtual=True,
        times="lognormal(0.1, cv=0.6)",
        target="accuracy >= 0.6",
        output=tmp_path,
    )
    results = read_results(tmp_path)
    assert results.sweeps == ("softsync(wait_for=1..4)",)
    assert {run.strategy: run.swept for run in results.runs} == {
        "synchronous()": {},
        **{f"softsync(wait_for={n})": {"wait_for": n} for n in (1, 2, 3, 4)},
    }
    (sweep,) = sweeps(results)
    (curve,) = sweep.curves
    assert [point.value for point in curve.points] == [1, 2, 3, 4]
    assert [point.standing.strategy for point in sweep.comparators] == ["synchronous()"]
    rate = next(column for column in sweep.columns if column.name == "rate")
    rates = [point.standing.middle(rate).value for point in curve.points]
    assert rates == sorted(rates, reverse=True)  # the fewer it waits for, the faster
    assert "Throughput is best at wait_for=1" in " ".join(made.summary().split())
    write_page(results, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Sweep over wait_for" in page
    assert page.count('"error_y"') >= 4


def test_a_curve_over_links_and_workers_compares_under_equal_conditions(tmp_path: Path) -> None:
    made = mh.compare(
        a_job(),
        "synchronous, asynchronous",
        sweep=["bandwidth={1mbit, 1gbit}", "workers={2, 4}"],
        repeats=1,
        virtual=True,
        output=tmp_path,
    )
    runs = made.results.runs
    assert len(runs) == 8
    assert all(run.status == "finished" for run in runs)
    by = {(run.strategy, run.workers, run.swept["bandwidth"]): run.rate for run in runs}
    for strategy in ("synchronous()", "asynchronous()"):
        for workers in (2, 4):
            assert by[strategy, workers, "1mbit"] < by[strategy, workers, "1gbit"]
    counts, links = sweeps(made.results)
    assert (links.option, counts.option) == ("bandwidth", "workers")
    assert [curve.name for curve in counts.curves] == [
        f"{strategy}, bandwidth={speed}"
        for speed in ("1mbit", "1gbit")
        for strategy in ("synchronous()", "asynchronous()")
    ]
    assert not links.is_choice
    assert "bandwidth=1mbit" in made.summary()
    assert "1mbit or 1gbit" in made.results.network


def test_a_swept_learning_rate_is_that_of_the_run(tmp_path: Path) -> None:
    """lr=0.1 is the job's own: its run ends with the same loss to the bit."""
    made = mh.compare(
        a_job(),
        "ssp(2)",
        sweep="lr={0.1, 1.0}",
        workers=2,
        repeats=1,
        virtual=True,
        output=tmp_path,
    )
    own = mh.simulate(a_job(), "ssp(2)", workers=2, output=tmp_path / "own")
    ends = {run.swept["lr"]: run.validation["loss"].value[-1] for run in made.results.runs}
    assert ends[0.1] == own.metrics["loss"]
    assert ends[1.0] != ends[0.1]
