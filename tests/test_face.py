"""What the package is from outside: a light face, no pickle behind it, and a command at once."""

import ast
import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import manyhands

SOURCE = Path(manyhands.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
PICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
HEAVY = ("torch", "zmq", "numpy")
VERBS = ("train", "simulate", "compare", "scaling", "slurm", "strategies", "summary", "timeline")


def fresh(code: str, *options: str) -> str:
    """What a fresh interpreter prints that executes `code`."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_starts_and_opens_nothing() -> None:
    state = fresh("""
        import json, os, sys, threading

        def sockets():
            found = 0
            for number in os.listdir("/proc/self/fd"):
                try:
                    found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
                except OSError:
                    pass
            return found

        def threads():
            return len(os.listdir("/proc/self/task"))

        before, loaded = (sockets(), threads()), set(sys.modules)
        import manyhands

        after = sockets(), threads()
        modules = sorted(set(sys.modules) - loaded)
        names = [thread.name for thread in threading.enumerate()]
        import psutil

        children = len(psutil.Process().children(recursive=True))
        print(json.dumps([before, after, modules, names, children]))
    """)
    before, after, modules, names, children = json.loads(state)
    assert before == after == [before[0], 1]
    assert names == ["MainThread"]
    assert children == 0
    assert "manyhands" in modules
    assert not {*HEAVY, "asyncio", "subprocess", "multiprocessing"} & set(modules)
    assert [name for name in modules if name.startswith("manyhands.")] == []


def test_the_face_lists_every_public_name_and_each_resolves() -> None:
    listed = json.loads(
        fresh("""
            import json
            import manyhands

            names = dir(manyhands)
            homes = {name: getattr(manyhands, name) is not None for name in names}
            import sys
            print(json.dumps([names, homes, "torch" in sys.modules]))
        """)
    )
    names, resolved, torch_loaded = listed
    assert names == sorted(manyhands.__all__)
    assert len(set(names)) == len(names)
    assert all(resolved.values())
    assert torch_loaded, "the names are real: some of them need torch"
    assert {"Job", "train", "Cluster", "strategy", "Run", "RunFailed", "data"} <= set(names)


def test_the_lazy_names_are_those_that_typed_code_sees() -> None:
    """Imports under TYPE_CHECKING, the homes and `__all__` say one thing three times."""
    tree = ast.parse(Path(manyhands.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.name: statement.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    lazy = {**manyhands._HOME, **dict.fromkeys(manyhands._FOLDERS, "manyhands")}
    assert typed == lazy
    assert set(manyhands.__all__) == {*lazy, "__version__"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'manyhands' has no attribute 'trian'"):
        _ = manyhands.trian
    assert not hasattr(manyhands, "os")


def test_light_names_are_used_without_torch() -> None:
    printed = fresh("""
        import sys
        import manyhands as mh

        mh.Cluster.local(), mh.Host("a", 1, 1), mh.Link(1.0), mh.RunFailed("x"), mh.__version__
        print("torch" in sys.modules)
    """)
    assert printed == "False\n"


@pytest.mark.parametrize(
    "module",
    [
        "live.coordinator.process",
        "live.processes.fork_server",
        "cli.preload",
        "transport.control",
        "wire",
        "trace",
        "leasing.membership",
        "cli",
    ],
)
def test_what_must_start_at_once_does_not_load_torch(module: str) -> None:
    printed = fresh(f"import sys, manyhands.{module}; print('torch' in sys.modules)")
    assert printed == "False\n"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_pickles_or_evaluates(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if name.name.split(".")[0] in PICKLING]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if module.split(".")[0] in PICKLING else []
                found += [name.name for name in names if name.name in PICKLING]
                if module.split(".")[0] == "torch":
                    found += [name.name for name in names if name.name in ("save", "load")]
            case ast.Attribute(value=ast.Name(id="torch"), attr="save" | "load" as attribute):
                found.append(f"torch.{attribute}")
            case ast.Call(func=ast.Name(id="eval" | "__import__" as name)):
                found.append(name)
            case ast.Call(func=ast.Name(id="exec")) if path.parts[-2:] != ("script", "loading.py"):
                found.append("exec")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.append("allow_pickle")
    assert found == []


def test_the_scan_saw_the_whole_package() -> None:
    names = {str(path.relative_to(SOURCE)) for path in MODULES}
    assert {
        "job/job.py",
        "live/worker/process.py",
        "wire/control.py",
        "files/checkpoint.py",
    } <= names


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_within_half_a_second_and_names_the_subcommands() -> None:
    command = Path(sys.executable).parent / "manyhands"
    assert command.exists(), "the console script stands next to this Python"
    best = float("inf")
    # Seconds of the processor, and the best of several: others on the machine are not measured.
    for _ in range(15):
        begun = _seconds_of_children()
        done = subprocess.run(
            [command, "--help"], capture_output=True, text=True, check=False, timeout=60
        )
        best = min(best, _seconds_of_children() - begun)
        assert done.returncode == 0, done.stderr
        for verb in VERBS:
            assert f" {verb} " in done.stdout
        if best < 0.5:
            break
    assert best < 0.5


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=str)
def test_help_loads_no_torch(arguments: list[str]) -> None:
    printed = fresh(f"""
        import sys

        sys.argv = ["manyhands", *{arguments}]
        from manyhands.cli import main

        try:
            main()
        except SystemExit as end:
            print("left with", end.code, [name for name in {HEAVY} if name in sys.modules])
    """)
    assert printed.endswith("left with 0 []\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", "--help"], capture_output=True, text=True, check=True
    )
    assert "any parallel strategy" in done.stdout
