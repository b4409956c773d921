"""What torch loads only when it is first needed."""

import importlib


def load_late_parts() -> None:
    """Load what a first optimizer would load: more than two seconds of computing."""
    importlib.import_module("torch._dynamo")
