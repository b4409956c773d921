"""A GAN on MNIST: two models, two optimizers, and a step of each for every batch.

    manyhands train examples/gan.py --strategy "allreduce()" --workers 2
    manyhands train examples/gan.py --strategy "synchronous()" --workers 2

An epoch takes one and a half minutes on two cores. The noise of a fake image is a part of its
sample, so it is the same on any number of workers.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh

NOISE = 64


class Images(torch.utils.data.Dataset):
    """Digits with pixels from −1 to 1, each with the noise for a fake one."""

    def __init__(self, split):
        self.digits = mh.data.mnist(split)

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image, _ = self.digits[index]
        pixels = image * 0.3081 + 0.1307
        return {"real": 2 * pixels - 1, "noise": torch.randn(NOISE)}


def generator():
    """Images of noise."""
    return nn.Sequential(
        nn.Linear(NOISE, 64 * 7 * 7),
        nn.Unflatten(1, (64, 7, 7)),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator():
    """How real images look: a logit each."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.GroupNorm(8, 64),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1),
    )


def discriminator_loss(model, batch):
    """The loss of telling real images from fake ones."""
    real = model.discriminator(batch["real"])
    fake = model.discriminator(model.generator(batch["noise"]).detach())
    return F.binary_cross_entropy_with_logits(
        real, torch.ones_like(real)
    ) + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))


def generator_loss(model, batch):
    """The loss of fake images that are recognised."""
    fake = model.discriminator(model.generator(batch["noise"]))
    return F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


job = mh.Job(
    model=lambda: nn.ModuleDict({"generator": generator(), "discriminator": discriminator()}),
    optimizer=lambda model: {
        name: torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for name, part in model.items()
    },
    objective={"discriminator": discriminator_loss, "generator": generator_loss},
    data=Images("train"),
    validation=Images("test"),
    global_batch=128,
    epochs=1,
)

if __name__ == "__main__":
    run = mh.train(job, "allreduce()", workers=2)
    print(run.summary())
    for name in ("discriminator_loss", "generator_loss"):
        print(f"{name}: {run.metrics[name]:.3f}")
