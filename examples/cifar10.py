"""A small network on CIFAR-10 with augmentation, OneCycleLR, early stopping and a logger.

`examples/cifar10_plain.py` is the same in plain PyTorch, on one process.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import manyhands as mh

EPOCHS, BATCH, PATIENCE = 10, 250, 3


class Augmented(Dataset):
    """Photographs, moved and mirrored at random."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        top, left = torch.randint(0, 9, (2,)).tolist()
        return F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32], label


def block(width, wider):
    """A convolution that halves the image."""
    return nn.Conv2d(width, wider, 3, padding=1), nn.GroupNorm(8, wider), nn.ReLU(), nn.MaxPool2d(2)


def make_model():
    """Three blocks and a classifier."""
    layers = *block(3, 32), *block(32, 64), *block(64, 128)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


def make_optimizer(model):
    """AdamW on all parameters."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)


def make_scheduler(optimizer):
    """One cycle over all epochs."""
    return OneCycleLR(optimizer, max_lr=3e-3, total_steps=EPOCHS * 50_000 // BATCH)


job = mh.Job(
    model=make_model,
    optimizer=make_optimizer,
    lr_scheduler=make_scheduler,
    loss=F.cross_entropy,
    data=Augmented(mh.data.cifar10("train")),
    validation=mh.data.cifar10("test"),
    early_stopping=mh.EarlyStopping("loss", patience=PATIENCE),
    callbacks=[mh.callbacks.CSVLogger()],
    global_batch=BATCH,
    epochs=EPOCHS,
)

if __name__ == "__main__":
    print(mh.train(job, "allreduce()", workers=2).summary())
