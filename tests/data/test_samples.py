"""What holds for every set: lazy, quick to take from, one copy per host."""

import os
import pickle  # noqa: TID251 - that samples reach a spawned loader process is what is tested
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from manyhands.data import Samples, cifar10, mnist, tinyshakespeare
from manyhands.data.taking import taker

SETS = [mnist, cifar10, tinyshakespeare]


@pytest.mark.parametrize("make", SETS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_naming_a_set_touches_nothing(monkeypatch, tmp_path, make, split):
    monkeypatch.setenv("MANYHANDS_DATA", "/nowhere/at/all")
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path / "cache"))
    samples = make(split)
    assert isinstance(samples, Samples)
    assert len(samples) > 0
    assert eval(repr(samples), {make.__name__: make}).split == split  # noqa: S307 - its own repr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("make", SETS)
def test_an_unknown_split_is_refused_at_once(make):
    with pytest.raises(ValueError, match="must be 'train' or 'test', got 'validation'"):
        make("validation")


@pytest.fixture(params=[mnist, tinyshakespeare])
def samples(request, real) -> Samples:
    return request.param("test")


def test_a_batch_is_its_samples_stacked(samples):
    indices = torch.tensor([3, 0, 3, len(samples) - 1])
    inputs, targets = samples.take(indices)
    each = [samples[i] for i in indices]
    assert torch.equal(inputs, torch.stack([x for x, _ in each]))
    assert torch.equal(targets, torch.stack([y for _, y in each]))
    assert targets.dtype == torch.int64


def test_an_empty_batch_keeps_the_shape_of_a_sample(samples):
    inputs, targets = samples.take(torch.tensor([], dtype=torch.int64))
    assert inputs.shape == (0, *samples[0][0].shape)
    assert targets.shape == (0, *samples[0][1].shape)


def test_what_is_taken_belongs_to_the_taker(samples):
    before = samples[0][0].clone()
    inputs, targets = samples.take(torch.tensor([0]))
    kept = targets.clone()
    inputs.fill_(7)
    assert torch.equal(targets, kept)
    assert torch.equal(samples[0][0], before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_indices_are_integers_of_any_size(samples, dtype):
    assert len(samples.take(torch.tensor([1, 2], dtype=dtype))[0]) == 2


@pytest.mark.parametrize("indices", [torch.ones(2), torch.tensor(1), torch.tensor([True])])
def test_indices_of_another_kind_are_refused(samples, indices):
    with pytest.raises(ValueError, match="must be integers in one dimension"):
        samples.take(indices)


@pytest.mark.parametrize("where", [-1, 1_000_000])
def test_a_batch_outside_the_set_is_refused(samples, where):
    with pytest.raises(IndexError, match=f"samples and none at {where}"):
        samples.take(torch.tensor([0, where]))


def test_single_samples_are_indexed_as_in_a_list(samples):
    assert torch.equal(samples[-1][0], samples[len(samples) - 1][0])
    for outside in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError, match="none at"):
            samples[outside]


def test_a_pickled_set_carries_no_data(samples):
    samples.take(torch.tensor([0]))
    sent = pickle.dumps(samples)
    assert len(sent) < 10_000
    assert torch.equal(pickle.loads(sent)[5][0], samples[5][0])  # noqa: S301 - just made


def test_a_loader_takes_them_as_any_dataset(samples):
    inputs, targets = next(iter(DataLoader(samples, batch_size=4)))
    expected = samples.take(torch.arange(4))
    assert torch.equal(inputs, expected[0])
    assert torch.equal(targets, expected[1])


def test_two_processes_that_prepare_at_once_decode_once(originals, tmp_path):
    program = """
import gzip, sys
import manyhands as mh
times, decompress = [], gzip.decompress
gzip.decompress = lambda content: times.append(1) or decompress(content)
samples = mh.data.mnist("train")
print("ready", flush=True)
sys.stdin.readline()
samples.prepare()
print(len(times), int(samples[59_999][1]), flush=True)
"""
    environment = os.environ | {
        "MANYHANDS_DATA": str(originals),
        "MANYHANDS_CACHE": str(tmp_path / "cache"),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate()[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    # Images and labels are one original each, decompressed by one of the two.
    assert sum(int(times) for times, _ in said) == 2
    assert [label for _, label in said] == ["8", "8"]
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_epoch_of_batches_never_holds_the_set_as_floats(real, session_cache):
    program = """
import re, torch
from pathlib import Path
import manyhands as mh

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

samples = mh.data.mnist("train")
samples.take(torch.arange(256))
Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew from here.
before = peak()
for batch in torch.randperm(len(samples)).split(256):
    samples.take(batch)
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    # Its bytes, shared with every other process, are 45 MiB; as floats they would be 180.
    assert int(done.stdout) < 45 + 16


def test_a_subset_is_taken_at_once(samples):
    subset = torch.utils.data.Subset(samples, [5, 2, 9])
    take = taker(subset)
    assert take is not None
    inputs, targets = take(torch.tensor([2, 0]))
    assert torch.equal(inputs, torch.stack([samples[9][0], samples[5][0]]))
    assert torch.equal(targets, torch.stack([samples[9][1], samples[5][1]]))
    assert taker(torch.utils.data.Subset([(1, 2)], [0])) is None


def test_a_subclass_loads_samples_in_its_own_way():
    class Twice(torch.utils.data.TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    assert taker(Twice(torch.ones(4))) is None
    assert taker(torch.utils.data.TensorDataset(torch.ones(4))) is not None
