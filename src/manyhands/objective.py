"""An objective of one's own: what a step minimises, as a function of a model and a batch.

It is a function and not a method of a module, so that a line of an existing training loop can be
moved into it as it is (`docs/decisions/0060-objectives.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, eq=False)
class Weighted:
    """A loss that is a mean over something else than samples: tokens, pixels, labelled samples.

    The loss of a global batch is the sum of all totals divided by the sum of all weights, however
    the batch is divided among workers and micro-batches. Means of parts would be wrong: a part
    with few labels would count as much as one with many.

    Args:
        total: the sum of the losses of all counted elements, as a scalar tensor.
        weight: the number of these elements; 0 is allowed.
        outputs: what metrics compare with the targets at an evaluation; needed only with metrics.
        targets: the targets for these outputs.

    Example:
        >>> import torch, torch.nn.functional as F
        >>> import manyhands as mh
        >>> def objective(model, batch):
        ...     outputs, labels = model(batch["text"]), batch["labels"]
        ...     total = F.cross_entropy(outputs, labels, ignore_index=-100, reduction="sum")
        ...     return mh.Weighted(total, (labels != -100).sum())
        >>> batch = {"text": torch.ones(3, 2), "labels": torch.tensor([1, -100, 0])}
        >>> objective(torch.nn.Linear(2, 2), batch).weight
        tensor(2)
    """

    total: torch.Tensor
    weight: torch.Tensor | float
    outputs: Any = None
    targets: Any = None

    @property
    def mean(self) -> torch.Tensor:
        """The total divided by the weight; 0 if the weight is 0."""
        weight = torch.as_tensor(self.weight, device=self.total.device)
        return self.total / torch.where(weight > 0, weight, 1).to(self.total.dtype)


Objective: TypeAlias = Callable[[Any, Any], "torch.Tensor | Weighted"]
"""`objective(model, batch)`: the loss, a mean over samples, or a `Weighted` one."""
