"""A function in place of a job: for scripts that do everything in main()."""

import functools
import sys
import textwrap
from pathlib import Path

import pytest

from manyhands.job import Job
from manyhands.reports import Run
from manyhands.script.loading import made

MAKE = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    def make_job(epochs=2):
        data = torch.utils.data.TensorDataset(torch.eye(2).repeat(8, 1), torch.arange(16) % 2)
        return mh.Job(
            model=lambda: torch.nn.Linear(2, 2),
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            loss=F.cross_entropy,
            data=data,
            global_batch=8,
            epochs=epochs,
        )
"""
MAIN = """
    def main():
        print("ended", mh.train(make_job, "allreduce()", workers=2).status)

    if __name__ == "__main__":
        main()
"""
LOCAL = """
    def main():
        mine = make_job()
        mh.train(mine, "allreduce()", workers=2)

    if __name__ == "__main__":
        main()
"""
MANYHANDS = (sys.executable, "-m", "manyhands")


def nothing(*_: object) -> None:
    """A model, an optimizer and a loss, as far as these tests look."""


def make(epochs: int = 1) -> Job:
    return Job(
        model=nothing,
        optimizer=nothing,
        loss=nothing,
        data=range(8),
        global_batch=4,
        epochs=epochs,
    )


def test_a_job_is_itself_and_a_function_is_called() -> None:
    job = make()
    assert made(job) is job
    assert made(make).epochs == 1
    assert made(functools.partial(make, epochs=3)).epochs == 3


def test_what_makes_no_job_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a Job, or a function without arguments.* got 3"):
        made(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"nothing\(\) must return a Job, got None"):
        made(nothing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"without arguments.*functools\.partial"):
        made(lambda epochs: make(epochs + 1))  # type: ignore[misc,arg-type]


def test_a_job_that_is_made_in_main_trains(run_script) -> None:
    started = run_script(MAKE + MAIN)
    assert started.finish(100) == 0, started.text()
    assert "ended finished" in started.text()


def test_a_job_that_is_a_local_variable_is_refused_by_name(run_script) -> None:
    started = run_script(MAKE + LOCAL)
    assert started.finish(100) == 1
    text = started.text()
    assert "the job 'mine' is a local variable of main(), where workers cannot find it" in text
    assert "mh.train(make_job, ...)" in text


def test_the_command_line_names_the_function(start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(MAKE + LOCAL), encoding="utf-8")
    command = ("--job", "make_job", "--workers", "2", "--output", "run")
    started = start(*MANYHANDS, "train", "script.py", *command)
    assert started.finish(100) == 0, started.text()
    assert Run(tmp_path / "run").samples == 32


def test_a_name_that_is_not_there_is_refused(start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(MAKE), encoding="utf-8")
    started = start(*MANYHANDS, "simulate", "script.py", "--job", "made")
    assert started.finish(60) != 0
    assert "no job named 'made' at its top level, nor a function of this name" in started.text()
    started = start(*MANYHANDS, "simulate", "script.py", "--job", "make_job", "--workers", "2")
    assert started.finish(60) == 0, started.text()


@pytest.mark.slow
def test_a_function_is_compared(run_script, tmp_path: Path) -> None:
    compared = "mh.compare(make_job, 'allreduce, ssp', workers=2, repeats=1, output='out')"
    started = run_script(
        MAKE + MAIN.replace('mh.train(make_job, "allreduce()", workers=2).status', compared)
    )
    assert started.finish(170) == 0, started.text()
    assert (tmp_path / "out" / "results.json").exists()


PACKAGE = """
    from .jobs import make_job
    import manyhands as mh

    job = make_job()

    def loop(trainer):
        from .jobs import NAME
        print(NAME, __package__, flush=True)
        for batch in trainer.batches():
            trainer.step(batch)

    if __name__ == "__main__":
        print("ended", mh.train(job, "allreduce()", workers=2, loop=loop).status)
"""


def write_package(tmp_path: Path, script: str) -> None:
    """A package `experiments.first` whose module `train` has this text."""
    package = tmp_path / "experiments" / "first"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("", encoding="utf-8")
    (package / "jobs.py").write_text(
        textwrap.dedent(MAKE) + "\nNAME = 'of the package'\n", encoding="utf-8"
    )
    (package / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["job", "make_job"])
def test_python_dash_m_compares_with_relative_imports(start, tmp_path: Path, what: str) -> None:
    about = f"mh.compare({what}, 'allreduce, ssp', workers=2, repeats=1, output='out')"
    train = 'mh.train(job, "allreduce()", workers=2, loop=loop).status'
    write_package(tmp_path, PACKAGE.replace(train, about))
    started = start(sys.executable, "-m", "experiments.first.train")
    assert started.finish(170) == 0, started.text()
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.slow
def test_python_dash_m_trains_with_relative_imports(start, tmp_path: Path) -> None:
    write_package(tmp_path, PACKAGE)
    started = start(sys.executable, "-m", "experiments.first.train")
    assert started.finish(100) == 0, started.text()
    assert "[worker 0] of the package experiments.first" in started.text()
    assert "ended finished" in started.text()
