"""Methods of search, on functions whose best place is known."""

import math
import random as python_random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhands as mh
from manyhands.lab.search.methods import (
    METHODS,
    Evolution,
    OptunaSearch,
    Population,
    RandomSearch,
    SearchMethod,
    SearchPlan,
    Swarm,
)
from manyhands.lab.search.trial import Trial, TrialResult

NUMBERS = {"lr": mh.free.log(1e-4, 1.0), "momentum": mh.free.uniform(0.0, 0.99)}
MIXED = NUMBERS | {
    "depth": mh.free.integer(1, 6),
    "width": mh.free.choice(16, 32, 64),
    "bias": mh.free.choice(True, False),
}
LAYERS = {"layers": mh.free.sequence(mh.free.choice(4, 8, 16, 32, 64), 1, 8), "lr": NUMBERS["lr"]}
FREE = {"numbers": NUMBERS, "mixed": MIXED, "layers": LAYERS}


def score(values: dict) -> float:
    """Best, at 0, for lr = 0.02, momentum = 0.8, five layers of 16."""
    found = -abs(math.log10(values["lr"] / 0.02))
    found -= abs(values.get("momentum", 0.8) - 0.8)
    if "layers" in values:
        layers = values["layers"]
        found -= abs(len(layers) - 5) + sum(one != 16 for one in layers) / 3
    return found


def carried_out(
    method: SearchMethod, plan: SearchPlan, order: int = 0, worth=score, fails=lambda _: False
) -> list[TrialResult]:
    """All results of a search whose trials end in a random order."""
    chance = python_random.Random(order)  # noqa: S311 - not a secret
    proposing, known = method.begin(plan), {}
    running: list[Trial] = []
    number = 0
    while number < plan.trials or running:
        while number < plan.trials and len(running) < plan.at_once:
            needed = method.needed(number, plan)
            if any(at not in known for at in range(needed)):
                break
            running.append(proposing.propose(number, [known[at] for at in range(needed)]))
            number += 1
        trial = running.pop(chance.randrange(len(running)))
        reached = None if fails(trial) else worth(trial.values)
        known[trial.number] = TrialResult(trial=trial, score=reached, samples=1, seconds=1.0)
    return [known[at] for at in range(plan.trials)]


def plan_of(free, trials=24, **options) -> SearchPlan:
    return SearchPlan(parameters=free, trials=trials, cuts=tuple(range(100, 1300, 100)), **options)


WAYS = [
    RandomSearch(),
    Population(size=6),
    Evolution(size=6, tournament=3),
    Swarm(size=6),
    OptunaSearch(),
    OptunaSearch(sampler="cmaes"),
    OptunaSearch(pruner="halving"),
]
CASES = [
    (way, name)
    for way in WAYS
    for name in FREE
    if not (isinstance(way, Swarm) and name == "layers")
]


@pytest.mark.parametrize(("method", "name"), CASES, ids=str)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**31), at_once=st.integers(1, 5))
def test_bounds_are_never_left_and_nothing_depends_on_the_order(method, name, seed, at_once):
    pytest.importorskip("optuna")
    pytest.importorskip("cmaes")
    plan = plan_of(FREE[name], seed=seed, at_once=at_once)
    method.check(plan)
    found = carried_out(method, plan)
    for one in found:
        for parameter, value in one.trial.values.items():
            assert value in plan.parameters[parameter], (parameter, value)
    again = carried_out(method, plan, order=seed + 1)
    assert [one.trial for one in again] == [one.trial for one in found]


@pytest.mark.parametrize(("method", "name"), CASES, ids=str)
def test_trials_that_fail_do_not_end_a_search(method, name):
    pytest.importorskip("cmaes")
    plan = plan_of(FREE[name], at_once=2)
    for fails in (lambda trial: trial.number % 3 == 0, lambda _: True):
        found = carried_out(method, plan, fails=fails)
        assert len(found) == plan.trials


@given(seed=st.integers(0, 2**31), at_once=st.integers(1, 4))
def test_ageing_discards_the_oldest(seed, at_once):
    plan = plan_of(MIXED, trials=40, seed=seed, at_once=at_once)
    method = Evolution(size=5, tournament=3)
    found = carried_out(method, plan)
    for one in found[5:]:
        living = range(max(0, one.trial.number - at_once + 1 - 5), one.trial.number)
        assert one.trial.parent in living
        parent = found[one.trial.parent].trial.values
        changed = [name for name in parent if parent[name] != one.trial.values[name]]
        # A number at its bound may stay there.
        assert len(changed) <= 1
    everyone = {one.trial.parent for one in found}
    assert everyone - {None}


def test_the_parent_is_the_best_of_the_tournament():
    plan = plan_of(NUMBERS, trials=20)
    found = carried_out(Evolution(size=4, tournament=4), plan)
    for one in found[4:]:
        living = found[one.trial.number - 4 : one.trial.number]
        assert one.trial.parent == plan.order(living)[-1].trial.number


@given(seed=st.integers(0, 2**31))
def test_the_best_of_a_swarm_never_gets_worse_and_is_what_it_moves_to(seed):
    plan = plan_of(MIXED, trials=48, seed=seed)
    found = carried_out(Swarm(size=6), plan)
    bests = [plan.order(found[: 6 * step])[-1] for step in range(1, 8)]
    scores = [one.score for one in bests]
    assert scores == sorted(scores)
    for step, best in enumerate(bests, start=1):
        for one in found[6 * step : 6 * step + 6]:
            assert one.trial.reason.endswith(f"and {best.trial.number}")
    for one in found:
        assert all(0 <= at <= 1 for at in one.trial.memory["position"])


