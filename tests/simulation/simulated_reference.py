# ruff: noqa: ARG002 - a law hears of more than it looks at
"""The servers of every protocol, held against their models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_events import BrokenLawError, Law, near, parts

from manyhands.protocols import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from simulated_case import Case
    from simulated_servers import Expected, Model

    from manyhands.endpoint import Parameters
    from manyhands.protocols import Action, Call, ServerState


def reference(model: Callable[[Case, np.ndarray], Model]) -> type[Law]:
    """A law: the servers do what a model of them does."""

    class Reference(Law):
        def __init__(self, case: Case) -> None:
            super().__init__(case)
            first = parts(case.first(), case.servers)
            self._models = [model(case, part.copy()) for part in first]
            self._due: dict[tuple[int, str, int], np.ndarray | None] = {}

        def decided(
            self,
            server: int,
            before: ServerState,
            call: Call,
            payload: np.ndarray | None,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            self._compare(server, self._models[server].hear(call, payload), after, actions, call)

        def left(
            self,
            server: int,
            worker: str,
            before: ServerState,
            after: ServerState,
            actions: Sequence[Action],
        ) -> None:
            about = f"the death of {worker}"
            self._compare(server, self._models[server].leave(worker), after, actions, about)

        def _compare(
            self,
            server: int,
            due: list[Expected],
            after: ServerState,
            actions: Sequence[Action],
            about: object,
        ) -> None:
            answers = sorted(
                (a.call.sender, a.call.number, a.message.version, a.message.applied, a.parameters)
                for a in actions
                if isinstance(a, Answer)
            )
            expected = sorted((*one[:4], one.x is not None) for one in due)
            if answers != expected:
                raise BrokenLawError(
                    f"at {about} server-{server} answers {answers}, and {expected} are due"
                )
            version = self._models[server].version
            if after.version != version:
                raise BrokenLawError(
                    f"at {about} server-{server} is at version {after.version}, not {version}"
                )
            for one in due:
                self._due[server, one.sender, one.number] = one.x

        def settled(self, server: int, x: np.ndarray) -> None:
            expected = self._models[server].x
            if not near(x, expected):
                raise BrokenLawError(f"server-{server} holds {x}, and {expected} is right")

        def replied(
            self,
            server: int,
            call: tuple[str, int],
            message: Parameters,
            payload: np.ndarray | None,
        ) -> None:
            model = self._models[server]
            if (server, *call) in self._due:
                expected = self._due.pop((server, *call))
            else:
                model.again(call[0])
                expected = model.x
                if message.version != model.version:
                    raise BrokenLawError(
                        f"{call} is told version {message.version} and not {model.version}"
                    )
            if payload is None or expected is None:
                return
            if not near(payload, expected):
                raise BrokenLawError(
                    f"server-{server} sends {payload} to {call}, and {expected} is right"
                )

    return Reference
