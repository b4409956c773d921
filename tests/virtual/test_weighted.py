"""Losses over tokens: workers with different numbers of them make the step of one worker."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh

WORDS, LENGTH, SAMPLES, STEPS = 9, 6, 12, 4


class Texts(torch.utils.data.Dataset):
    """Sequences of which each has another number of labels, and some none."""

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
    """Computes its own loss, as models of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 4)
        self.out = nn.Linear(4, WORDS)
        self.double()

    def forward(self, words, labels):
        outputs = self.out(self.embed(words).tanh())
        return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Scores(Tagger):
    """The same, without the loss."""

    def forward(self, words):
        return self.out(self.embed(words).tanh())


def by_model(model, batch):
    return model(**batch)


def weighted(model, batch):
    outputs, labels = model(batch["words"]).flatten(0, 1), batch["labels"].flatten()
    total = F.cross_entropy(outputs, labels, ignore_index=-100, reduction="sum")
    return mh.Weighted(total, (labels != -100).sum())


def job(model=Tagger, objective=by_model, **options):
    return mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        objective=objective,
        data=Texts(),
        validation=Texts(),
        global_batch=SAMPLES,
        epochs=STEPS,
        **options,
    )


def one_worker():
    """The parameters after plain steps on all samples."""
    torch.manual_seed(0)
    model, batch = Tagger(), torch.utils.data.default_collate(list(Texts()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**batch).backward()
        optimizer.step()
    return model.state_dict(), model(**batch).item()


EXACT = [
    "synchronous()",
    "synchronous(servers=2)",
    "softsync(wait_for=4)",
    "central_storage()",
    "averaging()",
    "local_sgd(every=1)",
    "diloco(every=1, outer_lr=1.0, outer_momentum=0.0)",
    "hierarchical(outer=synchronous(), islands=2)",
]


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_workers_make_the_steps_of_one(tmp_path, strategy, workers):
    if "wait_for" in strategy:
        strategy = f"softsync(wait_for={workers})"
    if "hierarchical" in strategy and workers < 4:
        pytest.skip("two islands of two")
    for given in (job(), job(Scores, weighted, micro_batch=2)):
        run = mh.simulate(given, strategy, workers=workers, output=tmp_path / str(id(given)))
        expected, loss = one_worker()
        for name, tensor in run.state_dict().items():
            assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-12), name
        assert run.metrics["loss"] == pytest.approx(loss, abs=1e-12)


def test_metrics_need_outputs(tmp_path):
    with pytest.raises(TypeError, match=r"return mh.Weighted\(total, weight, outputs, targets\)"):
        mh.simulate(job(metrics="accuracy"), "synchronous()", workers=2, output=tmp_path)


def test_an_ensemble_has_no_outputs_to_average(tmp_path):
    with pytest.raises(ValueError, match="averages the outputs of its replicas"):
        mh.simulate(job(), "ensemble()", workers=2, output=tmp_path)
