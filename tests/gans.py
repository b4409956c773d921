"""A small GAN in float64, as a job and as the plain loop of PyTorch's DCGAN example."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from manyhands.job import Job
from manyhands.sampling.permutation import permutation
from manyhands.seeding import Seeded, epoch_seed

SAMPLES, BATCH, EPOCHS, NOISE = 34, 10, 2, 4


class Points(torch.utils.data.Dataset):
    """Points of the plane, each with noise that is drawn anew in every epoch."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self.points = torch.randn(SAMPLES, 2, generator=draw, dtype=torch.float64)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"real": self.points[index], "noise": torch.randn(NOISE, dtype=torch.float64)}


class Gan(nn.Module):
    """Both models, which are called apart."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 8), nn.Tanh(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.double()


def discriminator_loss(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The loss of telling real points from made ones."""
    real = model.discriminator(batch["real"])
    fake = model.discriminator(model.generator(batch["noise"]).detach())
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The loss of made points that are recognised."""
    return F.softplus(-model.discriminator(model.generator(batch["noise"]))).mean()


def optimizers(model: Any) -> dict[str, torch.optim.Optimizer]:
    """Two of different kinds, one of them with two groups."""
    first, _, last = model.generator
    groups = [{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.02}]
    return {
        "discriminator": torch.optim.Adam(
            model.discriminator.parameters(), lr=0.02, betas=(0.5, 0.9)
        ),
        "generator": torch.optim.SGD(groups, lr=0.05, momentum=0.5),
    }


def gan_job(**options: Any) -> Job:
    """The GAN as a job."""
    given: dict[str, Any] = {
        "model": Gan,
        "optimizer": optimizers,
        "objective": {"discriminator": discriminator_loss, "generator": generator_loss},
        "data": Points(),
        "validation": Points(),
        "global_batch": BATCH,
        "epochs": EPOCHS,
    }
    return Job(**(given | options))


def batch_of(epoch: int, indices: torch.Tensor) -> dict[str, torch.Tensor]:
    """The batch of these samples; the noise of a sample depends on the seed and the epoch."""
    seeded = Seeded(Points(), None)
    samples = seeded.__getitems__((epoch_seed(0, epoch), indices.tolist()))
    return torch.utils.data.default_collate(samples)  # type: ignore[no-any-return]


def by_hand(*, clip: float | None = None) -> dict[str, torch.Tensor]:
    """The parameters after the loop of the DCGAN example, on all samples in one process."""
    torch.manual_seed(0)
    model = Gan()
    made = optimizers(model)
    for epoch in range(EPOCHS):
        for indices in permutation(SAMPLES, 0, epoch).split(BATCH):
            batch = batch_of(epoch, indices)
            # The last batch is short, and its steps are as much shorter.
            weight = len(indices) / BATCH
            made["discriminator"].zero_grad()
            real = model.discriminator(batch["real"])
            F.binary_cross_entropy_with_logits(real, torch.ones_like(real)).backward()
            fake = model.generator(batch["noise"])
            judged = model.discriminator(fake.detach())
            F.binary_cross_entropy_with_logits(judged, torch.zeros_like(judged)).backward()
            _step(made["discriminator"], weight, clip)
            made["generator"].zero_grad()
            judged = model.discriminator(fake)
            F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
            _step(made["generator"], weight, clip)
    return dict(model.state_dict())


def _step(optimizer: torch.optim.Optimizer, weight: float, clip: float | None) -> None:
    groups = optimizer.param_groups
    if clip is not None:
        every = [one for group in groups for one in group["params"]]
        nn.utils.clip_grad_norm_(every, clip)
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] *= weight
    optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def losses(state: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The losses of a model on all samples, with the noise of evaluations."""
    model = Gan()
    model.load_state_dict(dict(state))
    batch = batch_of(-1, torch.arange(SAMPLES))
    found = {
        "discriminator_loss": discriminator_loss(model, batch).item(),
        "generator_loss": generator_loss(model, batch).item(),
    }
    return {"loss": sum(found.values())} | found


def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a parameter."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)