def test_a_swarm_goes_where_its_formula_says():
    plan = plan_of(NUMBERS, trials=12, seed=3)
    method = Swarm(size=3, inertia=0.5, own=1.0, shared=2.0)
    found = carried_out(method, plan)
    mine, best = found[1].trial, plan.order(found[:3])[-1].trial
    pulls = plan.generator(4).random((2, 2))
    here, before = np.array(mine.memory["position"]), np.array(mine.memory["velocity"])
    moved = here + 0.5 * before + 2.0 * pulls[1] * (np.array(best.memory["position"]) - here)
    assert found[4].trial.memory["position"] == pytest.approx(moved.clip(0, 1).tolist())


def test_the_lowest_quarter_continues_from_the_highest_and_the_rest_as_it_was():
    plan = plan_of(NUMBERS, trials=24, fixed=frozenset())
    found = carried_out(Population(size=8), plan)
    for round_ in (1, 2):
        before = found[8 * round_ - 8 : 8 * round_]
        order = [one.trial.number for one in plan.order(before)]
        for one in found[8 * round_ : 8 * round_ + 8]:
            own = one.trial.number - 8
            assert one.trial.continues
            assert one.trial.until == 400 * (round_ + 1)
            if own in order[:2]:
                assert one.trial.parent in order[-2:]
            else:
                assert one.trial.parent == own
                assert one.trial.values == found[own].trial.values


def test_what_decides_the_shapes_of_the_model_is_copied_and_not_changed():
    plan = plan_of(MIXED, trials=24, fixed=frozenset({"width", "depth"}))
    found = carried_out(Population(size=8, resample=0.5), plan)
    copies = [one.trial for one in found if one.trial.reason.startswith("copy")]
    assert len(copies) == 4
    for one in copies:
        donor = found[one.parent].trial.values
        assert (one.values["width"], one.values["depth"]) == (donor["width"], donor["depth"])
        assert one.values != donor


def test_factors_are_those_of_the_paper():
    plan = plan_of({"lr": mh.free.log(1e-4, 1.0)}, trials=64)
    found = carried_out(Population(size=8, resample=0.0), plan)
    copies = [one.trial for one in found if one.trial.reason.startswith("copy")]
    factors = {round(one.values["lr"] / found[one.parent].trial.values["lr"], 6) for one in copies}
    assert factors == {0.8, 1.2}


def test_less_is_better_if_it_is_said():
    plan = plan_of(NUMBERS, trials=16, less_is_better=True)
    found = carried_out(Population(size=8), plan, worth=lambda values: -score(values))
    order = plan.order(found[:8])
    assert order[-1].score == min(one.score for one in found[:8])


def test_halving_ends_most_settings_early_and_continues_the_good_ones():
    pytest.importorskip("optuna")
    plan = plan_of(NUMBERS, trials=40)
    method = OptunaSearch(pruner="halving", rungs=3)
    found = carried_out(method, plan)
    begun = [one for one in found if one.trial.parent is None]
    ended = [one for one in found if method.is_whole(one, plan)]
    assert len(begun) > 2 * len(ended) > 0
    for one in ended:
        second = found[one.trial.parent].trial
        assert second.until == 800
        assert found[second.parent].trial.until == 400
        assert one.trial.values == second.values


@pytest.mark.parametrize("method", [Evolution(size=8), Swarm(size=8), OptunaSearch()], ids=str)
def test_it_finds_better_values_than_chance(method):
    pytest.importorskip("optuna")
    better = 0
    for seed in range(10):
        plan = plan_of(NUMBERS, trials=48, seed=seed)
        best = plan.order(carried_out(method, plan))[-1].score
        chance = plan.order(carried_out(RandomSearch(), plan))[-1].score
        better += best > chance
    assert better >= 8


def test_evolution_finds_a_structure():
    better = 0
    for seed in range(10):
        plan = plan_of(LAYERS, trials=64, seed=seed)
        best = plan.order(carried_out(Evolution(size=10, tournament=4), plan))[-1].score
        chance = plan.order(carried_out(RandomSearch(), plan))[-1].score
        better += best > chance
    assert better >= 8


def test_what_cannot_be_searched_is_refused_in_words():
    with pytest.raises(ValueError, match="the sequence layers has none: use evolution"):
        Swarm().check(plan_of(LAYERS))
    with pytest.raises(ValueError, match="use 16 or 24 trials, not 20"):
        Population(size=8).check(plan_of(NUMBERS, trials=20))
    with pytest.raises(ValueError, match="give the job a limit of epochs or samples"):
        Population(size=8).check(SearchPlan(parameters=NUMBERS, trials=24))


def test_methods_are_written_as_text():
    for way in WAYS:
        assert METHODS.read(str(way)) == way
    assert str(METHODS.read("population(8, replaced=0.5)")) == "population(replaced=0.5)"
    with pytest.raises(ValueError, match="replaced must be above 0"):
        METHODS.read("population(replaced=0.7)")
    with pytest.raises(ValueError, match="search method"):
        METHODS.read("popolation()")
