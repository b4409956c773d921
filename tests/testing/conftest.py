"""Scripts that a test loads do not stay on the path of others."""

import sys

import pytest


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
