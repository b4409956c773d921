"""Checkpoints of a run: generations of safetensors files, each with a manifest.

A generation is a folder whose name is the number of samples that the run had been trained on:

    checkpoints/000000030720/
        manifest.json            what is stored, where, and the SHA-256 of the files below
        manifest.sha256          the SHA-256 of the manifest
        worker-0.safetensors     the tensors that worker 0 stored, or its parts of them
        worker-1.safetensors

It is written under another name, synced, and renamed when it is complete, so a generation is either
whole or absent. The format is described in docs/checkpoints.md.
"""

from manyhands.files.checkpoints.manifest import (
    ASKED,
    CHECKPOINTS,
    CheckpointPlace,
    Manifest,
    ManifestFile,
    ManifestPart,
    ManifestTensor,
    PartFile,
)
from manyhands.files.checkpoints.parts import MemberState, TensorPart
from manyhands.files.checkpoints.reading import (
    Checkpoint,
    DamagedCheckpoint,
    generations,
    latest,
)
from manyhands.files.checkpoints.writing import CheckpointFolder, sweep

__all__ = [
    "ASKED",
    "CHECKPOINTS",
    "Checkpoint",
    "CheckpointFolder",
    "CheckpointPlace",
    "DamagedCheckpoint",
    "Manifest",
    "ManifestFile",
    "ManifestPart",
    "ManifestTensor",
    "MemberState",
    "PartFile",
    "TensorPart",
    "generations",
    "latest",
    "sweep",
]
