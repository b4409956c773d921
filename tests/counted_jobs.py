"""Jobs whose batches do not say how many samples they have, and plain loops over the same samples.

As a script it trains some of them: `python counted_jobs.py live|virtual JOBS STRATEGIES WORKERS`.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh
from manyhands.sampling.permutation import permutation

SAMPLES, WORDS, LENGTH = 22, 11, 8
BATCH = 8
draw = torch.Generator().manual_seed(3)
INPUTS = torch.randn(SAMPLES, 6, generator=draw, dtype=torch.float64)
CLASSES = torch.randint(0, 3, (SAMPLES,), generator=draw)
VALUES = torch.randn(SAMPLES, 3, generator=draw, dtype=torch.float64)
SERIES = torch.randn(SAMPLES, 5, 4, generator=draw, dtype=torch.float64)
TEXTS = [
    torch.randint(0, WORDS, (int(length),), generator=draw)
    for length in torch.randint(2, LENGTH, (SAMPLES,), generator=draw)
]
NODES = [torch.randn(int(n), 4, generator=draw, dtype=torch.float64) for n in range(3, SAMPLES + 3)]
EDGES = [
    torch.randint(0, len(nodes), (3 + i % 7, 2), generator=draw) for i, nodes in enumerate(NODES)
]
KINDS = [torch.randint(0, 3, (len(edges),), generator=draw) for edges in EDGES]
FEW = torch.where(torch.arange(SAMPLES) % 3 > 0, -100, CLASSES)
CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)

PAIRS = list(zip(INPUTS, CLASSES, strict=True))


def texts(samples):
    """Padded to a fixed length, so that a sample does not depend on its batch."""
    ids = torch.zeros(len(samples), LENGTH, dtype=torch.long)
    labels = torch.full((len(samples), LENGTH), -100)
    for row, one in enumerate(samples):
        ids[row, : len(one)] = labels[row, : len(one)] = one
    return {"ids": ids, "labels": labels}


def by_time(samples):
    batch = texts(samples)
    return {name: one.T.contiguous() for name, one in batch.items()}


def flat(samples):
    """All tokens in one row, and where sequences begin."""
    ends = torch.tensor([0, *map(len, samples)]).cumsum(0)
    return {"ids": torch.cat(samples), "begins": ends}


def graphs(samples):
    """One graph of all, whose labels are of edges."""
    nodes, edges, kinds = zip(*samples, strict=True)
    offsets = torch.tensor([0, *map(len, nodes)]).cumsum(0)
    moved = [one + offset for one, offset in zip(edges, offsets[:-1], strict=True)]
    return {"nodes": torch.cat(nodes), "edges": torch.cat(moved), "kinds": torch.cat(kinds)}


def with_scale(samples):
    """The first tensor is not of samples."""
    inputs, classes = zip(*samples, strict=True)
    return {"scale": torch.ones(1), "x": torch.stack(inputs), "y": torch.stack(classes)}


def dropping(samples):
    """Without bad samples; possibly without any."""
    kept = [one for one in samples if one[0][0] > -0.5]
    x = torch.stack([one[0] for one in kept]) if kept else INPUTS[:0]
    return x, torch.tensor([int(one[1]) for one in kept], dtype=torch.long)


def leaving_out(samples):
    """Without bad samples, but never without any."""
    kept = [one for one in samples if one[0][0] > -0.5] or samples[:1]
    return torch.utils.data.default_collate(kept)


def listed(samples):
    return [{"x": x, "y": y} for x, y in samples]


def series(samples):
    inputs, values = zip(*samples, strict=True)
    return torch.stack(inputs, 1), torch.stack(values)


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, WORDS, bias=False)

    def forward(self, ids):
        return self.head(torch.tanh(self.inner(self.embed(ids))))


class Pretraining(nn.Module):
    """Words and a class of each text, as masked language modelling with next sentences."""

    def __init__(self):
        super().__init__()
        self.body = Language()
        self.pooled = nn.Linear(WORDS, 2)

    def forward(self, ids):
        outputs = self.body(ids)
        return outputs, self.pooled(outputs[:, 0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs)[0][-1])


class OnEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(16, 3)

    def forward(self, batch):
        return self.head(torch.tanh(self.body(batch["nodes"]))[batch["edges"]].flatten(1))


class LowRank(nn.Module):
    """A frozen layer with a correction of low rank."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) / 10)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.a.T @ self.b.T


