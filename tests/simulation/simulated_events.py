"""What happens in a simulated run, as laws hear of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from simulated_case import Case

    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.virtual import World
    from manyhands.virtual.coordinator import LeaseChannel
    from manyhands.virtual.worker.shared_model import Replication


class BrokenLawError(AssertionError):
    """Something happened that must not."""


@dataclass(eq=False)
class Life:
    """One life of a worker, as laws see it."""

    sender: str
    """What servers call it."""
    name: str
    rank: int
    replication: Replication
    channel: LeaseChannel
    """With the coordinator."""

    @property
    def is_heard(self) -> bool:
        """Whether what it says reaches the coordinator, and counts there."""
        channels = self.channel._coordinator._channels
        return not self.channel.is_cut_off and channels.get(self.name) is self.channel


class Law:
    """Something that must hold in every run. It hears of what it overrides, as it happens."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def started(self, life: Life) -> None:
        """A worker begins a life."""

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        """A worker calls a server."""

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        """A worker accepts an answer; whether it lies beside its parameters now."""

    def looked(self, life: Life) -> None:
        """A worker begins to compute, with the parameters as they are."""

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        """A worker has computed a gradient at x."""

    def stepped(self, life: Life, x: np.ndarray) -> None:
        """A worker has stepped with an optimizer of its own, and is at x."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: np.ndarray | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        """A server has decided about a call; it will now do it."""

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        """A server has decided about somebody's death; it will now do it."""

    def settled(self, server: int, x: np.ndarray) -> None:
        """A server has done what it decided, and its part of the parameters is x."""

    def replied(
        self, server: int, call: tuple[str, int], message: Parameters, payload: np.ndarray | None
    ) -> None:
        """A server sends an answer, perhaps not for the first time."""

    def began_anew(self, server: int, x: np.ndarray) -> None:
        """The server that a worker hosts has returned with it, and knows nothing."""

    def looks_up(self, life: Life) -> None:
        """A worker begins to look at the shared state, for an evaluation."""

    def looked_up(self, life: Life) -> None:
        """A worker is where it was before."""

    def fenced(self, sender: str) -> None:
        """A life is over, and everybody knows."""

    def leased(self, worker: str, lease: Lease) -> None:
        """A worker is given samples."""

    def committed(self, life: Life, number: int, *, accepted: bool) -> None:
        """A worker says that the update made of a lease is shared."""

    def forwent(self, life: Life, number: int, *, accepted: bool) -> None:
        """A worker says that it is not wanted."""

    def gave_back(self, worker: str, samples: int, *, alive: bool) -> None:
        """A worker's leases are taken from it."""

    def stopped(self) -> None:
        """It is enough."""

    def ended(self, world: World) -> None:
        """The run is over."""


HOOKS = [name for name, thing in vars(Law).items() if callable(thing) and name[0] != "_"]


def values(tensor: torch.Tensor) -> np.ndarray:
    """A copy of what bytes stand for."""
    return tensor.numpy().view(np.float64).copy()


def parts(x: np.ndarray, count: int) -> list[np.ndarray]:
    """So many parts of one size."""
    size = len(x) // count
    return [x[start : start + size] for start in range(0, len(x), size)]


def near(one: np.ndarray, other: np.ndarray) -> bool:
    """The same but for rounding."""
    for mine, its in zip(one.tolist(), other.tolist(), strict=True):
        if not abs(mine - its) <= 1e-9 * (1 + abs(mine)):
            return False
    return True
