"""Faults that make N workers train another model than one: each is found, with its remedy."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.lab.check.fingerprint import elsewhere, fingerprint
from manyhands.lab.check.probes import compare_processes, probe

DRAW = torch.Generator().manual_seed(0)
INPUTS = torch.randn(16, 6, generator=DRAW)
LABELS = torch.randint(0, 3, (16,), generator=DRAW)


def model(*more):
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Linear(8, 3))


def job(**options):
    given = {
        "model": model,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": F.cross_entropy,
        "data": TensorDataset(INPUTS, LABELS),
        "global_batch": 8,
        "epochs": 1,
        **options,
    }
    if "objective" in given:
        del given["loss"]
    return mh.Job(**given)


class Noisy(TensorDataset):
    """Augmented with a generator that nobody seeds."""

    def __getitem__(self, index):
        noise = np.random.default_rng().normal(size=6).astype(np.float32)
        return INPUTS[index] + torch.from_numpy(noise), LABELS[index]


class Augmented(Noisy):
    """Augmented with generators that are seeded for every sample."""

    def __getitem__(self, index):
        noise = np.random.normal(size=6).astype(np.float32)
        return INPUTS[index] + torch.from_numpy(noise) + torch.randn(6), LABELS[index]


class Margin(nn.Module):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.margin = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return (F.cross_entropy(outputs, targets, reduction="none") * self.margin).mean()


def masked(outputs, targets):
    """A mean over targets that count, written by hand."""
    counts = targets >= 0
    each = F.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
    return (each * counts).sum() / counts.sum()


def stepping(model, batch):
    """Does the trainer's work, too."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward(retain_graph=True)
    return loss


class Centred(nn.Module):
    """Normalises by the batch in training, from some call on; no layer of torch's."""

    def __init__(self, after=0):
        super().__init__()
        self.left = after

    def forward(self, inputs):
        self.left -= self.training
        return inputs - inputs.mean(0) if self.training and self.left < 0 else inputs


class Frozen(nn.Sequential):
    """Batch norm that is in evaluation mode also while the model is trained."""

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


MISSING = TensorDataset(INPUTS, torch.where(torch.arange(16) % 3 == 0, -1, LABELS))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "the loss is a sum over the samples"),
        ({"model": lambda: model(nn.BatchNorm1d(8))}, r"1 \(BatchNorm1d\) normalises with"),
        ({"model": lambda: model(Centred())}, "something else for a sample if other samples"),
        ({"model": lambda: model(Centred(after=9))}, r"something else after some \d+ calls"),
        ({"data": Noisy(INPUTS, LABELS)}, "sample 0 is another one when it is loaded again"),
        ({"model": lambda: model(nn.Dropout(0.5))}, r"1 \(dropout\) draws random numbers"),
        ({"loss": Margin()}, r"the loss has 1 parameters of its own \(Margin\)"),
        ({"loss": masked, "data": MISSING}, "targets below 0 are ignored"),
        (
            {"objective": stepping},
            "computes gradients itself, so every step is made twice",
        ),
    ],
    ids=[
        "sum",
        "batch norm",
        "centred",
        "centred later",
        "numpy",
        "dropout",
        "loss parameter",
        "ignored",
        "double step",
    ],
)
def test_finds_the_fault(given, words):
    (found,) = probe(job(**given))
    assert re.search(words, found), found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data": Augmented(INPUTS, LABELS)},
        {"model": lambda: Frozen(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))},
        {"model": lambda: model(nn.BatchNorm1d(8)), "sync_batchnorm": True},
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))},
        {"loss": lambda outputs, targets: F.mse_loss(outputs[:, 0], targets.float())},
    ],
    ids=[
        "plain",
        "seeded augmentation",
        "frozen batch norm",
        "synchronised batch norm",
        "class weights",
        "regression",
    ],
)
def test_finds_nothing_in_a_sound_job(given):
    assert probe(job(**given)) == []


@pytest.mark.parametrize("one_weight", [False, True])
def test_ignored_targets_are_counted(one_weight):
    ignoring = job(data=TensorDataset(INPUTS, torch.where(torch.arange(16) % 3 == 0, -100, LABELS)))
    assert probe(ignoring, one_weight=one_weight) == []


def test_several_means_need_a_weight_each():
    missing = TensorDataset(INPUTS, torch.where(torch.arange(16) % 3 == 0, -100, LABELS))

    def both(outputs, targets):
        return F.cross_entropy(outputs, targets) + 0.1 * outputs.square().mean()

    several = job(data=missing, loss=both)
    assert probe(several) == []
    (found,) = probe(several, one_weight=True)
    assert "the loss has several means" in found


def flat(samples):
    """All words in one row, as for attention without padding."""
    return torch.cat([words for words, _ in samples]), torch.tensor([one for _, one in samples])


def test_a_mean_over_a_row_of_tokens_is_found():
    words = [(torch.randn(length, 6, generator=DRAW), length) for length in range(1, 9)]
    over_tokens = job(
        objective=lambda model, batch: model(batch[0]).square().mean(), data=words, collate_fn=flat
    )
    (found,) = probe(over_tokens)
    assert "return mh.Weighted(total, weight)" in found
    said = job(
        objective=lambda model, batch: mh.Weighted(
            model(batch[0]).square().mean(1).sum(), len(batch[0])
        ),
        data=words,
        collate_fn=flat,
    )
    assert probe(said) == []


SCRIPT = """
import os, random, time
import numpy as np, torch, torch.nn.functional as F
import manyhands as mh

KIND = {kind!r}
drawn = torch.Generator().manual_seed(0)
inputs = torch.randn(16, 6, generator=drawn)
labels = torch.randint(0, 3, (16,), generator=drawn)
names = {{f"file-{{number}}" for number in range(16)}}
if KIND == "labels":
    labels = labels[torch.from_numpy(np.random.default_rng().permutation(16))]
if KIND == "files":
    order = torch.tensor([int(name.split("-")[1]) for name in names])
    inputs, labels = inputs[order], labels[order]
if KIND == "module":
    scale = float(np.random.default_rng().random())
    inputs = inputs * scale
if KIND == "seeded":
    inputs = inputs * torch.rand(16, 1) * random.random()


def model():
    made = torch.nn.Linear(6, 3)
    if KIND == "model":
        torch.nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(time.time_ns()))
    return made


job = mh.Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=torch.utils.data.TensorDataset(inputs, labels),
    global_batch=8,
    epochs=1,
)
"""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("labels", "the inputs are the same in every process and the targets are not"),
        ("files", "the samples are in another order in every process"),
        ("module", "the samples differ from process to process"),
        ("model", "the initial parameters differ from process to process"),
        ("seeded", ""),
    ],
)
def test_finds_what_differs_between_processes(tmp_path, monkeypatch, kind, words):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(kind=kind))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one, other = (elsewhere(script, "job", [], number) for number in (0, 1))
    found = compare_processes(one, other)
    if not words:
        assert found == []
        return
    assert len(found) == 1
    assert words in found[0]


def test_a_digest_is_of_values():
    assert fingerprint(job()) == fingerprint(job())
    other = job(data=TensorDataset(INPUTS + 1, LABELS))
    assert fingerprint(job()).inputs != fingerprint(other).inputs
    assert fingerprint(job()).targets == fingerprint(other).targets
