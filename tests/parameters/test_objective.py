"""Weighted losses: the gradient of a batch in any parts is that of the whole."""

from collections import UserDict, namedtuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh
from manyhands.parameters.gradients import backward, compute_loss
from manyhands.parameters.weights.loss_weight import counting
from manyhands.parameters.weights.microbatches import divide, rows_of

CPU = torch.device("cpu")
WORDS, WIDTH, LENGTH, SAMPLES = 11, 5, 7, 12


class Words(torch.utils.data.Dataset):
    """Sequences with a different number of labels each; one has none."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.words = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=draw)
        self.labels = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=draw)
        for sample in range(SAMPLES):
            self.labels[sample, sample % (LENGTH + 1) :] = -100

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"words": self.words[index], "labels": self.labels[index]}


class Tagger(nn.Module):
    """Predicts a label for each word; it may compute its own loss, as models of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, words, labels=None):
        outputs = self.out(self.embed(words).tanh())
        if labels is None:
            return outputs
        return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=-100)


def weighted(model, batch):
    outputs, labels = model(batch["words"]).flatten(0, 1), batch["labels"].flatten()
    total = F.cross_entropy(outputs, labels, ignore_index=-100, reduction="sum")
    return mh.Weighted(total, (labels != -100).sum(), outputs, labels)


def by_model(model, batch):
    return model(**batch)


def job(objective, micro_batch=None):
    return mh.Job(
        model=Tagger,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        objective=objective,
        data=Words(),
        global_batch=SAMPLES,
        epochs=1,
        micro_batch=micro_batch,
    )


def gradient(of, model, batch, settles=False):
    model.zero_grad()
    counted, loss = counting(of)
    factors = [torch.ones(())]
    settle = (lambda _, factor: factors.append(factor)) if settles else None
    mean = backward(counted, CPU, model, batch, None, SAMPLES, settle=settle)
    weight = loss.take()
    scale = factors[-1] if settles else SAMPLES / weight
    return mean, [one.grad * scale for one in model.parameters()], weight


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("objective", [weighted, by_model])
@pytest.mark.parametrize("micro_batch", [None, 1, 5, 12])
def test_parts_add_up_to_the_whole(objective, micro_batch, settles):
    torch.manual_seed(0)
    model, batch = Tagger(), torch.utils.data.default_collate(list(Words()))
    expected = by_model(model, batch)
    whole = torch.autograd.grad(expected, list(model.parameters()))
    mean, found, weight = gradient(job(objective, micro_batch), model, batch, settles)
    assert weight.item() == (Words().labels != -100).sum()
    assert mean.item() == pytest.approx(expected.item(), abs=1e-12)
    for one, other in zip(found, whole, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_a_batch_without_labels_has_no_gradient_and_no_weight():
    model, batch = Tagger(), torch.utils.data.default_collate([Words()[0], Words()[8]])
    assert (batch["labels"] == -100).all()
    for objective in (weighted, by_model):
        counted, loss = counting(job(objective))
        mean = backward(counted, CPU, model, batch, None, 2)
        assert mean.item() == 0
        assert loss.take().item() == 0
        assert all((one.grad == 0).all() for one in model.parameters())


def test_a_batch_is_divided_whatever_its_form():
    Pair = namedtuple("Pair", "words labels")  # noqa: PYI024 - a batch, as people write it
    words, labels = torch.arange(4), torch.arange(8).view(4, 2)
    batch = UserDict(pair=Pair(words, [labels]), names=["a", "b", "c", "d"], scale=torch.ones(()))
    first, last = divide(batch, [1, 3])
    assert type(first) is UserDict
    assert type(first["pair"]) is Pair
    assert first["names"] == ["a"]
    assert last["names"] == ["b", "c", "d"]
    assert last["pair"].labels[0].tolist() == labels[1:].tolist()
    assert first["scale"].item() == 1
    assert rows_of(batch, 4) == 4


def test_says_what_a_weighted_loss_must_be():
    with pytest.raises(TypeError, match=r"Weighted\(total=...\) must be a scalar tensor"):
        compute_loss(job(lambda *_: mh.Weighted(torch.ones(2), 1)), None, None, None)
    with pytest.raises(TypeError, match=r"Weighted\(weight=...\) must be a scalar tensor"):
        compute_loss(job(lambda *_: mh.Weighted(torch.ones(()), None)), None, None, None)


def test_a_job_has_a_loss_or_an_objective():
    given = {"model": Tagger, "optimizer": torch.optim.SGD, "data": Words(), "global_batch": 4}
    with pytest.raises(TypeError, match="got neither"):
        mh.Job(**given, epochs=1)
    with pytest.raises(TypeError, match="got both"):
        mh.Job(**given, epochs=1, loss=F.cross_entropy, objective=weighted)
