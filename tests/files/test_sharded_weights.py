"""Weights in several files with an index are those of the model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from manyhands.cli.app import app
from manyhands.files.checkpoint import save_model
from manyhands.files.sharded_weights import write_sharded
from manyhands.files.weights import INDEX, open_weights


class Tied(torch.nn.Module):
    """A model whose first and last layer share a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(10, 4)
        self.inner = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.count = torch.nn.Buffer(torch.tensor(7))
        self.last = torch.nn.Linear(4, 10, bias=False)
        self.last.weight = self.embed.weight


@pytest.mark.parametrize(("largest", "files"), [(10_000, 1), (170, 2), (1, 4)])
def test_shards_have_every_tensor_once(tmp_path: Path, largest: int, files: int) -> None:
    model = Tied()
    digest = save_model(model, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path)
    written = write_sharded(weights, tmp_path / "out", largest)
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(written)
    expected = model.state_dict()
    if files == 1:
        assert [path.name for path in written] == ["model.safetensors"]
        assert open_weights(tmp_path / "out").digest() == digest
        return
    *shards, index = written
    assert len(shards) == files
    assert index.name == INDEX
    places = json.loads(index.read_text())
    found = {}
    for shard in shards:
        tensors = load_file(shard)
        assert all(places["weight_map"][name] == shard.name for name in tensors)
        assert not found.keys() & tensors.keys()
        found |= tensors
    assert found.keys() == places["weight_map"].keys() == expected.keys() - {"last.weight"}
    assert all(found[name].equal(expected[name]) for name in found)
    size = sum(one.numel() * one.element_size() for one in found.values())
    assert places["metadata"] == {"total_size": size}
    again = dict(open_weights(tmp_path / "out").values())
    assert all(again[name].equal(expected[name]) for name in again)


def test_the_command_writes_them_once(tmp_path: Path) -> None:
    save_model(Tied(), tmp_path / "model.safetensors")
    command = ["export", str(tmp_path), "--format", "weights"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "export" / "model.safetensors").exists()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "already" in done.output
    done = CliRunner().invoke(app, [*command[:-1], "weights,csv"])
    assert done.exit_code == 2
    assert "by itself" in done.output
