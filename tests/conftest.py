"""What all tests share: real data, real processes, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import quiet
from support import ROOT, Started

# Tests run side by side, so a single example may take long; those that compare times are `timed`.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "MANYHANDS_DATA" not in os.environ and (ROOT.parent / "shared" / "data").is_dir():
    os.environ["MANYHANDS_DATA"] = str(ROOT.parent / "shared" / "data")


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tests that compare times fail only where others left us the cores."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    quiet.run(item, nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _heed_signals() -> None:
    """Whoever runs the tests in the background, or under nohup, has told us to ignore these."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command in an empty folder; everything it started is ended with the test."""
    started: list[Started] = []

    def begin(*command: str | Path, **environment: str) -> Started:
        output = tmp_path / f"output-{len(started)}.txt"
        with output.open("w") as stream:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=tmp_path,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TMPDIR": str(tmp_path), **environment},
                start_new_session=True,
                preexec_fn=_heed_signals,  # noqa: PLW1509 - this process starts no threads
            )
        started.append(Started(process, tmp_path, output=output))
        return started[-1]

    yield begin
    for one in started:
        one.end()


@pytest.fixture
def run_script(start: Callable[..., Started], tmp_path: Path) -> Callable[..., Started]:
    """Start a script given as text with this Python."""

    def begin(text: str, *arguments: str, name: str = "script.py", **environment: str) -> Started:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return start(sys.executable, path, *arguments, **environment)

    return begin


@pytest.fixture
def forgets_names() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from manyhands import codecs, schedules
    from manyhands.strategies import CATALOG, catalog

    both, added = (CATALOG, codecs.CATALOG), dict(schedules._added)
    before = [(dict(one._classes), dict(one._known)) for one in both]
    yield
    for one, (classes, known) in zip(both, before, strict=True):
        one._classes, one._known = classes, known
    schedules._added.clear()
    schedules._added.update(added)
    catalog._read.cache_clear()


@pytest.fixture
def interrupt() -> Callable[[Started], None]:
    """Press Ctrl-C: the foreground process alone gets it, as its children lead other groups."""

    def press(started: Started) -> None:
        os.killpg(started.process.pid, signal.SIGINT)

    return press


@pytest.fixture
def fork(run_script) -> Callable[..., list[Any]]:
    """Run a script that calls `forked.run` with so many workers; what each of them gave."""

    def begin(text: str, workers: int, *arguments: object, seconds: float = 150) -> list[Any]:
        paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        given = [json.dumps(one) for one in (workers, *arguments)]
        started = run_script(text, *given, PYTHONPATH=os.pathsep.join(paths))
        assert started.finish(seconds) == 0, started.text()
        files = [started.folder / f"given-{rank}.json" for rank in range(workers)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    return begin