def low_rank():
    return nn.Sequential(LowRank(nn.Linear(6, 8)), nn.Tanh(), LowRank(nn.Linear(8, 3)))


def words(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def flat_weighted(model, batch):
    total = F.cross_entropy(model(batch["ids"]), batch["ids"], reduction="sum")
    return mh.Weighted(total, len(batch["ids"]))


def pretraining(model, batch):
    outputs, pooled = model(batch["ids"])
    return words(outputs, batch) + F.cross_entropy(pooled, (batch["ids"][:, 0] > 5).long())


def auxiliary(model, batch):
    outputs = model(batch["ids"])
    return words(outputs, batch) + 0.1 * outputs.logsumexp(-1).square().mean()


def rarely(model, batch):
    """A first mean that only some batches have."""
    outputs, labels = model(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
    rare = labels == 7
    loss = 0.0
    if rare.any():
        loss = loss + F.cross_entropy(outputs[rare], labels[rare])
    return loss + F.cross_entropy(outputs, labels)


def printed(model, batch):
    """A perplexity that is printed, once without gradients, once beside the loss."""
    outputs = model(batch["ids"])
    with torch.no_grad():
        words(outputs, batch).exp()
    words(outputs, batch)
    return outputs.square().mean()


def by_class(outputs, classes):
    return F.cross_entropy(outputs, classes, weight=CLASS_WEIGHTS) + 0.1 * outputs.square().mean()


def of_list(model, batch):
    outputs = torch.stack([model(one["x"]) for one in batch])
    return F.cross_entropy(outputs, torch.stack([one["y"] for one in batch]))


def masked_by_hand(model, batch):
    outputs, labels = model(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
    each = F.cross_entropy(outputs, labels.clamp(min=0), reduction="none")
    return (each * (labels >= 0)).sum() / (labels >= 0).sum()


def job(**given):
    options = {
        "model": perceptron,
        "optimizer": lambda model: torch.optim.SGD(
            [one for one in model.parameters() if one.requires_grad], lr=0.1, momentum=0.9
        ),
        "data": PAIRS,
        "global_batch": BATCH,
        "epochs": 2,
        "seed": 5,
        "metrics": (),
        **given,
    }
    if "objective" not in given:
        options.setdefault("loss", F.cross_entropy)
    made = options["model"]

    def double():
        model = made()
        return model.double()

    return mh.Job(**{**options, "model": double})


plain = job()
flat_tokens_weighted = job(model=Language, data=TEXTS, collate_fn=flat, objective=flat_weighted)
flat_tokens = job(
    model=Language,
    data=TEXTS,
    collate_fn=flat,
    objective=lambda model, batch: F.cross_entropy(model(batch["ids"]), batch["ids"]),
)
padded_tokens = job(
    model=Language,
    data=TEXTS,
    collate_fn=texts,
    objective=lambda model, batch: words(model(batch["ids"]), batch),
)
time_major = job(
    model=Language,
    data=TEXTS,
    collate_fn=by_time,
    objective=lambda model, batch: words(model(batch["ids"]), batch),
)
time_major_regression = job(
    model=Recurrent,
    data=list(zip(SERIES, VALUES, strict=True)),
    collate_fn=series,
    loss=F.mse_loss,
)
scale_first = job(
    collate_fn=with_scale,
    objective=lambda model, batch: F.cross_entropy(model(batch["x"]) * batch["scale"], batch["y"]),
)
scale_first_regression = job(
    collate_fn=with_scale,
    objective=lambda model, batch: (model(batch["x"]) * batch["scale"]).square().mean(),
)
labels_of_edges = job(
    model=OnEdges,
    data=list(zip(NODES, EDGES, KINDS, strict=True)),
    collate_fn=graphs,
    objective=lambda model, batch: F.cross_entropy(model(batch), batch["kinds"]),
)
list_of_dicts = job(collate_fn=listed, objective=of_list)
few_labels = job(data=list(zip(INPUTS, FEW, strict=True)))
dropped_samples = job(collate_fn=dropping)
dropped_values = job(
    data=list(zip(INPUTS, VALUES, strict=True)), collate_fn=leaving_out, loss=F.mse_loss
)
class_weights = job(loss=nn.CrossEntropyLoss(weight=CLASS_WEIGHTS))
class_weights_and_mean = job(loss=by_class)
words_and_sentences = job(model=Pretraining, data=TEXTS, collate_fn=texts, objective=pretraining)
words_and_auxiliary = job(model=Language, data=TEXTS, collate_fn=texts, objective=auxiliary)
rare_words = job(model=Language, data=TEXTS, collate_fn=texts, objective=rarely)
printed_words = job(model=Language, data=TEXTS, collate_fn=texts, objective=printed)
adapters = job(model=low_rank)
parts_of_tokens = job(
    model=Language,
    data=TEXTS,
    collate_fn=texts,
    objective=lambda model, batch: words(model(batch["ids"]), batch),
    micro_batch=2,
)
mask_by_hand = job(model=Language, data=TEXTS, collate_fn=texts, objective=masked_by_hand)

JOBS = {name: one for name, one in globals().items() if isinstance(one, mh.Job)}


def by_hand(of):
    """The parameters after a plain loop over the same global batches."""
    torch.manual_seed(of.seed)
    model = of.model()
    optimizer = of.optimizer(model)
    collate = of.collate_fn or torch.utils.data.default_collate
    for epoch in range(of.epochs):
        order = permutation(SAMPLES, of.seed, epoch).tolist()
        for begin in range(0, SAMPLES, BATCH):
            some = order[begin : begin + BATCH]
            batch = collate([of.data[index] for index in some])
            optimizer.zero_grad()
            if of.objective is None:
                loss = of.loss(model(batch[0]), batch[1])
            else:
                loss = of.objective(model, batch)
                loss = loss.total / loss.weight if isinstance(loss, mh.Weighted) else loss
            loss.backward()
            # An update from b samples acts with weight b / global_batch on the rate.
            optimizer.param_groups[0]["lr"] = 0.1 * len(some) / BATCH
            optimizer.step()
    return dict(model.state_dict())


def compare(how, name, strategy, workers):
    """The largest difference to the plain loop, and what the run said."""
    expected, words_of_run = by_hand(JOBS[name]), io.StringIO()
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("COUNTED_FOLDER")))
    verb = mh.train if how == "live" else mh.simulate
    try:
        with contextlib.redirect_stderr(words_of_run), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run = verb(JOBS[name], strategy, workers=workers, output=folder / "run")
    except mh.Refused as refused:
        return None, str(refused)
    state = run.state_dict()
    worst = max(float((state[key] - expected[key]).abs().max()) for key in expected)
    lines = [line for line in words_of_run.getvalue().splitlines() if "Weighted" in line]
    return worst, "\n".join([*lines, *(str(one.message) for one in told)])


if __name__ == "__main__":
    kind, jobs, strategies, numbers = sys.argv[1:5]
    for each in jobs.split(",") if jobs != "all" else JOBS:
        for strategy in strategies.split(";"):
            for workers in map(int, numbers.split(",")):
                worst, told = compare(kind, each, strategy, workers)
                said = "mh.Weighted(total, weight)" in told
                print("RESULT", json.dumps([each, strategy, workers, worst, said]), flush=True)
