"""A transformer that predicts the next token."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


class GPT(nn.Sequential):
    """Embeddings, blocks of causal attention and a two-layer network, and logits.

    Takes tokens `[N, length]`, gives logits `[N, vocabulary, length]`, as `F.cross_entropy` and
    the accuracy expect them. Layer normalisation is before each part of a block and after the last;
    the embedding and the last layer are not tied. Only attention combines positions, and query, key
    and value are separate layers, so heads, layers and sequence shards can each be computed on
    different workers.

    Args:
        vocabulary: number of different tokens.
        length: the longest sequence.
        width: size of a token's vector.
        layers: number of blocks.
        heads: heads of each attention; they divide the width.
        dropout: dropout probability after each part of a block.

    Example:
        >>> GPT()(torch.zeros(2, 16, dtype=torch.int64)).shape
        torch.Size([2, 65, 16])
        >>> GPT.sized("tiny", vocabulary=65, length=32)[0].position.weight.shape
        torch.Size([32, 32])

    Paper: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
    """

    def __init__(
        self,
        vocabulary: int = 65,
        length: int = 128,
        width: int = 64,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        if width % heads:
            raise ValueError(f"width must be divisible by heads, got width={width}, heads={heads}")
        blocks = [(f"block{n + 1}", Block(width, heads, dropout)) for n in range(layers)]
        super().__init__(
            OrderedDict(
                [
                    ("embedding", Embedding(vocabulary, length, width)),
                    *blocks,
                    ("head", Head(width, vocabulary)),
                ]
            )
        )
        self._initialize(layers)

    @classmethod
    def sized(cls, size: str, vocabulary: int = 50257, length: int = 1024) -> GPT:
        """A GPT of a known size: "tiny", "124m", "355m" or "1b"."""
        if size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
        width, layers, heads = SIZES[size]
        return cls(vocabulary, length, width, layers, heads)

    def _initialize(self, layers: int) -> None:
        """Normal, 0.02; smaller for layers that are added to the stream, by their number."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            if parameter.dim() < 2:
                continue
            deep = name.endswith(("attention.out.weight", "mlp.down.weight"))
            deviation = 0.02 / (2 * layers) ** 0.5 if deep else 0.02
            nn.init.normal_(parameter, std=deviation)


SIZES = {"tiny": (32, 2, 2), "124m": (768, 12, 12), "355m": (1024, 24, 16), "1b": (2048, 16, 16)}
"""Width, layers and heads. The names are parameter counts with GPT-2's vocabulary and tied
embeddings; here embeddings are not tied, so there are some more."""


class Embedding(nn.Module):
    """Tokens and their positions as vectors, `[N, length, width]`."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The sum of both."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        vectors: Tensor = self.token(tokens) + self.position(positions)
        return vectors


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """The stream, with both parts added to it."""
        stream = stream + self.dropout(self.attention(self.before_attention(stream)))
        total: Tensor = stream + self.dropout(self.mlp(self.before_mlp(stream)))
        return total


class Attention(nn.Module):
    """Causal attention with several heads.

    Only the size of heads is fixed in the computation, not their number: a worker that has a part
    of the rows of query, key and value computes the corresponding heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """The attention of each position to those before it."""
        query, key, value = (
            layer(stream).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """Two layers, the inner one four times as wide, with GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """Each position by itself."""
        narrow: Tensor = self.down(functional.gelu(self.up(stream)))
        return narrow


class Head(nn.Module):
    """Normalisation and logits."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """`[N, vocabulary, length]`."""
        logits: Tensor = self.logits(self.norm(stream))
        return logits.transpose(1, 2).contiguous()
