# ruff: noqa: ARG002 - an event has more than is shown of it
"""A readable account of one run: its events in order, with their virtual times."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

from manyhands.testing.laws.law import Law

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.endpoint import Custom, Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.laws.law import Life
    from manyhands.virtual import World


def account(write: Callable[[str], object]) -> type[Law]:
    """A law that cannot be broken, and writes a line for every event."""

    class Account(Law):
        def _line(self, who: str, what: str) -> None:
            write(f"{self.now:12.4f} s  {who:<12} {what}")

        def started(self, life: Life) -> None:
            self._line(life.sender, "starts")

        def posted(
            self, life: Life, server: int, message: Said, payload: NDArray[np.float64] | None
        ) -> None:
            self._line(life.sender, f"calls server-{server}: {brief(message)}{_shown(payload)}")

        def took(
            self,
            life: Life,
            server: int,
            message: Parameters | Custom,
            payload: NDArray[np.float64] | None,
            *,
            beside: bool,
        ) -> None:
            where = " beside its own" if beside else ""
            came = f"{brief(message)}{_shown(payload)}{where}"
            self._line(life.sender, f"receives from server-{server}: {came}")

        def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
            self._line(life.sender, f"computes lease {lease.number} at{_shown(x)}")

        def stepped(self, life: Life, x: NDArray[np.float64]) -> None:
            self._line(life.sender, f"steps to{_shown(x)}")

        def decided(
            self,
            server: int,
            before: ServerState,
            call: Call,
            payload: NDArray[np.float64] | None,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            about = f"call {call.number} of {call.sender}, {brief(call.message)}"
            self._decided(server, about, before, after, actions)

        def left(
            self,
            server: int,
            worker: str,
            before: ServerState,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            self._decided(server, f"the loss of {worker}", before, after, actions)

        def _decided(
            self,
            server: int,
            about: str,
            before: ServerState,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            version = f"version {after.version}"
            if after.version != before.version:
                version = f"version {before.version} → {after.version}"
            done = ", ".join(map(_action, actions)) or "no action"
            self._line(f"server-{server}", f"decides on {about}: {done}; {version}")

        def replied(
            self,
            server: int,
            call: tuple[str, int],
            message: Parameters | Custom,
            payload: NDArray[np.float64] | None,
        ) -> None:
            self._line(
                f"server-{server}",
                f"answers call {call[1]} of {call[0]}: {brief(message)}{_shown(payload)}",
            )

        def leased(self, worker: str, lease: Lease) -> None:
            self._line(worker, f"gets lease {lease.number}: {lease.samples} samples")

        def committed(self, life: Life, number: int, *, accepted: bool) -> None:
            self._line(life.sender, f"commits lease {number}{'' if accepted else ', refused'}")

        def forwent(self, life: Life, number: int, *, accepted: bool) -> None:
            self._line(life.sender, f"discards lease {number}{'' if accepted else ', refused'}")

        def gave_back(self, worker: str, samples: int, *, alive: bool) -> None:
            self._line("coordinator", f"takes {samples} samples back from {worker}")

        def fenced(self, sender: str) -> None:
            self._line("coordinator", f"declares {sender} lost")

        def looks_up(self, life: Life) -> None:
            self._line(life.sender, "reads the shared parameters for an evaluation")

        def stopped(self) -> None:
            self._line("coordinator", "gives no more leases")

        def noted(self, what: str, detail: Mapping[str, str]) -> None:
            self._line("coordinator", f"records {what}: {', '.join(detail.values())}")

        def ended(self, world: World) -> None:
            self._line("coordinator", f"ends the run; {world.committed} samples committed")

    return Account


def _shown(x: NDArray[np.float64] | None) -> str:
    if x is None:
        return ""
    return f" [{' '.join(f'{value:.6g}' for value in x)}]"


def _action(action: Action) -> str:
    """An action without its call's message, which stands in the same line or before."""
    call = getattr(action, "call", None)
    about = [] if call is None else [f"call {call.number} of {call.sender}"]
    given = [
        f"{field.name}={_value(value)}"
        for field in fields(action)
        if field.name not in {"call", "message"}
        and (value := getattr(action, field.name)) != field.default
    ]
    return f"{type(action).__name__}({', '.join([*about, *given])})"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def brief(message: Said) -> str:
    """A message with the fields that differ from their defaults."""
    given = [
        f"{field.name}={_value(value)}"
        for field in msgspec.structs.fields(message)
        if (value := getattr(message, field.name)) != field.default
    ]
    return f"{type(message).__name__}({', '.join(given)})"
