"""Scripts that fork their workers (see `forked`)."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from support import ROOT


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
