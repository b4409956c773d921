"""Script loading: executes the user's script in every process of a run.

The script is executed under another module name, so code below `if __name__ == "__main__":` is not
executed, and the process takes the module-level job that the agent named, or calls the function
that makes it. Nothing is pickled: lambdas and local classes work, and side effects below the guard
are not repeated (`docs/decisions/0002-scripts-not-pickles.md`). Cells of a notebook become a script
first (`manyhands.script.cells`).
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from manyhands.free import settled
from manyhands.job import Job
from manyhands.script.cells import history, shell
from manyhands.script.cells import script as cells_script
from manyhands.script.likeness import NAME as SAMPLES
from manyhands.script.likeness import check_samples, samples_digest
from manyhands.script.origin import NOTEBOOK, Origin
from manyhands.script.user_traceback import is_user_file
from manyhands.seeding import seed_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec
    from types import FrameType

MODULE = "__manyhands__"
"""The module name under which workers execute the script."""

_loading = False


def made(source: Job | Callable[..., Job], values: Mapping[str, Any] | None = None) -> Job:
    """The job, or the one that a function makes.

    Args:
        source: the job, or a function that can be called without arguments; its free parameters
            are given.
        values: values of free parameters; the others have their start.

    Raises:
        TypeError: it is neither.
        ValueError: the function needs arguments, or returns something else, or has no such free
            parameters.
    """
    if isinstance(source, Job):
        if values:
            raise ValueError(
                f"the job has no free parameters, and so no {', '.join(values)}: make it in a "
                "function, as def job(lr=mh.free.log(1e-4, 1e-1)), and give the function"
            )
        return source
    if not callable(source):
        raise TypeError(
            f"expected a Job, or a function without arguments that returns one, got {source!r}"
        )
    name = getattr(source, "__name__", repr(source))
    try:
        with contextlib.suppress(ValueError):  # some callables have no signature
            inspect.signature(source).bind()
    except TypeError as error:
        raise ValueError(
            f"{name} must be callable without arguments, because every worker calls it to get the "
            f"job ({error}): give them default values, or use functools.partial at the top level"
        ) from None
    job = source(**settled(source, values or {}))
    if not isinstance(job, Job):
        raise ValueError(f"{name}() must return a Job, got {job!r}")  # noqa: TRY004 - it is refused
    return job


def trace_back(
    job: Job,
    loop: Callable[..., Any] | None,
    namespace: Mapping[str, Any],
    *,
    made_by: Callable[..., Job] | None = None,
    values: Mapping[str, Any] | None = None,
    frame: FrameType | None = None,
) -> Origin:
    """Find the module-level names of `job` and `loop`.

    They are searched in the caller's module, then in the script, then in imported modules. A job
    may also be an item of a module-level list, tuple or dictionary: `jobs[0]`. In IPython and in
    notebooks, the origin is a script of the cells that define them.

    Args:
        job: the job.
        loop: the user's own training loop, if there is one.
        namespace: the caller's module.
        made_by: the function that made the job; its name is searched in place of the job's.
        values: what it was given for its free parameters.
        frame: the caller's frame, if it is known.

    Raises:
        ValueError: the job (or the loop) is not a module-level value of a file or of cells.
    """
    held, typed, running = made_by or job, "", shell()
    for module in _namespaces(namespace):
        in_cells = running is not None and module is running.user_ns
        name = _path_of(held, _shown(module) if in_cells else module)
        if name is None:
            continue
        if not module.get("__file__") and not in_cells:
            typed = typed or name
            continue
        loop_name = None
        if loop is not None:
            loop_name = _name_of(loop, module)
            if loop_name is None:
                raise ValueError(
                    "the loop must be a function at the top level of the job's module, so that "
                    "every worker can find it by name"
                )
        if in_cells and not module.get("__file__"):
            roots = [name.partition("[")[0], *filter(None, [loop_name])]
            text = cells_script(history(running, frame), module, roots)
            text += f"\n{SAMPLES} = {{{name!r}: {samples_digest(job)!r}}}\n"
            return Origin(
                "", "", str(Path.cwd()), (NOTEBOOK,), name, loop_name, text, dict(values or {})
            )
        return Origin(
            script=str(Path(module["__file__"]).resolve()),
            package=module.get("__package__") or "",
            search=str(Path(sys.path[0]).resolve()) if sys.path else "",
            argv=tuple(sys.argv),
            job=name,
            loop=loop_name,
            values=dict(values or {}),
        )
    raise ValueError(_not_found(held, typed, frame))


def _not_found(held: object, typed: str, frame: FrameType | None) -> str:
    """Why workers cannot find a job, or the function that makes it, and what to do."""
    if typed:
        return (
            f"the job '{typed}' was created interactively or read from standard input, and workers "
            "need its source, which Python does not keep: write it into a script and start "
            "python script.py, or use IPython or a notebook, whose cells workers can execute"
        )
    if not isinstance(held, Job):
        return (
            "the function that makes the job must be at the top level of a script, outside any "
            "function, because every worker executes the script and finds it by its name"
        )
    remedy = (
        "Move it to the top level of the script (job = mh.Job(...), outside any function, above "
        "the main guard), or write a function without arguments that returns it, at the top "
        "level, and give the function in place of the job: mh.train(make_job, ...)"
    )
    while frame is not None:
        local = None if frame.f_locals is frame.f_globals else _name_of(held, frame.f_locals)
        if local is not None:
            return (
                f"the job '{local}' is a local variable of {frame.f_code.co_name}(), where workers "
                f"cannot find it: every worker executes the script and takes the job by its name. "
                f"{remedy}"
            )
        frame = frame.f_back
    return (
        "the job has no name at the top level of a script, and every worker executes the script "
        f"and takes the job by its name. {remedy}"
    )


def _shown(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The names of IPython's namespace that a cell has defined: not `_`, `Out` and their like."""
    return {
        name: value
        for name, value in [*namespace.items()]
        if not name.startswith("_") and name not in ("In", "Out")
    }


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
    return not isinstance(path, str) or not is_user_file(path)


