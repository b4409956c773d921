import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands.files.checkpoint import digest, load_state, save_model

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
)

KILLED = """
    import pathlib, resource, signal, sys, torch
    from manyhands.files.checkpoint import save_model

    # The kernel ends a process that writes beyond the limit, in the middle of the file.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    save_model(torch.nn.Linear(300, 300), pathlib.Path(sys.argv[1]))
"""


class Odd(nn.Module):
    """A module with every kind of tensor that a state can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.tied = self.first
        self.weight = self.first.weight
        storage = torch.arange(24.0)
        for name, tensor in {
            "transposed": storage.view(4, 6).t(),
            "every_other": storage[::2],
            "overlapping": storage[2:8],
            "scalar": torch.tensor(2.5),
            "counter": torch.tensor(7),
            "empty": torch.empty(0, 4),
            "also_empty": torch.empty(0, 4),
            "flags": torch.tensor([True, False, True]),
            "brain": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
            "halves": torch.tensor([[0.5]], dtype=torch.float16),
            "bits": torch.tensor([0, 255], dtype=torch.uint8),
        }.items():
            self.register_buffer(name, tensor)
        self.register_buffer("left_out", torch.ones(2), persistent=False)


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def test_every_kind_of_tensor_comes_back_as_it_was(tmp_path: Path) -> None:
    model = Odd()
    save_model(model, tmp_path / "model.safetensors")
    state = load_state(tmp_path / "model.safetensors")
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    assert "left_out" not in state
    for name, tensor in expected.items():
        assert same(state[name], tensor), name


def test_tied_parameters_are_stored_once_and_come_back_under_every_name(tmp_path: Path) -> None:
    model = nn.ModuleDict({"encode": nn.Linear(500, 200, bias=False)})
    model["decode"] = model["encode"]
    path = tmp_path / "model.safetensors"
    told = save_model(model, path)
    assert path.stat().st_size < 1.1 * 500 * 200 * 4
    state = load_state(path)
    assert digest(state) == told, "the file can be checked against it"
    assert state["decode.weight"] is state["encode.weight"]
    assert same(state["decode.weight"], model["encode"].weight.detach())


def test_tensors_that_share_memory_but_differ_in_shape_or_kind_are_kept_apart(
    tmp_path: Path,
) -> None:
    storage = torch.arange(9.0)
    model = holding(
        flat=storage,
        table=storage.view(3, 3),
        turned=storage.view(3, 3).t(),
        first=storage[:3],
        bits=storage.view(torch.int32),
        spread=storage[:3].view(3, 1).expand(3, 5),
    )
    save_model(model, tmp_path / "model.safetensors")
    state = load_state(tmp_path / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert same(state[name], tensor), name


def test_a_model_loads_what_it_stored(tmp_path: Path) -> None:
    model, other = Odd(), Odd()
    path = tmp_path / "model.safetensors"
    before = save_model(model, path)
    other.load_state_dict(load_state(path))
    assert save_model(other, path) == before


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_tensors_survive_and_their_digest_is_that_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    source = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    shapes = st.lists(st.integers(0, 4), max_size=3)
    tensors = {}
    for name in data.draw(st.sets(st.text("abcxyz_", min_size=1, max_size=5), max_size=5)):
        if hasattr(nn.Module(), name):
            continue
        tensor = torch.rand(data.draw(shapes), generator=source) * 100 - 50
        tensor = tensor.to(data.draw(st.sampled_from(DTYPES)))
        tensors[name] = tensor.transpose(0, -1) if tensor.dim() > 1 else tensor
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    told = save_model(holding(**tensors), path)
    state = load_state(path)
    assert state.keys() == tensors.keys()
    assert all(same(state[name], tensor) for name, tensor in tensors.items())
    assert told == digest(state) == digest(tensors)


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_digest_does_not_depend_on_the_order_of_names(order: list[str]) -> None:
    tensors = {name: torch.full((2,), float(ord(name))) for name in "abcd"}
    assert digest({name: tensors[name] for name in order}) == digest(tensors)


def test_the_digest_does_not_depend_on_how_a_tensor_lies_in_memory() -> None:
    table = torch.arange(6.0).view(2, 3)
    assert digest({"a": table.t().contiguous().t()}) == digest({"a": table})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_digest_changes_with_any_value(dtype: torch.dtype) -> None:
    tensor = torch.zeros(5).to(dtype)
    digests = {digest({"a": tensor})}
    for place in range(5):
        changed = tensor.clone()
        changed[place] = 1
        digests.add(digest({"a": changed}))
    assert len(digests) == 6


def test_the_digest_changes_with_a_name_a_shape_a_type_and_a_sign() -> None:
    plain = torch.zeros(4)
    digests = [
        digest(state)
        for state in (
            {},
            {"a": plain},
            {"b": plain},
            {"a": plain.view(2, 2)},
            {"a": plain.to(torch.int32)},
            {"a": plain.double()[:2]},
            {"a": -plain},
            {"a": plain, "b": plain},
            {"a": plain[:0]},
            {"a": plain[0]},
            {"a": plain[:1]},
        )
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_of_a_parameter_is_that_of_its_values() -> None:
    weights = torch.arange(3.0)
    assert digest({"a": nn.Parameter(weights)}) == digest({"a": weights})


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no file beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(holding(a=torch.ones(3)), path)
    with files_of_at_most(10_000), pytest.raises(OSError, match="File too large"):
        save_model(holding(a=torch.zeros(100_000)), path)
    assert torch.equal(load_state(path)["a"], torch.ones(3))


def test_a_process_killed_while_it_writes_leaves_the_old_file_and_the_next_one_writes_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(holding(a=torch.ones(3)), path)
    writer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), path], check=False, timeout=60
    )
    assert writer.returncode == -signal.SIGXFSZ
    assert torch.equal(load_state(path)["a"], torch.ones(3))
    save_model(holding(a=torch.zeros(3)), path)
    assert torch.equal(load_state(path)["a"], torch.zeros(3))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
