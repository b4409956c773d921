"""Where a job stands, so that every process of a run finds the same one."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from manyhands.job import Job
from manyhands.script.loading import MODULE, execute, is_loading, load, trace_back
from manyhands.script.origin import Origin

JOB = """
    import manyhands as mh

    job = mh.Job(
        model=lambda: None,
        optimizer=lambda model: None,
        loss=lambda outputs, targets: None,
        data=range(8),
        global_batch=4,
        epochs=1,
    )
"""

LOAD = """
    import json, sys, msgspec
    from manyhands.live.assignment import Origin
    from manyhands.script.loading import load

    job, loop = load(msgspec.json.decode(sys.argv[1], type=Origin))
    print(json.dumps([job.global_batch, len(job.data), *loop(None), sys.argv[1:]]))
"""


def nothing(*_: object) -> None:
    """A model, an optimizer and a loss, as far as these tests look."""


def make() -> Job:
    return Job(
        model=nothing,
        optimizer=nothing,
        loss=nothing,
        data=range(8),
        global_batch=4,
        epochs=1,
    )


def loop(trainer: Any) -> None:
    """Some loop."""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An empty module that stands as the script."""
    module = ModuleType("__main__")
    module.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "0.1"])
    monkeypatch.setattr(sys, "path", ["/somewhere", *sys.path])
    return module


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a script in this process, and leave the process as it was."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))

    def execute_as_worker(text: str, **changes: Any) -> Any:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        given = {"package": "", "search": str(tmp_path), "argv": ("script.py", "x")}
        return load(Origin(**{"script": str(path), "job": "job", "loop": None, **given, **changes}))

    return execute_as_worker


def test_a_job_is_found_by_its_name_in_the_script(main: ModuleType) -> None:
    main.mine, main.walk = make(), loop
    assert trace_back(main.mine, main.walk, vars(main)) == Origin(
        script="/somewhere/train.py",
        package="",
        search="/somewhere",
        argv=("train.py", "--rate", "0.1"),
        job="mine",
        loop="walk",
    )


def test_the_callers_module_is_preferred_to_the_script(main: ModuleType) -> None:
    library = ModuleType("library.jobs")
    library.__file__, library.__package__ = "/elsewhere/library/jobs.py", "library"
    main.imported = library.job = make()
    origin = trace_back(library.job, None, vars(library))
    assert (origin.script, origin.package) == ("/elsewhere/library/jobs.py", "library")
    assert (origin.job, origin.loop) == ("job", None)


def test_a_caller_that_does_not_hold_the_job_leaves_it_to_the_script(main: ModuleType) -> None:
    library = ModuleType("library.verbs")
    library.__file__ = "/elsewhere/library/verbs.py"
    library.another, main.job = make(), make()
    assert trace_back(main.job, None, vars(library)).script == "/somewhere/train.py"


def test_the_first_name_of_a_job_is_taken_because_later_ones_may_stand_below_the_guard(
    main: ModuleType,
) -> None:
    main.job = make()
    main.current = main.job
    assert trace_back(main.job, None, vars(main)).job == "job"


def test_an_equal_job_is_not_the_same_job(main: ModuleType) -> None:
    main.job = make()
    with pytest.raises(ValueError, match="has no name at the top level of a script"):
        trace_back(replace(main.job), None, vars(main))


@pytest.mark.parametrize(
    ("held", "path"),
    [
        (lambda job: [make(), job], "jobs[1]"),
        (lambda job: (job,), "jobs[0]"),
        (lambda job: {"small": make(), "large": job}, "jobs['large']"),
    ],
)
def test_a_job_in_a_collection_is_found_there_and_not_under_the_name_of_a_loop_over_it(
    main: ModuleType, held: Any, path: str
) -> None:
    job = make()
    main.jobs = held(job)
    main.one = job
    assert trace_back(job, None, vars(main)).job == path


def test_a_worker_takes_a_job_from_a_collection(loads: Any) -> None:
    text = JOB + "\n    jobs = [3, job]\n    named = {'a': job}\n"
    for path in ("jobs[1]", "named['a']"):
        assert isinstance(loads(text, job=path)[0], Job)
    for path in ("jobs[0]", "jobs[2]", "named['b']", "other[0]"):
        with pytest.raises(TypeError, match="defined no job named"):
            loads(text, job=path)


