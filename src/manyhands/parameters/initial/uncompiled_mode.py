"""Dispatch modes that do not import `torch._dynamo`, which takes a process more than a second.

Torch has every dispatch mode tell `torch._dynamo` not to compile it, and imports it for that. As
long as nothing else has imported it, nothing can be compiled.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

_DYNAMO: Final = "torch._dynamo"


class UncompiledMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Base class of dispatch modes; `__torch_dispatch__` is called directly where it can be."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]  # torch's
        outer = vars(cls).get("__torch_dispatch__")
        inner = getattr(outer, "__wrapped__", None)
        if outer is None or inner is None:
            return  # torch is written otherwise than is known here

        def dispatch(self: Any, *args: Any, **options: Any) -> Any:
            return (outer if _DYNAMO in sys.modules else inner)(self, *args, **options)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
