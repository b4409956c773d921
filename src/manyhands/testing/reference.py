# ruff: noqa: ARG002 - a reference gets more than it needs
"""Reference servers: a protocol's server once more, in plain NumPy, to compare the real one with.

An author writes the server of a protocol in the words of its paper, without anything of
`manyhands.protocols`. It hears the same calls as the real server, and both must have the same
parameters after every decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from manyhands.endpoint import Parameters, Pull, Push, Rest, Turn
from manyhands.protocols import Answer
from manyhands.testing.laws.law import BrokenLawError, Law, near, parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from manyhands.endpoint import Custom
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case


class ExpectedAnswer(NamedTuple):
    """An answer that the server has to send."""

    sender: str
    number: int
    version: int
    applied: bool
    x: NDArray[np.float64] | None
    """The parameters that it contains; None for none."""


class ReferenceServer:
    """One server, in NumPy: `x` is its shard of the parameters.

    A subclass writes `push`, and whatever else its server does not do by default. Each method
    changes `x` and `version`, and returns the answers that are due now, or None if answers are not
    to be compared; then only the parameters are.

    Args:
        case: the run: its `protocol`, `workers`, `rate`, `momentum` and `job.global_batch`.
        x: the initial parameters.

    Example:
        >>> class Asynchronous(ReferenceServer):
        ...     def push(self, call, payload, samples, read):
        ...         self.descend(payload, samples / self.case.job.global_batch)
        ...         self.version += 1
        ...         return [self.answer(call)]
        >>> from manyhands.testing import check
        >>> check("asynchronous()", seeds=5, reference=Asynchronous).seeds
        5
    """

    def __init__(self, case: Case, x: NDArray[np.float64]) -> None:
        self.case = case
        self.x = x
        self.version = 0
        self._velocity: NDArray[np.float64] | None = None

    def hear(self, call: Call, payload: NDArray[np.float64] | None) -> list[ExpectedAnswer] | None:
        """A call has come; by default, one of the methods below is called for it."""
        match call.message:
            case Push(samples=samples, version=read):
                return self.push(call, np.zeros(0) if payload is None else payload, samples, read)
            case Pull():
                return self.pull(call)
            case Rest():
                return self.rest(call)
            case Turn():
                return self.turn(call)
        raise TypeError(f"{type(self).__name__} does not know the message {call.message}")

    def push(
        self, call: Call, payload: NDArray[np.float64], samples: int, read: int
    ) -> list[ExpectedAnswer] | None:
        """An update of `samples` samples, computed from version `read`."""
        raise NotImplementedError

    def pull(self, call: Call) -> list[ExpectedAnswer] | None:
        """A worker asks for the parameters."""
        return [self.answer(call)]

    def rest(self, call: Call) -> list[ExpectedAnswer] | None:
        """A worker says that it has no samples."""
        return [self.answer(call, parameters=False)]

    def turn(self, call: Call) -> list[ExpectedAnswer] | None:
        """A worker asks for its turn."""
        raise NotImplementedError

    def leave(self, worker: str) -> list[ExpectedAnswer] | None:
        """A worker was lost."""
        return []

    def again(self, sender: str) -> None:
        """An answer is sent once more, with the current parameters."""

    def answer(
        self, call: Call, *, applied: bool = True, parameters: bool = True
    ) -> ExpectedAnswer:
        """The answer to a call at this moment."""
        x = self.x.copy() if parameters else None
        return ExpectedAnswer(call.sender, call.number, self.version, applied, x)

    def descend(self, gradient: NDArray[np.float64], weight: float) -> None:
        """SGD as the job has it: v ← μ·v + g, x ← x − λ·weight·v."""
        mu = self.case.momentum
        if self._velocity is None or not mu:
            self._velocity = gradient.copy()
        else:
            self._velocity = mu * self._velocity + gradient
        self.x = self.x - self.case.rate * weight * self._velocity


def reference(server: Callable[[Case, NDArray[np.float64]], ReferenceServer]) -> type[Law]:
    """A law: the servers do what a reference does.

    Args:
        server: makes the reference of one server, from the case and its initial parameters.
    """

    class Reference(Law):
        def __init__(self, case: Case) -> None:
            super().__init__(case)
            first = parts(case.first(), case.servers)
            self._models = [server(case, part.copy()) for part in first]
            self._due: dict[tuple[int, str, int], NDArray[np.float64] | None] = {}
            self._silent: set[int] = set()
            """Servers whose reference does not tell which answers are due."""

        def decided(
            self,
            server: int,
            before: ServerState,
            call: Call,
            payload: NDArray[np.float64] | None,
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
            about = f"the loss of {worker}"
            self._compare(server, self._models[server].leave(worker), after, actions, about)

        def _compare(
            self,
            server: int,
            due: list[ExpectedAnswer] | None,
            after: ServerState,
            actions: Sequence[Action],
            about: object,
        ) -> None:
            if due is None:
                self._silent.add(server)
                return
            answers = sorted(
                (a.call.sender, a.call.number, a.message.version, a.message.applied, a.parameters)
                for a in actions
                if isinstance(a, Answer) and isinstance(a.message, Parameters)
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

        def settled(self, server: int, x: NDArray[np.float64]) -> None:
            expected = self._models[server].x
            if not near(x, expected):
                raise BrokenLawError(f"server-{server} holds {x}, and {expected} is right")

        def replied(
            self,
            server: int,
            call: tuple[str, int],
            message: Parameters | Custom,
            payload: NDArray[np.float64] | None,
        ) -> None:
            model = self._models[server]
            if server in self._silent or not isinstance(message, Parameters):
                return
            expected: NDArray[np.float64] | None
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