def _path_of(job: object, namespace: Mapping[str, Any]) -> str | None:
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


def at(module: ModuleType, path: str) -> object:
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
    with _as_worker():
        module = execute(Path(origin.script), MODULE, origin.package)
        job = job_at(module, origin.job, origin.values)
    loop = getattr(module, origin.loop, None) if origin.loop else None
    if origin.loop and not callable(loop):
        raise TypeError(
            f"{origin.script} defined no loop named '{origin.loop}' when a worker executed it; "
            "define it above the main guard"
        )
    return job, loop


def job_at(module: ModuleType, path: str, values: Mapping[str, Any] | None = None) -> Job:
    """The job at a path in an executed script, or the one that the function there makes.

    Raises:
        TypeError: there is none.
        RuntimeError: its samples are not those that the notebook had.
    """
    held: Any = at(module, path)
    if not isinstance(held, Job) and not callable(held):
        raise TypeError(
            f"{module.__file__} defined no job named '{path}' when a worker executed it; "
            "define it above the main guard"
        )
    job = made(held, values)
    check_samples(job, path, vars(module).get(SAMPLES, {}).get(path, ""))
    return job


def execute_as_worker(path: Path, package: str = "") -> ModuleType:
    """Execute a script up to its main guard; `train` is refused meanwhile."""
    with _as_worker():
        return execute(path, MODULE, package)


@contextlib.contextmanager
def _as_worker() -> Iterator[None]:
    """Context in which a worker loads its script."""
    global _loading  # noqa: PLW0603 - a state of the process: whether it loads its script
    _loading = True
    # Random draws at the script's top level must agree in all processes. torch starts with the
    # same seed everywhere; Python and NumPy start with a different one in each process.
    seed_python(0)
    try:
        yield
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
