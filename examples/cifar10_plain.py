"""A small network on CIFAR-10 in plain PyTorch, on one process: `examples/cifar10.py` before."""

import csv
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

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


@torch.no_grad()
def evaluate(model, batches):
    """The loss and the accuracy on all batches."""
    model.eval()
    found = [(F.cross_entropy(out := model(x), y), out.argmax(1) == y) for x, y in batches]
    model.train()
    losses, hits = zip(*found, strict=True)
    return torch.stack(losses).mean().item(), torch.cat(hits).float().mean().item()


def main():
    """Train until the loss stops falling."""
    torch.manual_seed(0)
    train = DataLoader(Augmented(mh.data.cifar10("train")), BATCH, shuffle=True)
    test = DataLoader(mh.data.cifar10("test"), BATCH)
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = make_scheduler(optimizer)
    best, best_epoch = float("inf"), 0
    with Path("evaluations.csv").open("w", newline="") as file:
        log = csv.writer(file)
        for epoch in range(EPOCHS):
            for images, labels in train:
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                scheduler.step()
            loss, accuracy = evaluate(model, test)
            log.writerow([epoch, loss, accuracy])
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}")
            if loss < best:
                best, best_epoch = loss, epoch
            elif epoch - best_epoch >= PATIENCE:
                break
    save_file(model.state_dict(), "model.safetensors")


if __name__ == "__main__":
    main()
