"""The script of `benchmarks.loading`: a data set whose samples take their time to load."""

import time

import torch
from torch import nn

import manyhands as mh
from benchmarks import loading


class Slow(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are loaded one by one, as from a disk."""

    def __len__(self) -> int:
        """So many samples."""
        return loading.EPOCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load a sample."""
        time.sleep(loading.SECONDS)
        made = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=made), torch.randn(8, generator=made)


job = mh.Job(
    model=lambda: nn.Linear(64, 8),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    loss=nn.functional.mse_loss,
    data=Slow(),
    global_batch=loading.BATCH,
    epochs=loading.EPOCHS,
    num_workers=loading.LOADERS,
    metrics=(),
)
