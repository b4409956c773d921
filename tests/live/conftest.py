"""Live runs: of the benchmarks' own making, and of a test's script by the command line."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from manyhands.reports import Run
from support import Started


@pytest.fixture
def launch(start: Callable[..., Started]) -> Callable[[list[str], Mapping[str, str]], None]:
    """Run a command to its end, for `benchmarks.paced`."""

    def run(command: list[str], environment: Mapping[str, str]) -> None:
        started = start(*command, **environment)
        assert started.finish(150) == 0, started.text()

    return run


@pytest.fixture
def train_script(
    start: Callable[..., Started], tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Run]:
    """Train the job of the test module's `SCRIPT`, indented by 4, by the command line."""
    path = tmp_path / "script.py"
    lines = request.module.SCRIPT.splitlines()
    path.write_text("\n".join(line[4:] for line in lines), encoding="utf-8")

    def run(name: str, *options: str) -> Run:
        started = start(
            *(sys.executable, "-m", "manyhands", "train", path, "--job", "job"),
            *("--output", name, *options),
        )
        assert started.finish() == 0, started.text()
        return Run(tmp_path / name)

    return run
