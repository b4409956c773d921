"""Compilation of a worker's model by `torch.compile`, and the check of its toolchain."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from manyhands.job import Job


def compile_in_place(job: Job, model: nn.Module, apart: Iterable[nn.Module] = ()) -> None:
    """Have the model's calls compiled, if the job asks for it; names of parameters stay the same.

    It is compiled at its first call, for the parameters that it has then: whatever replaces them
    comes before.

    Args:
        job: the job.
        model: the model, changed in place.
        apart: modules of it that are not compiled, because they communicate.
    """
    if not job.compile:
        return
    # Kernels are compiled in this process: a pool of compiling processes would outlive a worker
    # that is killed.
    import torch  # noqa: PLC0415 - the check of a toolchain needs no torch
    import torch._inductor.config as inductor  # noqa: PLC0415 - takes a second to load

    inductor.compile_threads = 1
    for module in apart:
        module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]  # torch's
    call: Callable[..., Any] = model._call_impl

    def compiled(*inputs: Any, **options: Any) -> Any:
        return call(*inputs, **options)

    # Compiled code is kept by code object, up to a limit: every model has one of its own.
    compiled.__code__ = compiled.__code__.replace()
    # As `model.compile()`, which leaves a model uncompiled whose forward is torch's own, such as
    # nn.Sequential: torch does not compile frames of its own files, and this one is not.
    model._compiled_call_impl = torch.compile(compiled)


def check_toolchain(job: Job, devices: Iterable[str]) -> None:
    """Raise ValueError if the job's model is to be compiled and this host lacks the tools.

    Args:
        job: the job.
        devices: the devices of the workers, as torch names them.
    """
    if not job.compile:
        return
    for kind in sorted({device.partition(":")[0] for device in devices}):
        missing = _missing_for_cpu() if kind == "cpu" else _missing_for_gpu()
        if missing:
            raise ValueError(
                f"Job(compile=True) generates code for {kind} devices, which needs {missing}; or "
                "leave out compile"
            )


def _missing_for_cpu() -> str:
    """What is needed to compile for the processor and was not found; empty if nothing."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        return (
            f"a C++ compiler, and {compiler!r} was not found: install g++, or name another one in "
            "the environment variable CXX"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return (
            f"the headers of Python, and {header} does not exist: install them (python3-dev or "
            "python3-devel)"
        )
    return ""


def _missing_for_gpu() -> str:
    if importlib.util.find_spec("triton") is None:
        return "the package triton, which is not installed: install it (pip install triton)"
    return ""
