"""Script loading: executes the user's script in every process of a run.

The script is executed under another module name, so code below `if __name__ == "__main__":` is not
executed, and the process takes the module-level job that the agent named. Nothing is pickled:
lambdas and local classes work, and side effects below the guard are not repeated.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from manyhands.job import Job
from manyhands.script.origin import Origin
from manyhands.seeding import seed_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec

MODULE = "__manyhands__"
"""The module name under which workers execute the script."""

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parent.parent),
)

_loading = False


def trace_back(job: Job, loop: Callable[..., Any] | None, namespace: Mapping[str, Any]) -> Origin:
    """Find the module-level names of `job` and `loop`.

    They are searched in the caller's module, then in the script, then in imported modules. A job
    may also be an item of a module-level list, tuple or dictionary: `jobs[0]`.

    Raises:
        ValueError: the job (or the loop) is not a module-level value of a file.
    """
    for module in _namespaces(namespace):
        name = _path_of(job, module)
        if name is None:
            continue
        if not module.get("__file__"):
            raise ValueError(
                f"the job '{name}' was created interactively or read from standard input; other "
                "processes need a file to load it from, so write it into a script"
            )
        loop_name = None
        if loop is not None:
            loop_name = _name_of(loop, module)
            if loop_name is None:
                raise ValueError(
                    "the loop must be a function at the top level of the job's module, so that "
                    "every worker can find it by name"
                )
        return Origin(
            script=str(Path(module["__file__"]).resolve()),
            package=module.get("__package__") or "",
            search=str(Path(sys.path[0]).resolve()) if sys.path else "",
            argv=tuple(sys.argv),
            job=name,
            loop=loop_name,
        )
    raise ValueError(
        "train needs a job at the top level of a script (job = mh.Job(...), outside any "
        "function), because every worker executes the script and finds the job by its name"
    )


def _namespaces(caller: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Namespaces in which a job may be defined, the likeliest first."""
    script = vars(sys.modules["__main__"])
    yield caller
    yield script
    for module in [*sys.modules.values()]:
        namespace = getattr(module, "__dict__", None)
        # A reference to the job in an installed library is not its definition.
        if namespace and namespace.get("__file__") and not _is_installed(namespace["__file__"]):
            yield namespace


def _is_installed(path: object) -> bool:
    return not isinstance(path, str) or path.startswith(_INSTALLED)


def _path_of(job: Job, namespace: Mapping[str, Any]) -> str | None:
    """The first name of a job, `job`, or of the collection that holds it, `jobs[2]`.

    The first one, because the variable of a loop over jobs may be below the main guard.
    """
    for name, held in [*namespace.items()]:
        if held is job:
            return name
        items: Iterable[tuple[object, object]] = ()
        if isinstance(held, (list, tuple)):
            items = enumerate(held)
        elif isinstance(held, dict) and not name.startswith("__"):
            items = held.items()
        for key, value in items:
            if value is job and isinstance(key, (int, str)):
                return f"{name}[{key!r}]"
    return None


def _at(module: ModuleType, path: str) -> object:
    """The value at a path that `_path_of` returned; None if there is none."""
    name, _, key = path.partition("[")
    held = getattr(module, name, None)
    if not key:
        return held
    try:
        return held[ast.literal_eval(key[:-1])]  # type: ignore[index]
    except (TypeError, LookupError):
        return None


def _name_of(value: object, namespace: Mapping[str, Any]) -> str | None:
    return next((name for name, held in namespace.items() if held is value), None)


def load(origin: Origin) -> tuple[Job, Callable[..., Any] | None]:
    """Execute the script as a worker does; return its job and the user's loop."""
    sys.argv = list(origin.argv)
    if origin.search:
        sys.path.insert(0, origin.search)
    module = execute_as_worker(Path(origin.script), origin.package)
    job = _at(module, origin.job)
    if not isinstance(job, Job):
        raise TypeError(
            f"{origin.script} defined no job named '{origin.job}' when a worker executed it; "
            "define it above the main guard"
        )
    loop = getattr(module, origin.loop, None) if origin.loop else None
    if origin.loop and not callable(loop):
        raise TypeError(
            f"{origin.script} defined no loop named '{origin.loop}' when a worker executed it; "
            "define it above the main guard"
        )
    return job, loop


def execute_as_worker(path: Path, package: str = "") -> ModuleType:
    """Execute a script up to its main guard; `train` is refused meanwhile."""
    global _loading  # noqa: PLW0603 - a state of the process: whether it loads its script
    _loading = True
    # Random draws at the script's top level must agree in all processes. torch starts with the
    # same seed everywhere; Python and NumPy start with a different one in each process.
    seed_python(0)
    try:
        return execute(path, MODULE, package)
    finally:
        _loading = False


def execute(path: Path, name: str, package: str = "", spec: ModuleSpec | None = None) -> ModuleType:
    """Execute a file as the module `name`."""
    module = ModuleType(name)
    module.__spec__ = spec
    module.__file__ = str(path)
    module.__package__ = package
    sys.modules[name] = module
    code = compile(path.read_bytes(), str(path), "exec")
    exec(code, vars(module))  # noqa: S102 - running the user's own script is the point
    return module


def is_loading() -> bool:
    """Whether a worker is executing its script, where `train` must not be called."""
    return _loading
