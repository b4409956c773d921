"""Time to a target: from real gradients, shared by strategies that take the same steps."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.lab.planning.candidates import Candidate
from manyhands.lab.planning.learning import Learning, TimedCandidate
from manyhands.lab.planning.page import write_page
from manyhands.lab.planning.prices import STARTS
from manyhands.lab.planning.timing import PredictedSpeed
from manyhands.verbs.asked import Asked

CLUSTER = "4 hosts of 1 worker, 1gbit"
STRATEGIES = ("single()", "allreduce()", "synchronous()", "asynchronous()", "diloco(every=8)")


def job(samples: int = 512) -> mh.Job:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, 20, generator=draw)
    labels = (inputs @ torch.randn(20, generator=draw) > 0).long()
    data = torch.utils.data.TensorDataset(inputs, labels)
    return mh.Job(
        model=lambda: torch.nn.Linear(20, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=32,
        epochs=8,
    )


def calibration() -> mh.Calibration:
    compute = tuple(
        mh.ComputeTime(samples=samples, seconds=0.001 * samples, cv=0.0, data=0.0, steps=9)
        for samples in (8, 64)
    )
    return mh.Calibration(date="2026-01-01", job="job", parameters=168, compute=compute)


def planned(strategies: tuple[str, ...] = STRATEGIES, **options: object) -> mh.Plan:
    about = {"strategies": strategies, "workers": [4], "target": "accuracy >= 0.95", **options}
    return mh.plan(job(), CLUSTER, calibration(), **about)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan() -> mh.Plan:
    return planned(price=3600.0)


def test_strategies_with_the_same_steps_need_the_same_samples(plan: mh.Plan) -> None:
    times = {one.strategy: one.to_target for one in plan.ranking}
    alike = [times[name] for name in ("allreduce()", "synchronous()")]
    assert all(one is not None and one.runs == 3 for one in alike)
    assert len({one.samples for one in alike if one is not None}) == 1


def test_the_time_is_that_of_a_virtual_run_with_the_same_steps(
    plan: mh.Plan, tmp_path: Path
) -> None:
    found = next(one for one in plan.ranking if one.strategy == "allreduce()")
    assert found.to_target is not None
    seconds = []
    for seed in range(3):
        run = mh.simulate(
            replace(job(), evaluate_every=mh.every(epochs=0.2)),
            "allreduce()",
            workers=4,
            cluster=CLUSTER,
            times="constant(0.008)",
            target="accuracy >= 0.95",
            seed=seed,
            output=tmp_path / str(seed),
        )
        seconds.append(mh.reports.measure(run.trace, target="accuracy >= 0.95").time_to_target)
    assert found.to_target.seconds == pytest.approx(sum(seconds) / 3, rel=0.1)


def test_others_are_trained_for_themselves(plan: mh.Plan) -> None:
    times = {one.strategy: one.to_target for one in plan.ranking}
    free, rare = times["asynchronous()"], times["diloco(every=8)"]
    assert free is not None
    assert rare is not None
    assert free.samples != rare.samples


def test_replicas_of_several_workers_learn_as_so_many_workers_do(tmp_path: Path) -> None:
    text = "hybrid(data=2, shard=2, outer=averaging(every=8))"
    (found,) = (one for one in planned((text,)).ranking if one.strategy == text)
    assert found.to_target is not None
    samples = []
    for seed in range(3):
        run = mh.simulate(
            replace(job(), evaluate_every=mh.every(epochs=0.2)),
            "averaging(every=8)",
            workers=2,
            target="accuracy >= 0.95",
            seed=seed,
            output=tmp_path / str(seed),
        )
        samples.append(mh.reports.measure(run.trace, target="accuracy >= 0.95").samples_to_target)
    assert found.to_target.samples == pytest.approx(math.prod(samples) ** (1 / 3))
    assert found.to_target.seconds == pytest.approx(found.to_target.samples / found.rate, rel=0.01)


def test_the_soonest_is_first_and_has_a_price(plan: mh.Plan) -> None:
    times = [one.to_target.seconds for one in plan.ranking if one.to_target is not None]
    assert times == sorted(times)
    for one in plan.ranking:
        assert one.to_target is not None
        assert one.price == pytest.approx(one.workers * (STARTS + one.to_target.seconds), rel=0.02)
    assert "accuracy >= 0.95 in" in plan.verdict


def test_a_price_without_a_target_is_that_of_the_jobs_samples() -> None:
    ranking = planned(("allreduce()",), target=None, price=3600.0, start_up=0.0).ranking
    assert {(one.strategy, one.workers) for one in ranking} == {("single()", 1), ("allreduce()", 4)}
    for one in ranking:
        assert one.price == pytest.approx(one.workers * 8 * 512 / one.rate, rel=0.02)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # One of three sooner, against all of them.
        ([10.0, None, None], [12.0, 12.0, 12.0]),
        ([10.0, 10.0, None], [12.0, 12.0, 12.0]),
        # Equal times, of which one is a missed target.
        ([10.0, None, 11.0], [10.0, 10.5, 11.0]),
    ],
)
def test_a_run_that_missed_the_target_counts(
    first: list[float | None], second: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"asynchronous": first, "averaging": second}

    def run(_: object, words: str, asked: Asked, *__: object, **___: object) -> object:
        seconds = given[words.partition("(")[0]][asked.seed - job().seed]
        return (seconds, 5000.0 if seconds else 50_000.0)

    monkeypatch.setattr(Learning, "_run", run)
    learning = Learning(
        job(), Cluster.parse(CLUSTER), calibration(), (), target="accuracy >= 0.95", budget=1e9
    )
    speed = PredictedSpeed(rate=500, low=500, high=500, limit="")
    timed = [
        TimedCandidate(Candidate(mh.strategy(text), 4), speed)
        for text in ("asynchronous()", "averaging(every=8)")
    ]
    reached, said = learning.train(timed)
    sooner = sorted(reached, key=lambda one: reached[one].rank)
    assert [str(one) for one in sooner] == ["averaging(every=8)", "asynchronous()"]
    assert reached[timed[0].candidate].share == f"{3 - first.count(None)} of 3"
    assert "was missed by asynchronous() on 4 workers" in said[0]


def test_further_variants_of_a_kind_are_trained_within_the_budget() -> None:
    texts = ("diloco(every=8)", "diloco(every=4)", "diloco(every=16)", "diloco(every=2)")
    found = planned(texts)
    times = [one for one in found.ranking if one.to_target and "diloco" in one.strategy]
    assert len(times) == 3
    assert any(note.startswith("diloco(every=") and "not trained" in note for note in found.notes)


def test_a_target_that_is_not_reached_is_said() -> None:
    found = planned(("allreduce()", "diloco(every=8)"), target="accuracy >= 1.01")
    assert [one.to_target for one in found.ranking] == [None, None, None]
    assert any("diloco(every=8) on 4 workers did not reach" in note for note in found.notes)


def test_without_a_budget_only_the_shared_run_is_made() -> None:
    found = planned(("allreduce()", "diloco(every=8)"), budget=0.0)
    times = {one.strategy: one.to_target for one in found.ranking}
    assert times["allreduce()"] is not None
    assert times["diloco(every=8)"] is None
    assert any("the budget was spent" in note for note in found.notes)


def test_rules_of_thumb_are_tried_on_the_job() -> None:
    found = planned(("allreduce()",), target=None, rules=True).rules
    by_text = {rule.text: rule for rule in found}
    assert len(found) == 5
    # 168 bytes on a link of 1 Gbit/s take no time, whatever its bandwidth; a straggler does.
    assert by_text["a low ratio of transfer to computing favours distribution"].holds == "refuted"
    assert by_text["asynchronous on unequal machines"].holds == "confirmed"
    shared = by_text["networks that share parameters (CNN, RNN) are good candidates"]
    assert shared.holds == "not tested"


def test_the_page_has_the_verdict_the_ranking_and_the_rules(tmp_path: Path, plan: mh.Plan) -> None:
    rule = mh.Rule("a <rule>", "confirmed", "1 & 2")
    shown = replace(plan, rules=(rule,), left_out=(mh.LeftOut("gossip()", "why"),))
    text = write_page(shown, tmp_path / "plan.html", "manyhands train x.py").read_text()
    assert plan.verdict.replace(">", "&gt;") in text
    assert all(f"<code>{one.strategy}</code>" in text for one in plan.ranking)
    assert "a &lt;rule&gt;. 1 &amp; 2." in text
    assert "manyhands train x.py" in text
    assert "http" not in text.replace("http-equiv", "")
