"""What a comparison is made of, and the folder that remembers it."""

from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.lab.design import Budget, Design, Script, VirtualConditions
from manyhands.lab.entrants import read_entrants
from manyhands.lab.folder import claimed
from manyhands.lab.provenance import account, budget_words
from manyhands.lab.runs import command
from manyhands.pacing import Pace


def a_job(**limits: object) -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(1000, 2), torch.zeros(1000).long())
    return mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=10,
        **(limits or {"epochs": 2}),
    )


def a_design(strategies: str = "allreduce, ssp", **settings: object) -> Design:
    return Design(entrants=read_entrants(strategies), **({"workers": (4,)} | settings))


def test_a_budget_takes_the_place_of_the_job_s_own() -> None:
    job = a_job()
    assert Budget().of(job) == job
    assert Budget(samples=50).of(job).budget == 50
    assert Budget(epochs=0.5, seconds=3).of(job).budget == 500
    timed = Budget(seconds=3).of(job)
    assert (timed.budget, timed.seconds) == (None, 3)
    aimed = Budget(target="accuracy >= 0.9").of(job)
    assert (aimed.budget, aimed.target) == (2000, "accuracy >= 0.9")
    assert Budget().of(job, seed=7).seed == 7


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(target="f2 >= 0.9"), "names no metric of this job"),
        (Budget(target="soon"), "not of the form"),
        (Budget(seconds=0), "seconds must be above 0"),
    ],
)
def test_a_budget_that_makes_no_sense_for_the_job_is_refused(budget: Budget, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        budget.of(a_job())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"epochs": 1}, "1 epoch (1,000 samples)"),
        ({"epochs": 2.5}, "2.5 epochs (2,500 samples)"),
        ({"samples": 640}, "640 samples"),
        ({"seconds": 30}, "30 s of training"),
        ({"epochs": 2, "seconds": 30}, "2 epochs (2,000 samples) or 30 s of training"),
        (
            {"epochs": 2, "target": "accuracy >= 0.9"},
            "until accuracy >= 0.9, at most 2 epochs (2,000 samples)",
        ),
        ({"target": "loss <= 0.1"}, "until loss <= 0.1"),
    ],
)
def test_the_budget_is_told_in_words(limits: dict[str, object], words: str) -> None:
    assert budget_words(a_job(**limits)) == words


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    a_design().check()
    for design, why in [
        (a_design("allreduce, softsync(wait_for=5)"), "softsync"),
        (a_design(slow=(Pace(4, 2.0),)), "the run has workers 0 to 3"),
        (a_design("allreduce slow 9:2x"), "the run has workers 0 to 3"),
    ]:
        with pytest.raises(ValueError, match=why):
            design.check()
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        a_design(repeats=0)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        a_design(workers=(2, 0))
    with pytest.raises(ValueError, match="margin must be between 0 and 1"):
        a_design(margin=5)


def test_a_worker_is_slowed_in_the_runs_that_have_it_and_the_results_say_so() -> None:
    design = a_design(
        "single, allreduce, allreduce slow all:1.2x", workers=(2, 4), slow=(Pace(2, 4.0),)
    )
    slowed = {(turn.entrant.label, turn.workers): design.paces(turn) for turn in design.turns}
    all_workers, third = Pace(None, 1.2), Pace(2, 4.0)
    assert slowed == {
        ("single()", 1): (),
        ("allreduce()", 2): (),
        ("allreduce()", 4): (third,),
        ("allreduce() slow all:1.2x", 2): (all_workers,),
        ("allreduce() slow all:1.2x", 4): (third, all_workers),
    }
    results = account(design, a_job(), [])
    assert results.paced == (
        "worker 2 computes 4 times as long; under allreduce() slow all:1.2x, all workers compute "
        "1.2 times as long"
    )
    assert results.strategies == ("single()", "allreduce()", "allreduce() slow all:1.2x")
    assert results.processes_per_core == 4 / (results.machine.cores or 1)


def test_a_live_run_is_a_command_that_says_everything(tmp_path: Path) -> None:
    script = Script(path=tmp_path / "s.py", job="mine", arguments=("--big", "x"))
    design = a_design(
        "ssp(staleness=4) slow 0:2x",
        script=script,
        seed=7,
        budget=Budget(samples=500, target="accuracy >= 0.9"),
        slow=(Pace(1, 3.0),),
    )
    words = command(design, design.turns[1], tmp_path / "run")
    assert words[1:5] == ["-m", "manyhands", "train", str(script.path)]
    assert words[-3:] == ["--", "--big", "x"]
    text = " ".join(words)
    for part in (
        "--job mine",
        "--strategy ssp(staleness=4)",
        "--workers 4",
        "--seed 8",
        "--samples 500",
        "--target accuracy >= 0.9",
        f"--output {tmp_path / 'run'}",
        "--slow 1:3x --slow 0:2x",
    ):
        assert part in text
    assert "--epochs" not in text


def test_more_repeats_another_margin_and_a_price_belong_to_the_same_comparison() -> None:
    plain = a_design().identity()
    assert a_design(repeats=9, margin=0.1, price=2.0).identity() == plain
    for other in (
        a_design("allreduce"),
        a_design(workers=(4, 2)),
        a_design(seed=1),
        a_design(budget=Budget(samples=5)),
        a_design(slow=(Pace(1, 2.0),)),
        a_design(virtual=VirtualConditions()),
        a_design(network="100mbit"),
    ):
        assert other.identity() != plain
    conditions = a_design(virtual=VirtualConditions(bandwidth="1gbit")).identity()
    assert conditions != a_design(virtual=VirtualConditions()).identity()


def test_a_script_that_changed_makes_another_comparison(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text("one", encoding="utf-8")
    design = a_design(script=Script(path=path, job="job"))
    with claimed(tmp_path / "out", design.identity()):
        pass
    path.write_text("two", encoding="utf-8")
    with (
        pytest.raises(ValueError, match="the script has changed"),
        claimed(tmp_path / "out", design.identity()),
    ):
        pass


def test_a_folder_is_for_one_comparison_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mine = a_design().identity()
    with (
        claimed(out, mine),
        pytest.raises(ValueError, match="another comparison is running in"),
        claimed(out, mine),
    ):
        pass
    with claimed(out, mine):
        pass
    other = a_design(workers=(2,)).identity()
    with (
        pytest.raises(ValueError, match=r"other settings \(workers: 4 there, 2 now\)"),
        claimed(out, other),
    ):
        pass


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    with (
        pytest.raises(ValueError, match="holds other results"),
        claimed(tmp_path, a_design().identity()),
    ):
        pass
