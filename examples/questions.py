r"""Two questions that a plan answers before a machine is rented; nothing is trained or downloaded.

    manyhands plan examples/questions.py --job resnet --assume "5 TFLOP/s" \
        --cluster "16 hosts of 1 worker, 1gbit" --slow 15:3x --workers 16

    manyhands plan examples/questions.py --job gpt --assume "20 TFLOP/s" \
        --cluster "2 sites of 8 workers, 10gbit within, 100mbit and 40ms between" --workers 16

The data have only their shapes. What a plan rests on: docs/plan.md.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh


class Shapes(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of zeros."""

    def __init__(self, size: int, sample: torch.Tensor, target: torch.Tensor) -> None:
        self._size = size
        self._pair = (sample, target)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pair


resnet = mh.Job(
    model=mh.models.ResNet50V2,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    loss=F.cross_entropy,
    data=Shapes(1_281_167, torch.zeros(3, 224, 224), torch.tensor(0)),
    global_batch=512,
    epochs=1,
)
"""ResNet50V2 on photographs of ImageNet's size."""

_TOKENS = torch.zeros(1024, dtype=torch.long)
gpt = mh.Job(
    model=lambda: mh.models.GPT.sized("124m"),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-4),
    loss=F.cross_entropy,
    data=Shapes(1_000_000, _TOKENS, _TOKENS),
    global_batch=256,
    epochs=1,
)
"""A GPT of GPT-2's smallest size, 1,024 tokens a sample."""
