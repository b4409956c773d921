"""Weights in several files with an index, as Hugging Face's libraries store and read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from manyhands.files.checkpoint import Entry, State
from manyhands.files.tensor_format import MODEL
from manyhands.files.weights import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manyhands.files.weights import Weights

LARGEST: Final = 5_000_000_000
"""The most bytes of tensors in one file, as by default in transformers."""


def write_sharded(weights: Weights, folder: Path, largest: int = LARGEST) -> list[Path]:
    """Write weights as `model.safetensors`, or as several files and their index.

    Tensors are read and written one by one. A tensor with several names is stored under the first
    of them, as transformers does, and under the others in the metadata of its file.

    Args:
        weights: a model's tensors by name.
        folder: gets the files; it is made if it does not exist.
        largest: the most bytes of tensors in one file; a larger tensor has a file of its own.

    Returns:
        The files; the index is the last of several.

    Raises:
        ValueError: the folder has a model already.
    """
    known = [name for name in (MODEL, INDEX) if (folder / name).exists()]
    if known:
        raise ValueError(f"{folder} has a {known[0]} already: give another folder")
    shards = [*_shards(weights, largest)]
    folder.mkdir(parents=True, exist_ok=True)
    if len(shards) == 1:
        path = folder / MODEL
        shards[0].save(path)
        return [path]
    stem, suffix = MODEL.split(".")
    files: list[Path] = []
    places: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        path = folder / f"{stem}-{number:05}-of-{len(shards):05}.{suffix}"
        shard.save(path)
        files.append(path)
        places |= dict.fromkeys(shard.entries, path.name)
        total += sum(_nbytes(entry) for entry in shard.entries.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*files, folder / INDEX]


def _shards(weights: Weights, largest: int) -> Iterator[State]:
    """Tensors in the order of their names, divided at the most bytes of a file."""
    import torch  # noqa: PLC0415 - the command imports this without torch

    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    size = 0
    for name, tensor in weights.tensors.items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        entry = Entry(getattr(torch, tensor.dtype), tensor.shape, tensor.read)
        if entries and size + _nbytes(entry) > largest:
            yield State(entries, _within(aliases, entries))
            entries, size = {}, 0
        entries[name] = entry
        size += _nbytes(entry)
    yield State(entries, _within(aliases, entries))


def _within(aliases: dict[str, str], entries: dict[str, Entry]) -> dict[str, str]:
    return {name: original for name, original in aliases.items() if original in entries}


def _nbytes(entry: Entry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return count * entry.dtype.itemsize
