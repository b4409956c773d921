"""Preloading of parts that torch imports lazily."""

import importlib


def load_late_parts() -> None:
    """Import what the first optimizer would import, which takes more than two seconds."""
    importlib.import_module("torch._dynamo")
