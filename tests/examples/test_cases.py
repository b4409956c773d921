"""The cases: scripts that load and train, pages that show what their results and commands say."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import typer

import manyhands as mh
from manyhands.cli.app import app
from manyhands.cli.compare import design_of
from manyhands.lab.design import Script
from manyhands.reports import read_results
from support import ROOT

FOLDER = ROOT / "examples" / "cases"
PAGES = ROOT / "docs" / "cases"
SWEEPS = FOLDER / "sweeps.py"
STORED = sorted((FOLDER / "results").glob("*.json"))
PHOTOGRAPHS = ("cifar10/data_batch_1.bin", "cifar-10-batches-bin/data_batch_1.bin")

Loader = Callable[[str], ModuleType]


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, forgets_names: None) -> Loader:
    """Load a case by the name of its script, as `python` does with the script's folder."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return load


def page(name: str) -> str:
    return (PAGES / f"{name.replace('_', '-')}.md").read_text("utf-8")


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.stem)
def test_a_page_shows_the_stored_figures(case: Loader, stored: Path) -> None:
    told = json.loads(stored.read_text("utf-8"))
    script = shlex.split(told["command"])[1]
    assert told["machine"]["cores"] > 0
    module = case(Path(script).stem)
    figures = told["figures"]
    shown = page(Path(script).stem)
    assert module.printed(figures["runs"]) in shown, f"put them there: {told['command']}"
    if figures.get("predictions"):
        assert module.printed_predictions(figures["predictions"]) in shown


def test_the_cnn_trains_a_batch(case: Loader, tmp_path: Path) -> None:
    module = case("mnist_cnn")
    assert [way for way, _ in module.WAYS] == ["single()", "allreduce()", "central_storage()"]
    job = replace(module.job, validation=None, metrics=())
    run = mh.simulate(job, "central_storage()", workers=2, samples=200, output=tmp_path / "run")
    assert (run.status, run.samples) == ("finished", 200)


def test_placed_workers_send_what_the_shapes_say(case: Loader, tmp_path: Path) -> None:
    module = case("shared_lstm")
    pair, same = module.job.data[3]
    assert pair.shape == (2, 140, 256)
    assert same == 1  # sample 3 has author 1 twice
    job = replace(module.job, validation=None, metrics=())
    run = mh.simulate(job, module.PLACED, workers=3, samples=32, output=tmp_path / "run")
    (told,) = run.results.runs
    expected = sum(size for _, _, size, _ in module.messages(32))
    assert told.traffic["training"].workers_sent == expected


def test_every_exchange_with_the_centre_follows_the_formulas(case: Loader) -> None:
    module = case("elastic_round_robin")
    end, _ = module.simulate("noted_easgd")
    exchanges = list(module.NOTED)
    assert len(exchanges) == module.WORKERS * module.ROUNDS
    assert module.check(exchanges, end) < 1e-6
    assert module.printed(exchanges, end) in page("elastic_round_robin")
    plain, picture = module.simulate("easgd")
    assert plain == end
    assert (PAGES / "pictures" / "elastic-round-robin.svg").read_text("utf-8") == picture
    exchanges[4].centre += 0.01
    assert module.check(exchanges, end) > 1e-3


def test_schedules_are_drawn_as_the_page_shows_them(case: Loader) -> None:
    module = case("pipelines")
    for schedule in module.SCHEDULES:
        stored = (PAGES / "pictures" / f"{schedule}-4x4.svg").read_text("utf-8")
        assert stored == module.draw(schedule)
    assert module.in_theory("gpipe") == pytest.approx(3 / 7)
    assert module.in_theory("pipedream") == pytest.approx(0, abs=1e-9)


def test_a_resnet_is_simulated_in_full(case: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    module = case("resnet_cifar10")
    monkeypatch.setitem(module.FULL, "images", 1024)
    slow, fast = (
        [one["epoch_seconds"] for one in module.predict("ResNet50V2", seconds, "1gbit")]
        for seconds in (0.2, 0.002)
    )
    assert slow[0] == pytest.approx(1024 * 0.2)
    assert slow[0] / slow[2] > 3.5
    assert fast[0] < fast[2]  # the network takes longer than what it saves


def photographs() -> Path | None:
    """The folder that has CIFAR-10."""
    folders = (Path(os.environ.get("MANYHANDS_DATA", ".")), ROOT / ".data")
    return next((at for at in folders for name in PHOTOGRAPHS if (at / name).exists()), None)


def commands() -> list[list[str]]:
    """The comparisons of the page on sweeps, as words."""
    blocks = re.findall(
        r"^```\n(manyhands compare.*?)^```", page("sweeps"), re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line))[1] == "compare"]


def test_every_sweep_is_a_command_of_this_version(case: Loader) -> None:
    module = case("sweeps")
    assert len(commands()) == 5
    for _, _, script, *words in commands():
        assert ROOT / script == SWEEPS
        compare = typer.main.get_command(app).commands["compare"]
        given = compare.make_context("compare", [script, *words]).params
        job = getattr(module, given["job"])
        design = design_of(job, Script(path=SWEEPS, job=given["job"]), given)
        design.check()
        assert design.virtual is not None
        assert len(design.turns) >= 8


SHORT = {
    "mnist_cnn": ["--epochs", "0.01"],
    "shared_lstm": ["--samples", "64"],
    "elastic_round_robin": ["--output", "elastic.svg"],
    "pipelines": ["--steps", "3", "--output", "pictures"],
    "resnet_cifar10": [
        *("--models", "ResNet50V2", "--images", "8", "--batch", "8", "--side", "32"),
        *("--workers", "1", "2", "--epochs", "2", "--no-prediction"),
    ],
}
"""By script, options of a small version."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHORT)
def test_every_command_prints_its_table(start, name: str) -> None:
    environment = {}
    if name == "resnet_cifar10":
        folder = photographs()
        if folder is None:
            pytest.skip("no CIFAR-10: neither MANYHANDS_DATA nor .data has it")
        environment["MANYHANDS_DATA"] = str(folder)
    started = start(sys.executable, FOLDER / f"{name}.py", *SHORT[name], **environment)
    assert started.finish(550) == 0, started.text()
    assert re.search(r"^\| -+", started.text(), re.MULTILINE), started.text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(5))
def test_every_sweep_runs_with_few_samples(start, tmp_path: Path, number: int) -> None:
    _, verb, _, *words = commands()[number]
    # An option that is given twice counts as it was given last.
    few = ("--samples", "512", "--repeats", "1", "--output", "out")
    started = start(sys.executable, "-m", "manyhands", verb, SWEEPS, *words, *few)
    assert started.finish(800) == 0, started.text()
    runs = read_results(tmp_path / "out").runs
    assert len(runs) >= 4
    assert {run.status for run in runs} == {"finished"}
