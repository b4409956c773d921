"""Datasets of Hugging Face: in memory and as a stream, with samples that are dictionaries."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

import manyhands as mh
from manyhands.sampling.permutation import permutation

datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")

SAMPLES, BATCH = 100, 16
GENERATOR = torch.Generator().manual_seed(5)
INPUTS = torch.randn(SAMPLES, 6, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(0, 3, (SAMPLES,), generator=GENERATOR)


def table():
    return datasets.Dataset.from_dict({"x": INPUTS.tolist(), "label": LABELS.tolist()})


def collate(samples):
    return {
        "x": torch.tensor([sample["x"] for sample in samples], dtype=torch.float64),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


def a_job(data, **limit) -> mh.Job:
    return mh.Job(
        model=lambda: nn.Linear(6, 3).double(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        objective=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["label"]),
        data=data,
        collate_fn=collate,
        global_batch=BATCH,
        **limit,
    )


def by_hand(orders) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for order in orders:
        for indices in order.split(BATCH):
            steps.zero_grad()
            F.cross_entropy(model(INPUTS[indices]), LABELS[indices]).backward()
            steps.param_groups[0]["lr"] = 0.1 * len(indices) / BATCH
            steps.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("workers", [1, 3])
def test_a_table_is_shuffled_and_divided(tmp_path, workers: int) -> None:
    run = mh.simulate(
        a_job(table(), epochs=2), "synchronous()", workers=workers, output=tmp_path / "run"
    )
    expected = by_hand([permutation(SAMPLES, 0, epoch) for epoch in range(2)])
    state = run.state_dict()
    assert max((state[name] - expected[name]).abs().max().item() for name in expected) <= 1e-9


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_is_read_in_its_own_order_to_its_end(tmp_path, workers: int) -> None:
    stream = table().to_iterable_dataset(num_shards=4)
    run = mh.simulate(
        a_job(stream, samples=10_000), "synchronous()", workers=workers, output=tmp_path / "run"
    )
    assert run.samples == SAMPLES
    expected = by_hand([torch.arange(SAMPLES)])
    state = run.state_dict()
    assert max((state[name] - expected[name]).abs().max().item() for name in expected) <= 1e-9


def test_a_shuffled_stream_is_the_same_in_every_worker(tmp_path) -> None:
    stream = table().to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=20)
    runs = [
        mh.simulate(
            a_job(stream, samples=10_000), "synchronous()", workers=workers, output=tmp_path / name
        )
        for workers, name in ((1, "one"), (3, "three"))
    ]
    one, three = (run.state_dict() for run in runs)
    assert max((one[name] - three[name]).abs().max().item() for name in one) <= 1e-9
