"""Several optimizers as one: groups and states of all, steps of one."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import LambdaLR

import gans
import manyhands as mh
from manyhands.job.optimizers import SeveralOptimizers, TrainedParameters, parts_of
from manyhands.parameters.scheduled_step import GroupSchedule


def test_groups_and_states_are_shared():
    model = gans.Gan()
    job = gans.gan_job(
        optimizer=lambda model: {
            "discriminator": Adagrad(model.discriminator.parameters(), lr=0.1),
            "generator": SGD(model.generator.parameters(), lr=0.2, momentum=0.9),
        }
    )
    both = job.make_optimizer(model)
    first, second = parts_of(both)
    assert [group["lr"] for group in both.param_groups] == [0.1, 0.2]
    assert both.param_groups[1] is second.param_groups[0]
    # Adagrad has its state from the start.
    assert len(both.state) == 4
    gans.generator_loss(model, gans.batch_of(0, torch.arange(4))).backward()
    second.step()
    assert len(both.state) == 8
    assert first.state is second.state


def test_the_optimizers_may_come_in_any_order():
    job = gans.gan_job(optimizer=lambda model: dict(reversed(gans.optimizers(model).items())))
    made = job.make_optimizer(gans.Gan())
    assert [type(one) for one in parts_of(made)] == [Adam, SGD]


def test_gradients_of_one_objective_alone():
    model = gans.Gan()
    model.generator[0].bias.requires_grad_(False)
    trained = TrainedParameters(model, gans.gan_job().make_optimizer(model))

    def names():
        return {
            name.partition(".")[0] for name, one in model.named_parameters() if one.requires_grad
        }

    trained.choose(0)
    assert names() == {"discriminator"}
    trained.choose(1)
    assert names() == {"generator"}
    trained.choose(None)
    assert names() == {"discriminator", "generator"}
    assert not model.generator[0].bias.requires_grad


def test_one_scheduler_has_the_groups_of_all():
    job = gans.gan_job(
        lr_scheduler=lambda optimizer: LambdaLR(
            optimizer, [lambda step: 1 / (1 + step), *[lambda _: 1.0] * 2]
        )
    )
    made = job.make_optimizer(gans.Gan())
    schedule = GroupSchedule(job, made)
    schedule.apply(made, 3 * gans.BATCH)
    assert [group["lr"] for group in made.param_groups] == [0.02 / 4, 0.05, 0.02]


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda model: Adam(model.parameters()), "for each of the objectives 'discriminator', "),
        (
            lambda model: {"critic": Adam(model.parameters())},
            "'discriminator', 'generator', got those of 'critic'",
        ),
        (
            lambda model: {"discriminator": Adam(model.parameters()), "generator": 1},
            r"optimizer\(model\)\['generator'\] must be an optimizer, got int",
        ),
        (
            lambda model: {
                "discriminator": Adam(model.parameters()),
                "generator": Adam(model.generator.parameters()),
            },
            "'discriminator' and 'generator' share a parameter of shape",
        ),
    ],
)
def test_says_which_optimizers_are_missing(optimizer, words):
    with pytest.raises((TypeError, ValueError), match=words):
        gans.gan_job(optimizer=optimizer).make_optimizer(gans.Gan())


def test_several_optimizers_need_several_objectives():
    job = gans.gan_job(objective=gans.generator_loss)
    with pytest.raises(TypeError, match="several optimizers need an objective each: objective="):
        job.make_optimizer(gans.Gan())


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({}, "has no objectives: give at least one"),
        ({"the generator": F.mse_loss}, "must be a word such as 'generator', got 'the generator'"),
        ({"generator": 1}, r"objective\['generator'\] must be something to call"),
    ],
)
def test_says_what_objectives_must_be(objective, words):
    with pytest.raises((TypeError, ValueError), match=words):
        gans.gan_job(objective=objective)


def test_a_target_may_name_the_loss_of_an_objective():
    assert gans.gan_job(target="generator_loss <= 0.7").goal.metric == "generator_loss"
    with pytest.raises(ValueError, match="it has loss, discriminator_loss, generator_loss"):
        gans.gan_job(target="critic_loss <= 0.7")


def test_steps_without_a_closure():
    both = SeveralOptimizers(gans.optimizers(gans.Gan()))
    both.step()
    with pytest.raises(TypeError, match="cannot be stepped with one closure"):
        both.step(lambda: None)


def test_a_job_for_each_objective():
    assert [one.objective for one in gans.gan_job().one_by_one] == [
        gans.discriminator_loss,
        gans.generator_loss,
    ]
    plain = gans.gan_job(objective=gans.generator_loss)
    assert plain.one_by_one == (plain,)
    assert mh.Job is type(plain)
