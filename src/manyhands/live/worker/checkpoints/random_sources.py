"""The states of a worker's random generators, as tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from manyhands.seeding import random_state, restore_random_state


def capture(device: torch.device) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The states of torch's, Python's and NumPy's generators: tensors, and plain values."""
    of_torch, of_python, of_numpy = random_state()
    if not isinstance(of_numpy, tuple):
        raise TypeError("NumPy's global generator is not its own MT19937")
    name, keys, *rest = of_numpy
    tensors = {
        "random/torch": of_torch,
        "random/numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
    }
    if device.type == "cuda":
        tensors["random/device"] = torch.cuda.get_rng_state(device)
    return tensors, {"python": json.dumps(of_python), "numpy": json.dumps([name, *rest])}


def restore(tensors: dict[str, torch.Tensor], values: dict[str, Any], device: torch.device) -> None:
    """Continue from what `capture` returned."""
    version, words, gauss = json.loads(values["python"])
    name, *rest = json.loads(values["numpy"])
    keys = tensors["random/numpy"].numpy().astype(np.uint32)
    restore_random_state(
        (tensors["random/torch"], (version, tuple(words), gauss), (name, keys, *rest))
    )
    if device.type == "cuda" and "random/device" in tensors:
        torch.cuda.set_rng_state(tensors["random/device"], device)
