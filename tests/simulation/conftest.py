"""Simulated runs: one thread computes, or sums would depend on how many there are."""

from collections.abc import Iterator

import pytest

from manyhands.testing.observation import one_thread


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    with one_thread():
        yield
