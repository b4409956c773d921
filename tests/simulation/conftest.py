"""Simulated runs: one thread computes, or sums would depend on how many there are."""

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def rare_collections() -> Iterator[None]:
    """Garbage is looked for as often as in any virtual run, and not among what was imported."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
