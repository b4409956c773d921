import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.data import tinyshakespeare


def spelled(samples, tokens) -> str:
    return "".join(samples.vocabulary[token] for token in tokens.tolist())


def test_a_window_is_text_and_its_target_is_one_character_later(real):
    text = (real / "text" / "tinyshakespeare.txt").read_text()
    samples = tinyshakespeare("train", length=50)
    for index in (0, 7, len(samples) - 1):
        inputs, targets = samples[index]
        assert inputs.shape == targets.shape == (50,)
        assert inputs.dtype == targets.dtype == torch.int64
        assert spelled(samples, inputs) == text[index * 50 : index * 50 + 50]
        assert spelled(samples, targets) == text[index * 50 + 1 : index * 50 + 51]


@pytest.mark.parametrize("length", [1, 128, 1000])
def test_the_windows_of_a_split_are_its_text_end_to_end(real, length):
    text = (real / "text" / "tinyshakespeare.txt").read_text()
    cut = len(text) * 9 // 10
    for split, part in (("train", text[:cut]), ("test", text[cut:])):
        samples = tinyshakespeare(split, length)
        inputs, targets = samples.take(torch.arange(len(samples)))
        assert spelled(samples, inputs.flatten()) == part[: inputs.numel()]
        assert spelled(samples, targets.flatten()) == part[1 : inputs.numel() + 1]
        assert len(part) - 1 - inputs.numel() < length


def test_the_vocabulary_is_the_texts(real):
    text = (real / "text" / "tinyshakespeare.txt").read_text()
    assert tinyshakespeare("test").vocabulary == "".join(sorted(set(text)))


@given(st.integers(1, 111_538))
def test_every_length_gives_windows_within_the_split(length):
    samples = tinyshakespeare("test", length)
    assert len(samples) >= 1
    assert samples.start + len(samples) * length + 1 <= samples.end == 1_115_394


@pytest.mark.parametrize("length", [0, -1, 111_540])
def test_a_length_that_gives_no_window_is_refused(length):
    with pytest.raises(ValueError, match=f"length must be from 1 to 111,539, got {length}"):
        tinyshakespeare("test", length)
