"""A network with one LSTM shared by two sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class SharedLSTM(nn.Module):
    """One LSTM encodes two sequences; a dense layer classifies the pair of codes.

    The two encodings do not depend on each other, so they can be computed on two devices, each
    with a copy of the LSTM, and merged on a third:
    `place(modules=["encoder on 0, 1", "merge on 2"])`.

    Takes `[N, 2, length, inputs]`, gives logits `[N, outputs]`. 82,561 parameters as it comes.

    Args:
        inputs: size of the vector at each position of a sequence.
        hidden: size of a code.
        outputs: number of logits.

    The example is from Keras' guide to shared layers: do two messages have the same author?
    """

    def __init__(self, inputs: int = 256, hidden: int = 64, outputs: int = 1) -> None:
        super().__init__()
        self.encoder = LastState(inputs, hidden)
        self.merge = nn.Linear(2 * hidden, outputs)

    def forward(self, pairs: Tensor) -> Tensor:
        """The logits of each pair."""
        first, second = self.encoder(pairs[:, 0]), self.encoder(pairs[:, 1])
        logits: Tensor = self.merge(torch.cat([first, second], dim=-1))
        return logits


class LastState(nn.Module):
    """An LSTM of which only the last output is used, `[N, hidden]`."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, sequences: Tensor) -> Tensor:
        """The output at the last position."""
        outputs, _ = self.lstm(sequences)
        last: Tensor = outputs[:, -1]
        return last
