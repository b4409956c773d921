"""A law and the events that it observes: everything that happens in a simulated run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from manyhands.parameters import as_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from manyhands.endpoint import Custom, Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.virtual import World
    from manyhands.virtual.coordinator import LeaseChannel
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.worker.shared_model import Replication


class BrokenLawError(AssertionError):
    """A run broke a law.

    Args:
        words: what happened, and what was right.
        law: the name of the law; by default that of the `Law` that raised the error.

    Example:
        >>> BrokenLawError("server-0 holds 3, and 4 is right", law="Sum").law
        'Sum'
    """

    def __init__(self, words: str, *, law: str = "") -> None:
        super().__init__(words)
        self.law = law
        self.seed: int | None = None
        """The seed of the run; set by `check`, like the next two."""
        self.case = ""
        """The case in words."""
        self.replay = ""
        """A command that runs the same seed again."""


@dataclass(eq=False)
class Life:
    """One incarnation of a worker."""

    sender: str
    """Its name for servers: `worker-3`, then `worker-3.2` after a restart."""
    name: str
    """The name of the worker: `worker-3`."""
    rank: int
    replication: Replication
    """Its parameters, buffers and optimizer."""
    channel: LeaseChannel
    """Its connection to the coordinator."""

    @property
    def is_heard(self) -> bool:
        """Whether its messages reach the coordinator, and count there."""
        coordinator = self.channel._coordinator
        if self.channel.is_cut_off or coordinator.is_down:
            return False
        return coordinator._channels.get(self.name) is self.channel


class Law:
    """Something that must hold in every run.

    A law overrides the methods whose events it needs, and raises `BrokenLawError` when what it
    hears is wrong. One object is made for every run.

    Args:
        case: the run.

    Example:
        >>> class FewVersions(Law):
        ...     def decided(self, server, before, call, payload, after, actions):
        ...         if after.version > 100:
        ...             raise BrokenLawError(f"server-{server} is at version {after.version}")
    """

    kernel: Kernel

    def __init__(self, case: Case) -> None:
        self.case = case

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.kernel.now

    def started(self, life: Life) -> None:
        """A worker was started, or restarted."""

    def posted(
        self, life: Life, server: int, message: Said, payload: NDArray[np.float64] | None
    ) -> None:
        """A worker sends a message to a server."""

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
        *,
        beside: bool,
    ) -> None:
        """A worker received an answer; `beside`: into its second buffer."""

    def looked(self, life: Life) -> None:
        """A worker begins to compute, on the parameters as they are."""

    def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
        """A worker has computed a gradient at x."""

    def stepped(self, life: Life, x: NDArray[np.float64]) -> None:
        """A worker has taken a step of its local optimizer, and is at x."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        """A server has decided on a call, and will now carry out the actions."""

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        """A server has decided on the loss of a worker, and will now carry out the actions."""

    def settled(self, server: int, x: NDArray[np.float64]) -> None:
        """A server has carried out its decision, and its shard is x."""

    def replied(
        self,
        server: int,
        call: tuple[str, int],
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
    ) -> None:
        """A server sends an answer, maybe not for the first time."""

    def encoded(
        self, life: Life, server: int, owed: NDArray[np.float64] | None, *, empty: bool
    ) -> None:
        """A worker has encoded a push, of which the server is owed this vector.

        It is None if the codec has no error feedback; `empty`: there was nothing to encode.
        """

    def decoded(
        self, life: Life, server: int, kept: NDArray[np.float64], known: NDArray[np.float64] | None
    ) -> None:
        """A worker has decoded an answer, and keeps the result; the server keeps `known` for it."""

    def lost_server(self, life: Life, server: int) -> None:
        """A worker gave up the calls that a lost server had not answered."""

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        """The server in a worker's process has returned with it, in its initial state."""

    def restored(self, server: int, heard: dict[str, int]) -> None:
        """A server that crashed continues from its journal; by caller, the last call in it."""

    def looks_up(self, life: Life) -> None:
        """A worker begins to read the shared parameters, for an evaluation."""

    def looked_up(self, life: Life) -> None:
        """A worker has its own parameters again, after an evaluation."""

    def fenced(self, sender: str) -> None:
        """An incarnation of a worker was declared lost."""

    def leased(self, worker: str, lease: Lease) -> None:
        """A worker is given samples."""

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        """A worker commits a lease: its update is part of the shared parameters."""

    def forwent(self, life: Life, number: int, *, accepted: bool) -> None:
        """A worker discards a lease: its update was not applied."""

    def gave_back(self, worker: str, samples: int, *, alive: bool) -> None:
        """The leases of a worker are taken from it."""

    def stopped(self) -> None:
        """No more leases are given."""

    def noted(self, what: str, detail: Mapping[str, str]) -> None:
        """The coordinator records an event: a fault, a loss, a restart, an epoch."""

    def ended(self, world: World) -> None:
        """The run is over."""


HOOKS: Final = [name for name, thing in vars(Law).items() if callable(thing) and name[0] != "_"]
"""The names of all events."""


def values(tensor: torch.Tensor) -> NDArray[np.float64]:
    """A copy of the float64 numbers that bytes stand for."""
    numbers: NDArray[np.float64] = tensor.numpy().view(np.float64).copy()
    return numbers


def payload_values(
    payload: torch.Tensor | None, size: int | None = None
) -> NDArray[np.float64] | None:
    """The numbers of a payload: float64, as which all parameters are sent.

    A protocol may send something else: then these are its bytes (uint8).

    Args:
        payload: the payload.
        size: bytes of a payload of parameters; None if that is not known.
    """
    if payload is None:
        return None
    flat = as_bytes(payload)
    if flat.nbytes % 8 or size not in (None, flat.nbytes):
        return cast("NDArray[np.float64]", flat.numpy().copy())
    return values(flat)


def parts(x: NDArray[np.float64], count: int) -> list[NDArray[np.float64]]:
    """The vector in `count` parts of one size."""
    size = len(x) // count
    return [x[start : start + size] for start in range(0, len(x), size)]


def near(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether two vectors are equal to within 1e-9, relative to large numbers."""
    for mine, its in zip(one.tolist(), other.tolist(), strict=True):
        if not abs(mine - its) <= 1e-9 * (1 + abs(mine)):
            return False
    return True
