"""A stored comparison made again: from its file alone, and compared to the bit."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from lab_script import write_script
from msgspec import structs
from rich.console import Console

import manyhands as mh
from manyhands.lab.design import Budget, Design, Script, VirtualConditions
from manyhands.lab.entrants import read_entrants
from manyhands.lab.reproduction.records import design_of, record_design, record_script
from manyhands.lab.reproduction.reproduce import plan_reproduction
from manyhands.pacing import Pace
from manyhands.reports import Comparison, DesignRecord, read_results, write_results

COMMAND = (sys.executable, "-m", "manyhands")
OPTIONS = (
    *("--virtual", "--strategies", "asynchronous, local_sgd(every=4), asynchronous"),
    *("--workers", "2,3", "--repeats", "2", "--epochs", "0.5", "--seed", "7", "--slow", "1:1.5x"),
    *("--bandwidth", "100mbit", "--times", "lognormal(0.05, cv=0.5)"),
)
SIBLING = "WIDTH = 16\n"


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A virtual comparison of a script that imports another file, in `out`."""
    folder = tmp_path_factory.mktemp("stored")
    path = write_script(folder, samples=256, width=16, hidden=8)
    text = path.read_text("utf-8").replace(
        "import time\n", "import time\nimport numpy\nfrom sibling import WIDTH\n"
    )
    # Drawn without a seed: the same whenever the script is executed by the command.
    text = text.replace("lr=0.05", "lr=0.05 + 0.01 * numpy.random.rand(1).item()")
    path.write_text(text, "utf-8")
    (folder / "sibling.py").write_text(SIBLING, "utf-8")
    command = (*COMMAND, "compare", "script.py", *OPTIONS, "--output", "out")
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=180)
    return folder / "out"


@pytest.fixture
def here(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the script's folder with the comparison in it: the current folder."""
    monkeypatch.delitem(sys.modules, "sibling", raising=False)
    shutil.copytree(stored.parent, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def test_a_virtual_comparison_comes_out_the_same_to_the_bit(start, here, tmp_path: Path) -> None:
    again = start(*COMMAND, "reproduce", "copy/out/results.json", "--output", "again")
    assert again.finish() == 0, again.text()
    assert "the same: 12 runs, equal to the bit" in again.text()
    assert "script.py, unchanged" in again.text()
    before, now = read_results(here / "out"), read_results(tmp_path / "again")
    assert before.design == now.design
    assert before.strategies == now.strategies
    digests = [run.parameters_sha256 for run in before.runs]
    assert digests == [run.parameters_sha256 for run in now.runs]
    assert all(digests)


def test_if_the_script_has_changed_its_stored_text_is_used(here: Path) -> None:
    script = here / "script.py"
    script.write_text(script.read_text("utf-8").replace("lr=0.05", "lr=0.5"), "utf-8")
    planned = plan_reproduction(here / "out", None, None, here / "kept")
    assert planned.script is not None
    assert planned.script.words.startswith("the stored text, as ")
    assert planned.script.words.endswith("script.py differs from it")
    assert planned.carry_out(Console(stderr=True)).same
    assert (here / "kept" / "script.py").is_file()
    assert "PYTHONPATH" not in os.environ or str(here) not in os.environ["PYTHONPATH"]

    other = plan_reproduction(here / "out", None, script, here / "other")
    assert other.script is not None
    assert other.script.words.endswith(", which differs from the stored one")
    found = other.carry_out(Console(stderr=True))
    assert not found.same
    assert any(
        words.startswith("asynchronous() × 2, repeat 0: validation.") for words in found.differences
    )


def test_a_file_alone_is_enough_and_what_differs_is_named(here: Path, monkeypatch) -> None:
    """Mailed to another machine: there is no script, and versions differ."""
    alone = here / "else" / "where"
    alone.mkdir(parents=True)
    shutil.move(here / "out" / "results.json", alone)
    monkeypatch.chdir(alone)
    with pytest.raises(ModuleNotFoundError, match="sibling"):
        mh.reproduce("results.json")
    monkeypatch.syspath_prepend(here)
    before = read_results(alone)
    run = structs.replace(before.runs[2], seconds=before.runs[2].seconds + 1e-9)
    runs = (*before.runs[:2], run, *before.runs[3:])
    write_results(structs.replace(before, runs=runs, torch="1.0", numpy=""), alone / "results.json")
    found = mh.reproduce("results.json", output="again")
    assert not found.same
    (difference,) = found.differences
    assert difference.startswith(f"{run.label}, repeat 0: seconds {run.seconds!r} stored, ")
    assert found.summary().splitlines()[0].startswith("torch: 1.0 stored, ")
    assert "numpy: not recorded stored" in found.summary()
    assert "different: 1 difference" in found.summary()
    assert (alone / "again" / "script.py").is_file()


def test_results_hold_the_script_the_job_and_nothing_private(stored: Path) -> None:
    results = read_results(stored)
    script = stored.parent / "script.py"
    assert results.source is not None
    assert results.source.text == script.read_text("utf-8")
    assert (stored / str(results.source.path)).resolve() == script
    assert (results.source.name, results.source.job) == ("script.py", "job")
    assert results.model is not None
    assert (results.model.name, results.model.parameters) == ("Model", 16 * 8 + 8 + 8 * 2 + 2)
    assert results.model.bytes == 4 * results.model.parameters
    assert results.optimizer is not None
    assert results.optimizer.name == "SGD"
    assert 0.05 < results.optimizer.options["lr"] < 0.06
    assert results.optimizer.options["momentum"] == 0
    assert results.optimizer.groups == ({"parameters": results.model.parameters},)
    assert results.data is not None
    assert (results.data.name, results.data.samples) == ("TensorDataset", 256)
    assert results.data.validation_samples == 256
    assert results.numpy
    assert results.os
    assert results.machine.cpu
    assert results.created <= results.runs[0].started <= results.runs[0].ended <= results.ended
    assert {run.threads for run in results.runs} == {1}
    assert {run.seed for run in results.runs} == {7, 8}
    text = (stored / "results.json").read_text("utf-8")
    assert str(stored.parent) not in text
    assert str(Path.home()) not in text or Path.home() == Path("/")


def test_a_path_that_names_other_folders_is_not_stored(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    script = Script(path=write_script(folder), job="job")
    elsewhere, below = record_script(script, tmp_path / "out"), record_script(script, folder / "a")
    assert (elsewhere.path, elsewhere.name) == (None, "script.py")
    assert below.path == "../script.py"
    assert "private" not in f"{elsewhere}{below}"


def a_job() -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
    return mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=16,
        epochs=2,
    )


def test_a_job_that_is_in_no_script_is_handed_over(tmp_path: Path) -> None:
    job = a_job()
    mh.compare(job, "gossip", workers=3, repeats=1, virtual=True, output=tmp_path / "a")
    with pytest.raises(ValueError, match="was in no script"):
        mh.reproduce(tmp_path / "a", output=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert mh.reproduce(tmp_path / "a", a_job(), output=tmp_path / "b").same


def test_results_of_an_earlier_version_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"schema": 1, "manyhands": "0.0.9"}))
    with pytest.raises(ValueError, match=r"Manyhands 0\.0\.9 did not record it"):
        mh.reproduce(tmp_path)


