"""Live runs of the benchmarks' own making."""

from collections.abc import Callable, Mapping

import pytest

from support import Started


@pytest.fixture
def launch(start: Callable[..., Started]) -> Callable[[list[str], Mapping[str, str]], None]:
    """Run a command to its end, for `benchmarks.paced`."""

    def run(command: list[str], environment: Mapping[str, str]) -> None:
        started = start(*command, **environment)
        assert started.finish(150) == 0, started.text()

    return run
