"""The published curves: every page's command is one of this version, and runs as printed."""

import shlex
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import typer

from manyhands.cli.app import app
from manyhands.cli.compare import design_of
from manyhands.lab.design import Script
from manyhands.reports import read_results
from support import ROOT

STUDIES = ROOT / "docs" / "studies"
CURVES = ROOT / "examples" / "published_curves.py"
PAGES = (
    "adpsgd-straggler",
    "diloco-interval",
    "easgd-and-downpour",
    "softsync-wait-for",
    "sparse-gradients",
    "ssp-bound",
)


def commands(page: str) -> list[list[str]]:
    """The commands of a page, as words."""
    text = (STUDIES / f"{page}.md").read_text("utf-8")
    (block,) = (part for part in text.split("```")[1::2] if "manyhands compare" in part)
    return [shlex.split(line) for line in block.replace("\\\n", " ").strip().splitlines()]


def options(words: list[str]) -> dict[str, object]:
    """The options of `manyhands compare`, as the command line reads them."""
    compare = typer.main.get_command(app).commands["compare"]
    return compare.make_context("compare", list(words)).params


@pytest.fixture
def curves(forgets_names: None) -> Iterator[ModuleType]:
    try:
        spec = spec_from_file_location("published_curves", CURVES)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    yield module
    del sys.modules[spec.name]


def test_every_page_has_its_picture_and_is_listed() -> None:
    readme = (STUDIES / "README.md").read_text("utf-8")
    for page in PAGES:
        text = (STUDIES / f"{page}.md").read_text("utf-8")
        assert f"](pictures/{page}.svg)" in text
        assert (STUDIES / "pictures" / f"{page}.svg").stat().st_size < 200_000
        assert f"({page}.md)" in readme


def test_every_command_is_read(curves: ModuleType) -> None:
    for page in PAGES:
        (program, verb, script, *words), (_, export, folder, *_) = commands(page)
        assert (program, verb, export) == ("manyhands", "compare", "export")
        assert ROOT / script == CURVES
        given = options([script, *words])
        assert str(given["output"]) == folder
        job = getattr(curves, str(given["job"]))
        design = design_of(job, Script(path=CURVES, job=str(given["job"])), given)
        design.check()
        assert design.virtual is not None
        assert len(design.turns) >= 8


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_with_few_samples(start, tmp_path: Path, page: str) -> None:
    (_, verb, _, *words), (_, export, folder, *formats) = commands(page)
    # An option that is given twice counts as it was given last.
    fewer = ("--samples", "640", "--repeats", "1", "--evaluate-every", "640")
    manyhands = (sys.executable, "-m", "manyhands")
    started = start(*manyhands, verb, CURVES, *words, *fewer)
    assert started.finish(500) == 0, started.text()
    runs = read_results(tmp_path / folder).runs
    assert len(runs) >= 4
    assert {run.status for run in runs} == {"finished"}
    exported = start(*manyhands, export, folder, *formats)
    assert exported.finish(90) == 0, exported.text()
    assert list((tmp_path / folder / "export").glob("virtual-sweep-*.svg"))
