"""The learning rate of a small GPT as a schedule, found by population-based training.

    manyhands search examples/search_gpt.py --method "population(size=6)" --trials 36 --workers 2 \
        --metric loss

The page says whether the schedule is better than the best constant learning rate of the search.
"""

import torch
from torch.nn.functional import cross_entropy

import manyhands as mh

data = mh.data.tinyshakespeare("train", length=64)
validation = torch.utils.data.Subset(mh.data.tinyshakespeare("test", length=64), range(256))


def job(lr=mh.free.log(1e-4, 3e-2), beta2=mh.free.uniform(0.9, 0.999)):
    """A GPT of two blocks, under Adam."""
    return mh.Job(
        model=lambda: mh.models.GPT(length=64, width=64, layers=2, heads=2),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, beta2)),
        loss=cross_entropy,
        data=data,
        validation=validation,
        metrics=(),
        global_batch=16,
        samples=9600,
    )