def every_setting(**changes: object) -> Design:
    """A design in which nothing has its default."""
    settings = {
        "entrants": read_entrants(
            "asynchronous, asynchronous(damping=inverse), asynchronous slow all:1.2000001x, "
            "hierarchical(outer=diloco(every=20), islands=2), asynchronous"
        ),
        "workers": (4, 2),
        "seed": 5,
        "budget": Budget(epochs=0.1, samples=3, seconds=1.25, target="accuracy >= 0.9"),
        "slow": (Pace(1, 1.1), Pace(None, 2.0)),
        "virtual": VirtualConditions(
            times="lognormal(0.1, cv=0.25)", bandwidth="1gbit", latency=0.001, cores=2, hosts=2
        ),
        "repeats": 4,
        "margin": 0.1,
        "price": 2.5,
    }
    return Design(**(settings | changes))


@pytest.mark.parametrize(
    "design",
    [every_setting(), every_setting(virtual=None, network="100mbit, 20ms")],
    ids=["virtual", "live"],
)
def test_a_design_is_the_same_after_it_was_stored(design: Design, tmp_path: Path) -> None:
    results = Comparison(
        strategies=tuple(entrant.label for entrant in design.entrants),
        workers=design.workers,
        repeats=design.repeats,
        margin=design.margin,
        price=design.price,
        design=record_design(design),
    )
    write_results(results, tmp_path / "results.json")
    again = design_of(read_results(tmp_path), None)
    assert again == design
    assert [one.label for one in again.entrants] == [one.label for one in design.entrants]
    assert again.identity() == design.identity()


def test_every_field_of_a_design_is_stored() -> None:
    """A field that is added is stored as well, or a comparison is made again without it."""
    of_results = {"entrants", "workers", "repeats", "margin", "price"}
    stored = {*DesignRecord.__struct_fields__} - {"kind", "fixed", "assumed"} | of_results
    asked = {each.name for kind in (Design, Budget, VirtualConditions) for each in fields(kind)}
    # Script, cluster and sweeps have fields of the results.
    assert asked - {"script", "budget", "virtual", "cluster", "sweeps"} == stored


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(1200)
def test_a_live_comparison_comes_out_within_its_intervals(start, tmp_path: Path) -> None:
    write_script(tmp_path, samples=1024, epochs=1, device=0.03)
    made = start(
        *(*COMMAND, "compare", "script.py", "--strategies", "single, asynchronous"),
        *("--workers", "2", "--repeats", "3", "--output", "out"),
    )
    assert made.finish(400) == 0, made.text()
    again = start(*COMMAND, "reproduce", "out/results.json", "--output", "again")
    assert again.finish(400) == 0, again.text()
    assert "figures are within their intervals" in again.text()
    assert "single() × 1: Throughput" in again.text()
    for one in read_results(tmp_path / "out").runs:
        assert one.threads == 1

    script = tmp_path / "script.py"
    text = script.read_text("utf-8").replace("time.sleep(0.03)", "time.sleep(0.06)")
    script.write_text(text, "utf-8")
    slower = start(*COMMAND, "reproduce", "out", "--script", "script.py", "--output", "slower")
    assert slower.finish(400) == 1, slower.text()
    assert "OUTSIDE" in slower.text()
    assert not slower.tree()
