"""Strategies and schedules of one's own, by name: from a script and from an installed package."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pytest

import manyhands as mh
from manyhands import schedules
from manyhands.protocols import Synchronous
from manyhands.schedules import gpipe
from manyhands.strategies import CATALOG, is_known

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
    from dataclasses import dataclass
    from typing import ClassVar

    import manyhands as mh

    @mh.register
    @dataclass(frozen=True, repr=False)
    class Careful(mh.protocols.Synchronous):
        '''Synchronous training of a package of one's own.'''

        name: ClassVar[str] = "careful"
        patience: int = 3
        '''Without an effect.'''
"""
RUN = """
    import torch
    import manyhands as mh

    data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    job = mh.Job(
        model=lambda: torch.nn.Linear(3, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=16,
        epochs=1,
    )
"""


pytestmark = pytest.mark.usefixtures("forgets_names")


def define(name: str = "mine", default: int = 1) -> type:
    @dataclass(frozen=True, repr=False)
    class Mine(Synchronous):
        """A strategy of a test."""

        size: int = default
        """How much."""

    Mine.name = name  # type: ignore[misc]
    return Mine


def test_a_registered_class_is_read_written_and_described() -> None:
    mine = mh.register(define())
    assert mh.strategy("mine(size=4)") == mine(size=4)
    assert str(mine(size=4)) == "mine(size=4)"
    assert mh.strategy(mine(size=4)) == mine(size=4)
    assert "mine" in mh.strategies.names()
    assert CATALOG.describe("mine").summary == "A strategy of a test."
    assert is_known("mine(2)")


def test_an_object_of_an_unregistered_class_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"@mh\.register"):
        mh.strategy(define()())


def test_a_second_definition_in_the_same_file_replaces_the_first() -> None:
    mh.register(define(default=1))
    assert mh.strategy("mine()").size == 1
    mh.register(define(default=7))
    assert mh.strategy("mine()").size == 7


@pytest.mark.parametrize("name", ["ssp", "locked"])
def test_a_name_of_the_catalog_cannot_be_taken(name: str) -> None:
    with pytest.raises(TypeError, match=f"there is a strategy '{name}' already"):
        mh.register(define(name))
    assert mh.strategy("ssp(staleness=4)") == mh.strategies.ssp(staleness=4)


def test_a_class_of_the_same_name_from_elsewhere_is_refused() -> None:
    mh.register(define())

    @dataclass(frozen=True, repr=False)
    class Other(Synchronous):
        """Another one."""

        name: ClassVar[str] = "mine"

    with pytest.raises(TypeError, match=r"give .*Other another name"):
        mh.register(Other)


def test_what_is_no_strategy_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match="expected a subclass of"):
        mh.register(int)
    with pytest.raises(TypeError, match="expected a subclass of"):
        mh.register("ssp")

    @dataclass(frozen=True, repr=False)
    class Half(mh.protocols.StrategyProtocol):
        """Without an algorithm."""

        name: ClassVar[str] = "half"

    with pytest.raises(TypeError, match="must define refresh, worker"):
        mh.register(Half)


def test_a_schedule_of_ones_own() -> None:
    def late(stages: int, microbatches: int, ranks: int) -> schedules.Table:
        return gpipe(stages, microbatches, ranks)

    mh.register(late)
    strategy = mh.strategy('pipeline(schedule="late", microbatches=4)')
    assert str(strategy) == 'pipeline(microbatches=4, schedule="late")'
    assert strategy.table(2) == mh.strategies.pipeline(schedule="gpipe", microbatches=4).table(2)
    with pytest.raises(ValueError, match=r"there is no schedule 'later'; there are .*late"):
        mh.strategy('pipeline(schedule="later")')


def test_a_schedule_that_deadlocks_is_refused_before_a_process_starts() -> None:
    def stuck(stages: int, microbatches: int, ranks: int) -> schedules.Table:
        table = gpipe(stages, microbatches, ranks)
        backwards = tuple(tuple(reversed(actions)) for actions in table.ranks)
        return replace(table, ranks=backwards)

    mh.register(stuck)
    with pytest.raises(ValueError, match="deadlock"):
        mh.strategy('pipeline(schedule="stuck")').check(2)


def wheel(folder: Path, name: str, source: str, point: str) -> Path:
    """A package with one module and one entry point, as a file that pip installs."""
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": textwrap.dedent(source),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[manyhands]\n{point}\n",
    }
    record = []
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
            digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record.append(f"{file},sha256={digest.decode()},{len(text.encode())}")
        archive.writestr(f"{about}/RECORD", "\n".join([*record, f"{about}/RECORD,,", ""]))
    return path


def install(folder: Path, *wheels: Path) -> Path:
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(site), *map(str, wheels)], check=True)
    return site


@pytest.mark.slow
def test_a_package_brings_a_strategy_by_an_entry_point(tmp_path: Path, start) -> None:
    good = wheel(tmp_path, "careful_training", OWN, "careful = careful_training:Careful")
    bad = wheel(tmp_path, "broken_training", "1 / 0", "broken = broken_training:Broken")
    site = install(tmp_path, good, bad)
    (tmp_path / "job.py").write_text(textwrap.dedent(RUN))
    manyhands = (sys.executable, "-m", "manyhands")
    listed = start(*manyhands, "strategies", "careful", PYTHONPATH=_with(site))
    assert listed.finish() == 0, listed.text()
    assert "of a package of one's own" in listed.text()
    live = start(
        *manyhands, "train", "job.py", "--strategy", "careful(patience=5)", "--workers", "2",
        "--output", "run", PYTHONPATH=_with(site),
    )  # fmt: skip
    assert live.finish() == 0, live.text()
    assert "careful(patience=5)" in live.text()
    assert "broken = 'broken_training:Broken' could not be loaded: division by zero" in live.text()
    virtual = start(
        *manyhands, "simulate", "job.py", "--strategy", "careful()", "--workers", "3",
        PYTHONPATH=_with(site),
    )  # fmt: skip
    assert virtual.finish() == 0, virtual.text()


def _with(site: Path) -> str:
    return f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def test_an_unknown_name_is_refused_after_the_script(tmp_path: Path, start) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(RUN))
    started = start(
        sys.executable, "-m", "manyhands", "train", "job.py", "--strategy", "spp()"
    )  # fmt: skip
    assert started.finish() == 2, started.text()
    assert "there is no strategy 'spp'" in started.text()
    assert "Traceback" not in started.text()
