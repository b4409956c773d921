"""Where a call of the model is a collective, all workers must make equally many."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import manyhands as mh
from manyhands.failure import Refused
from manyhands.parameters.optional.model_calls import check_calls

DATA = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.int64))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def once(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def each(model, batch):
    outputs = torch.stack([model(one) for one in batch[0]])
    return torch.nn.functional.cross_entropy(outputs, batch[1])


JOB = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    objective=each,
    data=DATA,
    metrics=(),
    global_batch=8,
    epochs=1,
)


@pytest.mark.parametrize(
    ("changes", "parts", "words"),
    [
        ({}, 3, "a global batch of 8 samples has 3 parts of different sizes"),
        ({"global_batch": 10}, 2, ""),
        ({"global_batch": 9}, 2, "a global batch of 9 samples"),
        ({"global_batch": 14}, 4, "a global batch of 14"),
        ({"global_batch": 16, "epochs": None, "samples": 31}, 2, "the last 7 samples of the run"),
        ({"global_batch": 15}, 5, "the last 9 samples of an epoch have 5 parts"),
        ({"validation": TensorDataset(*DATA[:5])}, 2, "the 5 samples of validation"),
        ({"data": Stream(), "epochs": None, "samples": 16}, 2, "the last batch of a stream"),
        ({}, 2, ""),
        ({}, 1, ""),
    ],
)
def test_it_is_refused_only_where_parts_differ(changes, parts, words):
    job = replace(JOB, **changes)
    check_calls(replace(job, objective=once), torch.nn.Linear(4, 2), parts, "fully_sharded()")
    if not words:
        check_calls(job, torch.nn.Linear(4, 2), parts, "fully_sharded()")
        return
    with pytest.raises(Refused, match=words):
        check_calls(job, torch.nn.Linear(4, 2), parts, "fully_sharded()")
