"""What data draws for a sample depends on the seed, the epoch and the sample alone."""

# ruff: noqa: S311 - no secrets are drawn

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from manyhands.job import Job
from manyhands.live.worker.loading import Loading
from manyhands.seeding import Seeded, epoch_seed, seed_all
from manyhands.virtual.worker.loading import loader


class Noisy(Dataset):
    """Draws from all three sources for every sample."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        return torch.tensor([*drawn, index], dtype=torch.float64), index


class AtOnce(Noisy):
    """The same, a batch at a time."""

    def take(self, indices):
        noise = torch.rand(len(indices), 1) + random.random() + float(np.random.random())
        return noise + indices[:, None], indices


JOB = Job(
    model=lambda: torch.nn.Linear(4, 1),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.functional.mse_loss,
    data=Noisy(),
    global_batch=4,
    epochs=1,
    metrics=(),
)


def loaded(job, epoch, *some):
    found = Loading(job).batches(job.data, [(epoch, torch.tensor(indices)) for indices in some])
    return torch.cat([inputs for inputs, _ in found])


def test_a_sample_is_drawn_alike_whatever_batch_it_is_in():
    together = loaded(JOB, 0, [3, 5, 7, 9])
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    assert torch.equal(loaded(JOB, 0, [3], [5, 7], [9]), together)
    assert torch.equal(loaded(JOB, 0, [7, 5]), together[[2, 1]])


@pytest.mark.parametrize("loaders", [1, 2])
def test_loader_processes_draw_what_the_worker_would(loaders):
    expected = loaded(JOB, 2, [0, 1], [2, 3], [4, 5])
    assert torch.equal(
        loaded(replace(JOB, num_workers=loaders), 2, [0, 1], [2, 3], [4, 5]), expected
    )


def test_samples_epochs_and_seeds_differ():
    drawn = [loaded(job, epoch, [0, 1]) for job in (JOB, replace(JOB, seed=1)) for epoch in (0, 1)]
    numbers = torch.cat(drawn)[:, :3].reshape(-1)
    assert len(set(numbers.tolist())) == len(numbers)


def test_a_virtual_run_loads_what_a_live_one_does():
    inputs, _ = loader(JOB, Seeded(JOB.data, JOB.collate_fn))(1, torch.tensor([8, 2]))
    assert torch.equal(inputs, loaded(JOB, 1, [8, 2]))


def test_a_subset_is_drawn_sample_by_sample():
    job = replace(JOB, data=Subset(Noisy(), range(4, 12)))
    assert torch.equal(loaded(job, 0, [0, 1, 2]), loaded(job, 0, [0], [1], [2]))


def test_data_that_gives_batches_repeats_them():
    job = replace(JOB, data=AtOnce())
    first = loaded(job, 0, [0, 1, 2])
    assert torch.equal(loaded(job, 0, [0, 1, 2]), first)
    assert not torch.equal(loaded(job, 1, [0, 1, 2]), first)


@pytest.mark.parametrize("data", [Noisy(), AtOnce()], ids=lambda data: type(data).__name__)
def test_loading_does_not_move_what_the_model_draws(data):
    job = replace(JOB, data=data)
    seed_all(7)
    expected = torch.rand(3)
    seed_all(7)
    loaded(job, 0, [0, 1])
    assert torch.equal(torch.rand(3), expected)


def test_models_draw_differently_after_different_samples():
    drawn = []
    for index in (0, 1):
        seed_all(7)
        loaded(JOB, 0, [index])
        drawn += [random.random(), float(np.random.random())]
    assert len(set(drawn)) == 4


def test_tensors_are_not_seeded():
    seeded = Seeded(TensorDataset(torch.arange(4)), None)
    random.seed(5)
    expected = random.random()
    random.seed(5)
    with seeded.drawing():
        assert seeded.batch(epoch_seed(0, 0), torch.tensor([1]))[0].tolist() == [1]
    assert random.random() == expected
