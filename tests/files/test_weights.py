"""Existing weights are found, read one by one, and refused if they are pickled or damaged."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from manyhands.files.checkpoint import load_state, save_model
from manyhands.files.tensor_format import MODEL
from manyhands.files.weights import INDEX, open_weights

TENSORS = {
    "matrix": torch.arange(12.0).view(3, 4),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
    "brain": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "count": torch.tensor(7),
}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def stored(path: Path) -> Path:
    safetensors.torch.save_file(TENSORS, path)
    return path


def sharded(folder: Path) -> Path:
    halves = {"a.safetensors": [*TENSORS][:3], "b.safetensors": [*TENSORS][3:]}
    for file, names in halves.items():
        safetensors.torch.save_file({name: TENSORS[name] for name in names}, folder / file)
    index = {name: file for file, names in halves.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}), "utf-8")
    return folder / INDEX


def check_content(path: Path) -> None:
    read = dict(open_weights(path).values())
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor), name


def test_a_file_is_read(tmp_path):
    check_content(stored(tmp_path / "some.safetensors"))


def test_a_folder_is_read(tmp_path):
    stored(tmp_path / MODEL)
    check_content(tmp_path)


def test_an_index_and_its_folder_are_read(tmp_path):
    check_content(sharded(tmp_path))
    check_content(tmp_path)


def test_values_are_read_inside_of_a_default_device(tmp_path):
    weights = open_weights(stored(tmp_path / "some.safetensors"))
    with torch.device("meta"):
        assert torch.equal(weights.tensors["matrix"].read(), TENSORS["matrix"])


def test_a_stored_model_has_all_names_and_the_same_digest(tmp_path):
    model = Tied()
    digest = save_model(model, tmp_path / MODEL)
    weights = open_weights(tmp_path)
    assert weights.tensors.keys() == model.state_dict().keys()
    assert weights.digest() == digest
    assert [name for name, _ in weights.values(digest)] == sorted(model.state_dict())


def test_other_programs_find_the_format(tmp_path):
    save_model(nn.Linear(2, 2), tmp_path / MODEL)
    with safetensors.safe_open(tmp_path / MODEL, framework="pt") as file:
        assert file.metadata()["format"] == "pt"


def test_a_changed_file_is_refused(tmp_path):
    digest = save_model(nn.Linear(2, 2), tmp_path / MODEL)
    save_model(nn.Linear(2, 2), tmp_path / MODEL)
    with pytest.raises(ValueError, match="is not what it was at the start of the run"):
        list(open_weights(tmp_path).values(digest))


def test_a_pickle_is_refused_with_lines_that_convert_it(tmp_path, monkeypatch):
    model = Tied()
    model.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
    monkeypatch.chdir(tmp_path)
    torch.save(model.state_dict(), "old.pt")  # noqa: TID251 - what is refused
    with pytest.raises(ValueError, match="is a pickle file") as refused:
        open_weights("old.pt")
    lines = re.findall(r"^    (.+)$", str(refused.value), re.MULTILINE)
    assert len(lines) == 2
    exec("\n".join(lines), {"torch": torch, "safetensors": safetensors})  # noqa: S102
    read = dict(open_weights("old.safetensors").values())
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(read[name], one) for name, one in model.state_dict().items())


def test_a_pickle_is_known_by_its_content(tmp_path):
    torch.save({}, tmp_path / "weights.safetensors")  # noqa: TID251 - what is refused
    with pytest.raises(ValueError, match="is a pickle file"):
        open_weights(tmp_path / "weights.safetensors")


def test_a_folder_with_pickles_alone_is_refused_with_the_lines(tmp_path):
    torch.save({}, tmp_path / "pytorch_model.bin")  # noqa: TID251 - what is refused
    with pytest.raises(ValueError, match=r"torch\.load\('.*pytorch_model.bin', weights_only=True"):
        open_weights(tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*absent; give a safetensors file"):
        open_weights(tmp_path / "absent")
    with pytest.raises(ValueError, match=f"has neither {MODEL} nor {INDEX}; give"):
        open_weights(tmp_path)
    (tmp_path / "trace").mkdir()
    with pytest.raises(ValueError, match="stored no model: it has not finished"):
        open_weights(tmp_path)


def test_a_file_of_another_name_in_a_folder_is_named(tmp_path):
    stored(tmp_path / "some.safetensors")
    with pytest.raises(ValueError, match=r"but some.safetensors: give the path of the file"):
        open_weights(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_a_damaged_file_is_refused(tmp_path, kept):
    path = stored(tmp_path / MODEL)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is not a safetensors file, or is damaged"):
        open_weights(path)


def test_an_index_must_be_right(tmp_path):
    index = sharded(tmp_path)
    content = json.loads(index.read_text("utf-8"))
    for name, shard, words in [
        ("matrix", "../a.safetensors", "is not a file beside it"),
        ("matrix", "c.safetensors", "does not exist: copy all shards"),
        ("matrix", "b.safetensors", "which does not have it"),
    ]:
        changed = {**content["weight_map"], name: shard}
        index.write_text(json.dumps({"weight_map": changed}), "utf-8")
        with pytest.raises(ValueError, match=words):
            open_weights(index)
    index.write_text("[]", "utf-8")
    with pytest.raises(ValueError, match="has no 'weight_map'"):
        open_weights(index)


def test_a_run_may_be_read_as_before(tmp_path):
    model = Tied()
    save_model(model, tmp_path / MODEL)
    assert load_state(tmp_path / MODEL).keys() == model.state_dict().keys()
