"""tinyshakespeare: a million characters of plays, for next-character prediction.

Karpathy, "The Unreasonable Effectiveness of Recurrent Neural Networks", 2015. Public domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from manyhands.data.decoded import Bytes, Decoded
from manyhands.data.originals import Original
from manyhands.data.samples import Pair, Samples, Split, check_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHARACTERS = 1_115_394
# Where the text is cut: the first nine tenths are for training.
_CUT = _CHARACTERS * 9 // 10


def tinyshakespeare(split: Split, length: int = 128) -> Text:
    """Windows of the first 90 % ("train") or the rest ("test") of the text, `length` characters.

    Inputs and targets are int64 `[length]`, indices in `vocabulary`; a target is the character
    after its input. Windows do not overlap, so an epoch reads each character once; an incomplete
    window at the end of a split is not used.

    >>> text = tinyshakespeare("train", length=64)
    >>> text, len(text), len(text.vocabulary)
    (tinyshakespeare('train', length=64), 15685, 65)
    """
    check_split("tinyshakespeare", split)
    start, end = {"train": (0, _CUT), "test": (_CUT, _CHARACTERS)}[split]
    longest = end - start - 1
    if not 1 <= length <= longest:
        raise ValueError(f"length must be from 1 to {longest:,}, got {length}")
    decoded = Decoded(
        set="tinyshakespeare",
        split="all",
        originals=ORIGINALS,
        decode=_decode,
        shapes=((_CHARACTERS,),),
    )
    return Text("tinyshakespeare", split, decoded, length=length, start=start, end=end)


@dataclass(frozen=True, repr=False, eq=False)
class Text(Samples):
    """Windows of characters, each with the same window one character later."""

    length: int
    """Characters of a window."""
    start: int
    """First character of the split in the text."""
    end: int

    @property
    def vocabulary(self) -> str:
        """The distinct characters of the whole text; samples are indices in it."""
        return VOCABULARY

    def __len__(self) -> int:
        # The last window's last target needs one character more.
        return (self.end - self.start - 1) // self.length

    def _batch(self, rows: NDArray[np.int64]) -> Pair:
        (text,) = self._arrays
        starts = self.start + rows * self.length
        windows = text.take(starts[:, None] + np.arange(self.length + 1))
        inputs, targets = windows[:, :-1], windows[:, 1:]
        # Each in its own memory, so that changing one does not change the other.
        return torch.from_numpy(inputs.astype(np.int64)), torch.from_numpy(targets.astype(np.int64))

    def __repr__(self) -> str:
        return f"{self.name}({self.split!r}, length={self.length})"


def _decode(originals: list[bytes]) -> tuple[Bytes, ...]:
    (text,) = originals
    places = np.full(256, 255, np.uint8)
    places[np.frombuffer(VOCABULARY.encode("ascii"), np.uint8)] = np.arange(len(VOCABULARY))
    return (places[np.frombuffer(text, np.uint8)],)


ORIGINALS = (
    Original(
        name="tinyshakespeare.txt",
        folders=("text",),
        size=_CHARACTERS,
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        mirrors=(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        ),
    ),
)
