"""Schedulers of torch on N workers: the steps of a plain loop that steps the scheduler, too."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.failure import Refused
from manyhands.live.agent.trial_batch import try_out
from manyhands.sampling.permutation import permutation

SAMPLES, BATCH, EPOCHS, SEED = 24, 8, 5, 3
STEPS = EPOCHS * SAMPLES // BATCH

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 9], gamma=0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=7),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS, power=2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, [0.2, 0.1], total_steps=STEPS),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=4),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1 / (1 + t)]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.5, total_iters=5), lr_scheduler.ExponentialLR(o, 0.95)]
    ),
}


def model():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def sgd(module):
    first, last = module[0].parameters(), module[2].parameters()
    return SGD([{"params": first}, {"params": last, "lr": 0.05}], lr=0.1, momentum=0.9)


def adamw(module):
    first, last = module[0].parameters(), module[2].parameters()
    return AdamW([{"params": first}, {"params": last, "lr": 0.01}], lr=0.02)


def data():
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 6, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=draw))


def job(optimizer, scheduler, interval="step", **options):
    return mh.Job(
        model=model,
        optimizer=optimizer,
        loss=F.cross_entropy,
        data=data(),
        lr_scheduler=scheduler,
        scheduler_interval=interval,
        seed=SEED,
        **{"global_batch": BATCH, "epochs": EPOCHS, **options},
    )


def by_hand(optimizer, scheduler, interval="step"):
    torch.manual_seed(SEED)
    module = model()
    steps = optimizer(module)
    schedule = scheduler(steps)
    inputs, targets = data().tensors
    for epoch in range(EPOCHS):
        for indices in permutation(SAMPLES, SEED, epoch).split(BATCH):
            steps.zero_grad()
            F.cross_entropy(module(inputs[indices]), targets[indices]).backward()
            steps.step()
            if interval == "step":
                schedule.step()
        if interval == "epoch":
            schedule.step()
    return module.state_dict()


def apart(run, expected):
    found = run.state_dict()
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
def test_follows_a_plain_loop(tmp_path, name, optimizer):
    expected = by_hand(optimizer, SCHEDULERS[name])
    for workers in (1, 3, 4):
        strategy = "synchronous(servers=2)" if workers == 4 else "synchronous()"
        given = job(optimizer, SCHEDULERS[name])
        run = mh.simulate(given, strategy, workers=workers, output=tmp_path / str(workers))
        assert apart(run, expected) < 1e-12, workers


def test_steps_after_every_epoch(tmp_path):
    scheduler = SCHEDULERS["ExponentialLR"]
    run = mh.simulate(
        job(sgd, scheduler, "epoch"), "synchronous()", workers=2, output=tmp_path / "run"
    )
    assert apart(run, by_hand(sgd, scheduler, "epoch")) < 1e-12


def test_local_optimizers_follow_it_as_well(tmp_path):
    def plain(module):
        return SGD(module.parameters(), lr=0.1)

    scheduler = SCHEDULERS["CosineAnnealingLR"]
    run = mh.simulate(job(plain, scheduler), "averaging()", workers=2, output=tmp_path / "run")
    assert apart(run, by_hand(plain, scheduler)) < 1e-12


def test_counts_batches_that_grow(tmp_path):
    scheduler = SCHEDULERS["ExponentialLR"]
    sizes = {0: 4, 1: 8}
    grown = job(sgd, scheduler, global_batch=sizes, epochs=2)
    one = mh.simulate(grown, "synchronous()", workers=1, output=tmp_path / "1")
    two = mh.simulate(grown, "synchronous()", workers=2, output=tmp_path / "2")
    assert apart(two, one.state_dict()) < 1e-12


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau depends on a validation metric"),
        (lambda _: 7, "must return a scheduler of torch.optim.lr_scheduler, got int"),
    ],
)
def test_what_cannot_be_followed_is_refused(scheduler, words):
    with pytest.raises(Refused, match=words):
        try_out(job(sgd, scheduler), 2, ["cpu", "cpu"])


def test_a_job_has_one_schedule():
    with pytest.raises(TypeError, match="one of lr_schedule and lr_scheduler"):
        job(sgd, SCHEDULERS["StepLR"], lr_schedule=lambda _: 1.0)
    with pytest.raises(ValueError, match='"step" or "epoch"'):
        job(sgd, SCHEDULERS["StepLR"], "week")


@pytest.mark.parametrize("strategy", ["gossip()", "hogwild()", "ensemble()"])
def test_workers_that_step_and_know_all_evaluations_follow_a_plateau(tmp_path, strategy):
    def plain(module):
        return SGD(module.parameters(), lr=4.0)

    def plateau(optimizer):
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)

    run = mh.simulate(
        job(plain, plateau, validation=data()), strategy, workers=1, output=tmp_path / "run"
    )
    torch.manual_seed(SEED)
    module = model()
    steps = plain(module)
    schedule = plateau(steps)
    inputs, targets = data().tensors
    for epoch in range(EPOCHS):
        for indices in permutation(SAMPLES, SEED, epoch).split(BATCH):
            steps.zero_grad()
            F.cross_entropy(module(inputs[indices]), targets[indices]).backward()
            steps.step()
        with torch.no_grad():
            schedule.step(F.cross_entropy(module(inputs), targets).item())
    assert steps.param_groups[0]["lr"] < 4.0, "the test needs a rate that was reduced"
    if strategy != "ensemble()":
        assert apart(run, module.state_dict()) < 1e-9
    assert run.status == "finished"