def test_a_job_of_an_imported_module_is_found_there(
    main: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("library.jobs")
    library.__file__, library.__package__ = "/elsewhere/library/jobs.py", "library"
    library.job = make()
    monkeypatch.setitem(sys.modules, "library.jobs", library)
    origin = trace_back(library.job, None, vars(main))
    assert (origin.script, origin.package) == ("/elsewhere/library/jobs.py", "library")
    assert origin.job == "job"


def test_a_job_within_a_function_is_refused_with_the_way_out(main: ModuleType) -> None:
    job = make()
    words = r"no name at the top level of a script.*Move it to the top level .*mh\.train\(make_job"
    with pytest.raises(ValueError, match=words):
        trace_back(job, None, vars(main))


def test_a_job_that_was_made_interactively_is_refused_by_name(main: ModuleType) -> None:
    main.job, main.__file__ = make(), None
    with pytest.raises(ValueError, match=r"the job 'job' was created interactively.*into a script"):
        trace_back(main.job, None, vars(main))


def test_a_loop_that_stands_elsewhere_is_refused(main: ModuleType) -> None:
    main.job = make()

    def local(trainer: Any) -> None:
        """Stands in a function."""

    for stranger in (local, lambda _: None):
        with pytest.raises(ValueError, match="the loop must be a function at the top level"):
            trace_back(main.job, stranger, vars(main))


def test_a_worker_gets_the_job_the_loop_and_the_arguments(loads: Any) -> None:
    job, walk = loads(
        JOB
        + """
    import sys

    def walk(trainer):
        return sys.argv, __name__, __file__
    """,
        loop="walk",
    )
    assert isinstance(job, Job)
    argv, name, path = walk(None)
    assert argv == ["script.py", "x"]
    assert name == MODULE != "__main__"
    assert Path(path).name == "script.py"


def test_a_job_below_the_guard_is_missed_in_words(loads: Any) -> None:
    guarded = '\n    if __name__ == "__main__":' + JOB.replace("\n", "\n    ")
    with pytest.raises(TypeError, match=r"no job named 'job' .* define it above the main guard"):
        loads(guarded)


def test_a_loop_below_the_guard_is_missed_in_words(loads: Any) -> None:
    with pytest.raises(TypeError, match=r"no loop named 'walk' .* define it above the main guard"):
        loads(JOB, loop="walk")


def test_something_else_under_the_jobs_name_is_refused(loads: Any) -> None:
    with pytest.raises(TypeError, match="defined no job named 'job'"):
        loads("job = 3")


def test_a_process_is_loading_while_its_script_runs_and_not_a_moment_longer(loads: Any) -> None:
    asking = "\n    from manyhands.script.loading import is_loading\n    seen = is_loading()\n"
    assert not is_loading()
    loads(JOB + asking)
    assert sys.modules[MODULE].seen
    assert not is_loading()
    with pytest.raises(ZeroDivisionError):
        loads("1 / 0")
    assert not is_loading()


def test_an_error_in_the_script_shows_its_line(loads: Any) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        loads("x = 1\ny = x / 0\n")
    last = caught.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("script.py", 2)


def test_what_a_module_is_executed_as_is_found_by_those_who_look(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 3\n",
        encoding="utf-8",
    )
    try:
        module = execute(path, "__made_for_a_test__")
        assert sys.modules[module.A.__module__] is module
        assert module.A().x == 3
    finally:
        sys.modules.pop("__made_for_a_test__", None)


def test_a_script_run_with_dash_m_is_loaded_with_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "home" / "experiments" / "first"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package.parent / "shared.py").write_text("BATCH = 6\n", encoding="utf-8")
    (package / "data.py").write_text("from ..shared import BATCH\nSIZE = 24\n", encoding="utf-8")
    text = (
        JOB.replace("range(8)", "range(SIZE)").replace("global_batch=4", "global_batch=BATCH")
        + """
    def loop(trainer):
        return __name__, __package__

    if __name__ == "__main__":
        import msgspec
        from manyhands.script.loading import trace_back

        print(msgspec.json.encode(trace_back(job, loop, globals())).decode())
    """
    )
    text = "from .data import BATCH, SIZE\n" + textwrap.dedent(text)
    (package / "train.py").write_text(text, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "experiments.first.train", "--mine"],
        cwd=tmp_path / "home",
        capture_output=True,
        text=True,
        check=True,
    )
    origin = msgspec.json.decode(told.stdout, type=Origin)
    assert origin.script == str(package / "train.py")
    assert origin.package == "experiments.first"
    assert origin.search == str(tmp_path / "home")
    assert (origin.job, origin.loop) == ("job", "loop")
    assert origin.argv[1:] == ("--mine",)
    loaded = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOAD), told.stdout],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(loaded.stdout) == [6, 24, MODULE, "experiments.first", ["--mine"]]
